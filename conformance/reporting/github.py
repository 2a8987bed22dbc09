"""What a run tells GitHub Actions: a step summary, annotations and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from refsampler.clauses import Level
from refsampler.conformance.commands.verdict_table import failure_lines
from refsampler.conformance.decisions import Decision
from refsampler.conformance.verdict import ExitCode, Status

__all__ = ["annotation_lines", "on_github", "outputs", "tell_github", "write_files"]

_MOST_SUMMARY: Final = 2**20
"""Bytes; GitHub drops a longer summary."""

_CUT: Final = "\n\nThe rest is left out: a summary holds 1 MiB.\n"
_VERDICTS: Final = {
    ExitCode.CONFORMS: "conforms",
    ExitCode.DOES_NOT: "does-not-conform",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.NOTHING_RAN: "nothing-ran",
}


def tell_github(
    environ: Mapping[str, str], page: str, decisions: Sequence[Decision], code: int
) -> tuple[str, ...]:
    """Write the files and return the lines to print; nothing outside of GitHub Actions."""
    if not on_github(environ):
        return ()
    write_files(environ, page, outputs(decisions, code))
    return tuple(annotation_lines(decisions))


def on_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a step of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def annotation_lines(decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield a line a clause that did not pass: errors are what gates, warnings what does not."""
    for one in decisions:
        verdict = one.verdict
        if verdict.status not in (Status.FAIL, Status.INCONCLUSIVE, Status.ERROR):
            continue
        gates = one.level is Level.MUST and verdict.expected is None
        kind = "error" if gates else "warning"
        text = "\n".join(failure_lines(one)) or f"{verdict.status.name}: {one.reason}"
        title = f"{verdict.clause} {verdict.status.name}"
        yield f"::{kind} title={_property(title)}::{_data(text)}"


def outputs(decisions: Sequence[Decision], code: int) -> str:
    """Return the lines of the step's outputs: verdict, failed, inconclusive."""
    counts = {
        name: sum(one.verdict.status is status for one in decisions)
        for name, status in (("failed", Status.FAIL), ("inconclusive", Status.INCONCLUSIVE))
    }
    lines = [f"verdict={_VERDICTS.get(code, 'error')}"]
    return "\n".join([*lines, *(f"{name}={count}" for name, count in counts.items())]) + "\n"


def write_files(environ: Mapping[str, str], page: str, words: str) -> None:
    """Append the summary and the outputs to the files that GitHub names, where it names them.

    Args:
        environ: of the process.
        page: markdown; cut where it is longer than GitHub takes.
        words: of `outputs`.

    """
    for name, text in (("GITHUB_STEP_SUMMARY", _fitting(page)), ("GITHUB_OUTPUT", words)):
        if environ.get(name):
            with Path(environ[name]).open("a", encoding="utf-8") as stream:
                stream.write(text)


def _fitting(page: str) -> str:
    data = page.encode()
    if len(data) <= _MOST_SUMMARY:
        return page
    return data[: _MOST_SUMMARY - len(_CUT)].decode(errors="ignore") + _CUT


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

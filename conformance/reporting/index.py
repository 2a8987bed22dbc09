"""Several stored runs in one folder: a page each, an index of them, and a map of clause by run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from refsampler.conformance.reporting.asked import told
from refsampler.conformance.reporting.heatmap import clauses_of, map_svg, page_name
from refsampler.conformance.reporting.html import MARKS, environment, html
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.verdict import Status

__all__ = ["INDEX", "MAP", "SameNameError", "index_html", "index_markdown", "write_index"]

INDEX: Final = "README.md"
MAP: Final = "map.svg"
_BROWSABLE: Final = "index.html"

_TITLE: Final = "Runs side by side"
_COLUMNS: Final = ("run", "backend", "device", "profile", "date", "commit", "verdict")
_WARNING: Final = (
    "Each run is judged by itself. They are of different days, machines and commits: what differs"
    " between two rows is no ranking."
)


class SameNameError(ValueError):
    """Two runs lie in folders of one name, which would share a page."""


def index_markdown(runs: Sequence[StoredRun]) -> str:
    """Return the index: what ran, the map, what was asked and what not, each clause's sign."""
    lines = [f"# {_TITLE}", "", f"![clauses by run]({MAP})", "", _WARNING, ""]
    lines += [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    for run in runs:
        name, *rest = (_plain(cell) for cell in _cells(run))
        lines.append(_line([f"[{name}]({quote(page_name(run))})", *rest]))
    lines += ["", "## What each run asked, and what it did not"]
    for run in runs:
        lines += ["", f"### {_plain(run.folder.name)}", ""]
        lines += [f"* {fact.name}: {_plain(fact.value)}" for fact in told(run)]
    lines += ["", "## Clause by clause", "", *_signs(runs)]
    return "\n".join([*lines, ""])


def _cells(run: StoredRun) -> tuple[str, ...]:
    header = run.header
    return (
        run.folder.name,
        f"{header.backend} {header.backend_version}",
        header.device,
        header.profile,
        header.started.partition("T")[0],
        header.revision or "not said",
        "the run did not end" if run.footer is None else run.footer.headline,
    )


def _signs(runs: Sequence[StoredRun]) -> Iterator[str]:
    yield _line(["clause", *(_plain(run.folder.name) for run in runs)])
    yield _line(["---"] * (1 + len(runs)))
    for clause in clauses_of(runs):
        yield _line([f"`{clause}`", *(_mark(run, clause) for run in runs)])
    words = (f"{mark} {status.replace('_', ' ')}" for status, mark in MARKS.items())
    yield ""
    yield f"Signs: {', '.join(words)}; an empty cell was not asked."


def _mark(run: StoredRun, clause: str) -> str:
    verdict = run.verdict(clause)
    return "" if verdict is None else MARKS[Status(verdict.status)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Return text that is one cell and no markup, whoever supplied it."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", r"\|").replace("[", r"\[").replace("*", r"\*")


def index_html(runs: Sequence[StoredRun]) -> str:
    """Return the index for a browser: the map leads to each clause of each run's page."""
    rows = [(page_name(run), _cells(run), told(run)) for run in runs]
    template = environment().get_template("index.html.j2")
    return template.render(
        title=_TITLE, warning=_WARNING, columns=_COLUMNS, rows=rows, map=map_svg(runs)
    )


def write_index(runs: Sequence[StoredRun], folder: Path) -> tuple[Path, ...]:
    """Write the page of each run, the index and its map into a folder, and return their paths.

    Raises:
        SameNameError: two runs lie in folders of one name.

    """
    names = [page_name(run) for run in runs]
    if len(set(names)) < len(names):
        raise SameNameError("a page is called after its folder: allowed is one run of each name")
    folder.mkdir(parents=True, exist_ok=True)
    # A script of a failure is linked where it lies, and it does not lie here.
    pages = {name: html(replace(run, folder=folder)) for name, run in zip(names, runs, strict=True)}
    written = {
        INDEX: index_markdown(runs),
        _BROWSABLE: index_html(runs),
        MAP: map_svg(runs),
        **pages,
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in written)

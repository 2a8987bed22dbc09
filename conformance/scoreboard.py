"""The scoreboard: reports of several engines side by side, clause group by clause group.

Everything comes from the reports, so the page can be made again without an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refsampler.clauses import load
from refsampler.conformance.differences import TYPICAL, differences, distance
from refsampler.conformance.records import Footer, Header, VerdictRecord, read_report
from refsampler.conformance.verdict import Status
from refsampler.semantics import Semantics

__all__ = ["Entry", "read_entry", "scoreboard", "verdict_page"]

_REPORT: Final = "report.jsonl"
_NO_VERDICT: Final = (Status.INHERITED, Status.UNSUPPORTED, Status.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Entry:
    """One engine's report.

    Attributes:
        header: what ran.
        verdicts: one a clause.
        footer: how it ended.

    """

    header: Header
    verdicts: tuple[VerdictRecord, ...]
    footer: Footer

    @property
    def semantics(self) -> Semantics:
        """What the engine declares."""
        declared = self.header.capabilities
        return Semantics() if declared is None else declared.semantics

    @property
    def failed(self) -> tuple[VerdictRecord, ...]:
        """The clauses that it broke."""
        return tuple(one for one in self.verdicts if one.status == Status.FAIL)


def read_entry(folder: Path) -> Entry:
    """Read the report in a folder.

    Raises:
        ValueError: it has no header or no end.

    """
    records = tuple(read_report(folder / _REPORT))
    headers = [one for one in records if isinstance(one, Header)]
    footers = [one for one in records if isinstance(one, Footer)]
    if not headers or not footers:
        raise ValueError(f"{folder / _REPORT} is no finished report")
    verdicts = tuple(one for one in records if isinstance(one, VerdictRecord))
    return Entry(headers[0], verdicts, footers[-1])


def scoreboard(entries: Mapping[str, Entry]) -> str:
    """Return the page; the keys are names of files beside it, without their end."""
    groups = tuple(dict.fromkeys(clause.group for clause in load().clauses))
    lines = [
        "# Scoreboard",
        "",
        "A cell counts the clauses of a group that the engine is answerable for: passed / judged, with the number",
        "of failures in brackets. `-` is a group that does not apply: inherited from the reference around a",
        "kernel, not declared, not asked or not run. Each name leads to the verdicts.",
        "",
        _row(["engine", "version", "date", *groups]),
        _row(["---"] * (3 + len(groups))),
    ]
    for name, entry in entries.items():
        cells = [_cell(entry, group) for group in groups]
        header = entry.header
        start = [f"[{header.backend}]({name}.md)", header.backend_version, header.started[:10]]
        lines.append(_row([*start, *cells]))
    lines += ["", "## Conforms to its declared semantics", ""]
    lines += [f"* [{one.header.backend}]({name}.md): {_own(one)}" for name, one in entries.items()]
    lines += ["", "## Differs from `vllm` by what it declares", "", *_apart(entries)]
    return "\n".join(lines) + "\n"


def verdict_page(entry: Entry) -> str:
    """Return one engine's verdicts."""
    header = entry.header
    levels = {str(clause.id): str(clause.level) for clause in load().clauses}
    budget = "" if header.time_budget is None else f", time budget {header.time_budget:g} s"
    asked = "all clauses" if header.clauses == "*" else f"clauses `{header.clauses}`"
    how = (
        f"Profile {header.profile}, {asked}{budget}, run seed {header.run_seed}, {header.started[:10]}, "
        f"Python {header.python}, {header.machine}, contract {header.contract}; "
        f"{entry.footer.draws:,} draws in {entry.footer.seconds:.0f} s."
    )
    lines = [
        f"# {header.backend} {header.backend_version}",
        "",
        f"{entry.footer.headline}.",
        "",
        how,
        "",
        _row(["clause", "level", "status", "cases", "draws", "note"]),
        _row(["---"] * 6),
    ]
    for one in entry.verdicts:
        counts = [str(one.cases), f"{one.draws:,}"]
        note = " ".join((one.effect or one.reason).split())
        level = levels.get(one.clause, "")
        lines.append(_row([f"`{one.clause}`", level, one.status, *counts, _cut(note)]))
    return "\n".join(lines) + "\n"


def _cell(entry: Entry, group: str) -> str:
    judged = [
        one
        for one in entry.verdicts
        if one.clause.partition(".")[0] == group and one.status not in _NO_VERDICT
    ]
    if not judged:
        return "-"
    passed = sum(one.status == Status.PASS for one in judged)
    failed = sum(one.status == Status.FAIL for one in judged)
    return f"{passed}/{len(judged)}" + (f" (**{failed}**)" if failed else "")


def _own(entry: Entry) -> str:
    """Return what was found against the engine's own declaration."""
    failed = ", ".join(f"`{one.clause}`" for one in entry.failed)
    undecided = sum(one.status in (Status.INCONCLUSIVE, Status.ERROR) for one in entry.verdicts)
    words = f"fails {failed}" if failed else "nothing failed"
    return f"{words}; {undecided} undecided" if undecided else words


def _apart(entries: Mapping[str, Entry]) -> Sequence[str]:
    """Return the table of distances between the declared laws and vLLM's, and what makes them."""
    lines = [
        "Total variation between the exact law of the declared semantics and that of `vllm`, on requests as people",
        "send them (`refsampler.conformance.differences`; V = 4096, nothing is drawn):",
        "",
        _row(["engine", *(one.name for one in TYPICAL)]),
        _row(["---"] * (1 + len(TYPICAL))),
    ]
    for entry in entries.values():
        cells = [f"{distance(entry.semantics, one):.3f}" for one in TYPICAL]
        lines.append(_row([entry.header.backend, *cells]))
    lines.append("")
    for entry in entries.values():
        found = "; ".join(differences(entry.semantics)) or "nothing"
        lines.append(f"* {entry.header.backend}: {found}")
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _cut(text: str, most: int = 240) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."

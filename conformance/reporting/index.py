"""Several stored runs on one page: a map of clause by backend, as SVG, and a table, as markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refsampler.conformance.reporting.html import HTML, MARKS, environment
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.verdict import Status

__all__ = ["INDEX", "MAP", "index_markdown", "map_svg", "write_index"]

INDEX: Final = "README.md"
MAP: Final = "map.svg"

_CELL, _GAP, _ROW = 10, 6, 18
_TOP: Final = 74
_LETTER: Final = 6.4
_LEGEND: Final = (
    (Status.PASS, "pass"),
    (Status.FAIL, "fail"),
    (Status.INCONCLUSIVE, "inconclusive, error"),
    (Status.INHERITED, "inherited"),
    (Status.UNSUPPORTED, "unsupported, not run"),
)


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    x: float


@dataclass(frozen=True, slots=True)
class _Cell:
    clause: str
    status: str
    x: float


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    y: float
    cells: tuple[_Cell, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    status: str
    words: str
    x: float


@dataclass(frozen=True, slots=True)
class _Map:
    left: float
    top: float
    width: float
    height: float
    groups: tuple[_Group, ...]
    rows: tuple[_Row, ...]
    legend: tuple[_Entry, ...]


def map_svg(runs: Sequence[StoredRun]) -> str:
    """Return the map: a row a run, by the name of its folder, and a column a clause."""
    clauses = _clauses(runs)
    left = _LETTER * max(len(run.folder.name) for run in runs) + 12
    places: dict[str, float] = {}
    groups: list[_Group] = []
    x, group = left, ""
    for clause in clauses:
        name = clause.partition(".")[0]
        if name != group:
            x += _GAP if group else 0
            groups.append(_Group(name, x + 4))
            group = name
        places[clause] = x
        x += _CELL
    rows = tuple(
        _Row(
            run.folder.name,
            _TOP + number * _ROW,
            tuple(_Cell(one.clause, one.status, places[one.clause]) for one in run.verdicts),
        )
        for number, run in enumerate(runs)
    )
    legend, at = [], left
    for status, words in _LEGEND:
        legend.append(_Entry(str(status), words, at))
        at += _LETTER * len(words) + 30
    height = _TOP + len(runs) * _ROW + 24
    made = _Map(left, _TOP, max(x, at) + 30, height, tuple(groups), rows, tuple(legend))
    return environment().get_template("map.svg.j2").render(map=made)


def _clauses(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.clause for run in runs for one in run.verdicts))


def index_markdown(runs: Sequence[StoredRun], folder: Path) -> str:
    """Return the index: what ran, the map, and each clause with the sign of its status.

    Args:
        runs: one a backend.
        folder: where the index lies; links are relative to it.

    """
    lines = ["# Runs side by side", "", f"![clauses by run]({MAP})", ""]
    lines += ["| run | backend | device | profile | run seed | started | verdict |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for run in runs:
        header = run.header
        link = Path(os.path.relpath(run.folder / HTML, folder)).as_posix()
        verdict = "the run did not end" if run.footer is None else run.footer.headline
        backend = f"{header.backend} {header.backend_version}"
        cells = (backend, header.device, header.profile, header.run_seed, header.started, verdict)
        shown = " | ".join(_cell(str(cell)) for cell in cells)
        lines.append(f"| [{_cell(run.folder.name)}]({link}) | {shown} |")
    names = " | ".join(_cell(run.folder.name) for run in runs)
    lines += ["", f"| clause | {names} |", "| --- |" + " --- |" * len(runs)]
    for clause in _clauses(runs):
        lines.append(f"| `{clause}` | {' | '.join(_mark(run, clause) for run in runs)} |")
    words = (f"{mark} {status.replace('_', ' ')}" for status, mark in MARKS.items())
    return "\n".join([*lines, "", f"Signs: {', '.join(words)}.", ""])


def _mark(run: StoredRun, clause: str) -> str:
    verdict = run.verdict(clause)
    return "" if verdict is None else MARKS[Status(verdict.status)]


def _cell(text: str) -> str:
    """Return text that is one cell and no markup, whoever supplied it."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", r"\|").replace("[", r"\[")


def write_index(runs: Sequence[StoredRun], folder: Path) -> tuple[Path, ...]:
    """Write the index and its map into a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {INDEX: index_markdown(runs, folder), MAP: map_svg(runs)}
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in written)

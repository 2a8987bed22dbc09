"""The map of several stored runs as SVG: a row a run, a column a clause, each cell a link to its case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from refsampler.clauses import ClauseId, load
from refsampler.conformance.records import VerdictRecord
from refsampler.conformance.reporting.html import environment
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.verdict import Status

__all__ = ["clauses_of", "map_svg", "page_name"]

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
    anchor: str


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    page: str
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


def page_name(run: StoredRun) -> str:
    """Return the name of a run's page beside the index: that of its folder."""
    return f"{run.folder.name}.html"


def map_svg(runs: Sequence[StoredRun]) -> str:
    """Return the map: a row a run, by the name of its folder, and a column a clause."""
    clauses = clauses_of(runs)
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
            page_name(run),
            _TOP + number * _ROW,
            tuple(
                _Cell(one.clause, one.status, places[one.clause], _anchor(one))
                for one in run.verdicts
            ),
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


def _anchor(one: VerdictRecord) -> str:
    """Return where the run's page tells of a clause: the failure, or the row of all clauses."""
    return f"{'f' if one.status == Status.FAIL else 'c'}-{one.clause}"


def clauses_of(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """Return every clause that some run has a verdict about, those of this contract in its order."""
    found = dict.fromkeys(one.clause for run in runs for one in run.verdicts)
    place = {clause.id: number for number, clause in enumerate(load().clauses)}
    return tuple(sorted(found, key=lambda clause: place.get(ClauseId(clause), len(place))))

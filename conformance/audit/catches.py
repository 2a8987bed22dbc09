"""Catches: which clauses failed in a fault's runs, by which check, and after how many draws."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from refsampler.conformance.decisions import Decision
from refsampler.conformance.finished import Finished, gather
from refsampler.conformance.plan import LAW, Plan
from refsampler.conformance.records import (
    CaseRecord,
    LawRecord,
    MixedRecord,
    PairsRecord,
    Record,
    ReportWriter,
    TailRecord,
)
from refsampler.conformance.verdict import LogE, Status

__all__ = ["Catch", "Watch", "catches", "of_evidence"]

_SETTLED: Final = 60.0
"""Evidence of one record, in nats, that fails its clause: a clause needs some 25, and the share of a
record among all is no less than e^-20."""

_Drawn = CaseRecord | LawRecord | MixedRecord | PairsRecord | TailRecord


class Catch(msgspec.Struct, frozen=True, kw_only=True):
    """A clause that failed, and where it first showed.

    `draws` and `seconds` are counted from the start of the fault's run.
    """

    clause: str
    check: str
    draws: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record, and the draws and seconds spent when it was written."""

    record: _Drawn
    draws: int
    seconds: float


class Watch(ReportWriter):
    """Remembers the records of a fault's runs, each once."""

    def __init__(self) -> None:
        super().__init__(None)
        self._started = time.monotonic()
        self._seen: dict[tuple[str, str, str], _Seen] = {}
        self.draws = 0

    def write(self, record: Record) -> None:
        """Keep what was drawn."""
        if not isinstance(record, _Drawn):
            return
        key = (type(record).__name__, record.check, record.id)
        if key not in self._seen:
            self.draws += _draws(record)
            seconds = time.monotonic() - self._started
            self._seen[key] = _Seen(record, self.draws, seconds)

    def finished(self) -> Finished:
        """Return the cases that need not be asked again."""
        return gather(one.record for one in self._seen.values())

    def shows(self, clauses: Collection[str]) -> bool:
        """Return whether a record leaves no doubt that one of the clauses is broken."""
        return any(_settles(one.record, clause) for one in self for clause in clauses)

    def __iter__(self) -> Iterator[_Seen]:
        """Yield what was seen, in its order."""
        return iter(self._seen.values())


def _draws(record: _Drawn) -> int:
    if isinstance(record, PairsRecord):
        return record.rows * record.calls
    return record.draws


def of_evidence(decisions: Sequence[Decision], exact: Plan) -> tuple[Decision, ...]:
    """Return the failures that the exact cases of a whole run would not repeat."""
    repeated = {one.id for one in exact.cases}
    return tuple(
        one
        for one in decisions
        if one.verdict.status is Status.FAIL
        and (isinstance(one.verdict.certainty, LogE) or one.verdict.case not in repeated)
    )


def catches(decisions: Sequence[Decision], watch: Watch) -> tuple[Catch, ...]:
    """Return the clauses that failed, each with the record that showed it first.

    Args:
        decisions: of the fault's runs.
        watch: what it saw.

    """
    failed = [one.verdict for one in decisions if one.verdict.status is Status.FAIL]
    found = {}
    for verdict in failed:
        clause = str(verdict.clause)
        shown = next((one for one in watch if _shows(one.record, clause)), None)
        found[clause] = Catch(
            clause=clause,
            check="" if shown is None else shown.record.check,
            draws=verdict.draws if shown is None else shown.draws,
            seconds=round(verdict.seconds if shown is None else shown.seconds, 3),
        )
    return tuple(sorted(found.values(), key=lambda one: (one.seconds, one.clause)))


def _settles(record: _Drawn, clause: str) -> bool:
    """Whether this record fails the clause, whatever else is seen."""
    if isinstance(record, CaseRecord):
        return any(clause == one.clause for one in record.findings)
    if isinstance(record, PairsRecord):
        return clause == record.clause and record.log_e > _SETTLED
    return _shows(record, clause)


def _shows(record: _Drawn, clause: str) -> bool:
    """Whether this record is where a failed clause shows."""
    if isinstance(record, CaseRecord):
        return any(clause in (one.clause, *one.candidates) for one in record.findings)
    if isinstance(record, PairsRecord):
        return clause == record.clause and record.log_e > 0
    if isinstance(record, TailRecord):
        return clause == "draw.tail" and record.reached is False
    pooled = record.checkpoint is not None and record.checkpoint.pool_failed
    return clause == LAW and pooled

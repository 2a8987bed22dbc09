"""Finished cases: what an earlier run of the same plan, or its shards, have already found.

Laws come back from the checkpoint that their record ends with, since counts alone have lost the order
in which the learning bets saw them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from refsampler.clauses import ClauseId
from refsampler.conformance.case import CaseId
from refsampler.conformance.checks import Finding
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.checks.rows import EVERY_CASE
from refsampler.conformance.decisions import Tally
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.pool import ClausePool
from refsampler.conformance.findings import finding_of
from refsampler.conformance.plan import Plan, PlannedCase, PlannedLaw
from refsampler.conformance.records import (
    CaseRecord,
    Checkpoint,
    LawRecord,
    MixedRecord,
    Record,
    ReportWriter,
)
from refsampler.conformance.sequential import Sequential

__all__ = ["NOTHING", "Finished", "checkpoint", "gather", "plan_digest"]

_RETURNS: Final = ClauseId("output.returns")


@dataclass(frozen=True, slots=True)
class Finished:
    """Records of cases that need not be asked again.

    Attributes:
        cases: (check, id) -> record; those of laws hold what their draws showed.
        laws: id -> record; each was finished.
        latched: whether largest log E_c and latched FAILs of those laws come back too: they were
            looks of this very run, not of another shard.

    """

    cases: Mapping[tuple[str, CaseId], CaseRecord] = field(default_factory=dict)
    laws: Mapping[CaseId, LawRecord | MixedRecord] = field(default_factory=dict)
    latched: bool = True

    def book_case(self, one: PlannedCase, writer: ReportWriter, tally: Tally) -> bool:
        """Book a planned case if it is finished, and say whether it was."""
        record = self.cases.get((one.check.name, one.id))
        if record is None:
            return False
        writer.write(record)
        clauses = tuple(dict.fromkeys((*one.case.clauses, *EVERY_CASE)))
        if record.unasked:
            tally.skip(clauses, record.unasked)
            return True
        tally.book(one.case, _findings(record))
        tally.figures.update({ClauseId(clause): words for clause, words in record.figures})
        if record.crashed:
            tally.crashed |= {*clauses} - {_RETURNS}
            clauses = (_RETURNS,)
        tally.count(clauses, record.draws, record.seconds)
        return True

    def book_shown(self, planned: Sequential, writer: ReportWriter, tally: Tally) -> None:
        """Book what pairs and tails, which one shard judges alone, showed beside their evidence."""
        pairs = [(one.check, one.case) for one in planned.pairs]
        for check, case in (*pairs, *((one.check, one.case) for one in planned.tails)):
            record = self.cases.get((check.name, case.id))
            if record is not None:
                writer.write(record)
                tally.book(case, _findings(record))

    def book_law(
        self,
        one: PlannedLaw | PlannedMixed,
        writer: ReportWriter,
        tally: Tally,
        pool: ClausePool,
    ) -> LawRecord | MixedRecord | None:
        """Book a planned law if it is finished, and return its record."""
        record = self.laws.get(one.case.id)
        if record is None or record.checkpoint is None:
            return None
        shown = self.cases.get((one.check.name, one.case.id))
        if shown is not None:
            writer.write(shown)
            tally.book(one.case, _findings(shown))
        said = record.checkpoint
        if said.components:
            pool.update(_evidence(one, said))
        if self.latched:
            pool.log_e_max, pool.best = said.pool_log_e_max, _component(said.pool_best)
            pool.failed = said.pool_failed
        writer.write(_with_pool(record, said, pool))
        finished = one.case.clauses if shown is None else ()
        tally.count(finished, record.draws, record.seconds)
        return record


NOTHING: Final = Finished()


def gather(records: Iterable[Record], *, latched: bool = True) -> Finished:
    """Return what some records say is finished; minimal cases and laws cut short are not."""
    cases: dict[tuple[str, CaseId], CaseRecord] = {}
    laws: dict[CaseId, LawRecord | MixedRecord] = {}
    for record in records:
        if isinstance(record, CaseRecord) and record.shrunk_from is None:
            cases[record.check, record.id] = record
        if isinstance(record, LawRecord | MixedRecord) and record.checkpoint is not None:
            laws[record.id] = record
    return Finished(cases, laws, latched)


def checkpoint(evidence: CaseEvidence | None, pool: ClausePool) -> Checkpoint:
    """Return what a law and its clause say at the end of the law; None if nothing was drawn."""
    return Checkpoint(
        components=() if evidence is None else tuple(_finite(evidence.log_components)),
        log_e=0.0 if evidence is None else evidence.log_e,
        best=("", 0.0, 0.0) if evidence is None else _plain(evidence.best),
        cells=0 if evidence is None else evidence.draws,
        skipped=0 if evidence is None else evidence.skipped,
        outside=0 if evidence is None else evidence.outside,
        pool_log_e_max=pool.log_e_max,
        pool_best=_plain(pool.best),
        pool_failed=pool.failed,
    )


def plan_digest(plan: Plan) -> str:
    """Return a hash of everything that is asked, whichever part of it a run takes."""
    digest = hashlib.sha256(f"{plan.profile}/{plan.glob}/{plan.run_seed}".encode())
    for one in plan.cases:
        digest.update(f"{one.check.name}/{one.id}/{one.draws}\n".encode())
    for law in plan.laws:
        digest.update(f"{law.check.name}/{law.case.id}/{law.least}/{law.draws}\n".encode())
    for mixed in plan.mixed:
        digest.update(f"{mixed.check.name}/{mixed.case.id}/{mixed.draws}\n".encode())
    for case in plan.sequential.cases:
        digest.update(f"{case.id}\n".encode())
    return digest.hexdigest()[:16]


def _evidence(one: PlannedLaw | PlannedMixed, said: Checkpoint) -> CaseEvidence:
    return CaseEvidence(
        case=one.case.id,
        log_e=said.log_e,
        log_components=tuple(-math.inf if x is None else x for x in said.components),
        best=_component(said.best),
        draws=said.cells,
        skipped=said.skipped,
        outside=said.outside,
    )


def _with_pool(
    record: LawRecord | MixedRecord, said: Checkpoint, pool: ClausePool
) -> LawRecord | MixedRecord:
    """Return the record as this run would have written it: with what its own clause says now."""
    now = msgspec.structs.replace(
        said,
        pool_log_e_max=pool.log_e_max,
        pool_best=_plain(pool.best),
        pool_failed=pool.failed,
    )
    return msgspec.structs.replace(record, checkpoint=now)


def _finite(values: Iterable[float]) -> list[float | None]:
    """JSON knows no infinity."""
    return [value if math.isfinite(value) else None for value in values]


def _plain(one: Component) -> tuple[str, float | None, float | None]:
    log_e, weighted = _finite((one.log_e, one.log_weighted))
    return one.name, log_e, weighted


def _component(plain: tuple[str, float | None, float | None]) -> Component:
    name, log_e, weighted = plain
    return Component(
        name, -math.inf if log_e is None else log_e, -math.inf if weighted is None else weighted
    )


def _findings(record: CaseRecord) -> tuple[Finding, ...]:
    return tuple(finding_of(one) for one in record.findings)

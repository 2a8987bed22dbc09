"""Shrinking: a smaller case of each clause that only generated batches broke."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.caserun import case_record, judge_case
from refsampler.conformance.checks import Check, Finding
from refsampler.conformance.checks.generated import strategy_for
from refsampler.conformance.decisions import Tally
from refsampler.conformance.examples import shrink
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.plan import Plan
from refsampler.conformance.records import ReportWriter

__all__ = ["shrink_generated"]

_SHRINK_SECONDS = 15.0


def shrink_generated(subject: AskedSubject, plan: Plan, writer: ReportWriter, tally: Tally) -> None:
    """Look for a smaller case of each clause that only generated batches broke."""
    generated = {one.id: one for one in plan.cases if one.check.name == "generated-batches"}
    deadline = time.monotonic() + _SHRINK_SECONDS
    for clause, found in tally.blamed().items():
        if any(case.id not in generated for case, _ in found):
            continue
        first = found[0][0]
        check = generated[first.id].check
        search = _Search(subject, check, first.clauses, clause)
        strategy = strategy_for(subject.capabilities)
        smallest = shrink(strategy, search.fails, plan.run_seed, len(generated), deadline)
        if smallest is not None:
            case = replace(smallest, clauses=first.clauses)
            findings = search.seen[smallest.id]
            writer.write(case_record(check, case, findings, 0, 0.0, shrunk_from=first.id))
            tally.book(case, tuple(replace(one, candidates=(clause,)) for one in findings[:1]))


@dataclass(frozen=True, slots=True)
class _Search:
    """Asks whether smaller cases break the clause too."""

    subject: AskedSubject
    check: Check
    clauses: tuple[ClauseId, ...]
    clause: ClauseId
    seen: dict[str, tuple[Finding, ...]] = field(default_factory=dict)

    def fails(self, case: Case) -> bool:
        """Judge a candidate; nothing that goes wrong here changes a verdict."""
        try:
            judged = judge_case(self.subject, self.check, replace(case, clauses=self.clauses))
        except Exception:  # noqa: BLE001 - a candidate that cannot be judged is no smaller case
            return False
        self.seen[case.id] = tuple(
            replace(one, clause=self.clause)
            for one in judged.findings
            if self.clause in (one.clause, *one.candidates)
        )
        return bool(self.seen[case.id])

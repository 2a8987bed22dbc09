"""Plans that are more or less than `make_plan` makes: with recorded cases, or one case alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.checks.base import Check
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.checks.recorded import CHECKS, recorded_cases
from refsampler.conformance.checks.rows import EVERY_CASE
from refsampler.conformance.checks.tail import PlannedTail
from refsampler.conformance.plan import Plan, PlannedCase, PlannedLaw
from refsampler.conformance.sequential import Sequential

__all__ = ["plan_of", "with_recorded"]


def with_recorded(plan: Plan, path: Path) -> Plan:
    """Return the plan with a case for each row of a file of recorded logits.

    Raises:
        RecordingError: the file cannot be read.

    """
    (check,) = CHECKS
    added = tuple(
        PlannedCase(check, case, case.id, encode_case(case), len(case.requests) * case.calls, 0.0)
        for case in recorded_cases(path, plan.capabilities)
    )
    counts = Counter(plan.planned)
    for one in added:
        counts.update({*one.case.clauses, *EVERY_CASE})
    return replace(plan, cases=(*plan.cases, *added), planned=dict(counts))


def plan_of(plan: Plan, check: Check, case: Case) -> Plan | None:
    """Return the part of a plan that draws one case which evidence judges; None if there is none."""

    def meant(one: PlannedLaw | PlannedMixed | PlannedTail | PlannedPairs) -> bool:
        return one.check.name == check.name and one.case.id == case.id

    laws = tuple(one for one in plan.laws if meant(one))
    mixed = tuple(one for one in plan.mixed if meant(one))
    tails = tuple(one for one in plan.sequential.tails if meant(one))
    pairs = tuple(one for one in plan.sequential.pairs if meant(one))
    if not (laws or mixed or tails or pairs):
        return None
    return replace(
        plan,
        standings=tuple(one for one in plan.standings if one[0].id in case.clauses),
        cases=(),
        laws=laws,
        mixed=mixed,
        sequential=Sequential(tails, pairs),
        planned=dict.fromkeys(case.clauses, 1),
    )

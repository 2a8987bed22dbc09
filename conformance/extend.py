"""Plans that are more or less than `make_plan` makes: with recorded cases, or one case alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.checks.base import Check
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.law import prepare
from refsampler.conformance.checks.mixed import PlannedMixed, mixed_power
from refsampler.conformance.checks.recorded import (
    CHECKS,
    law_draws,
    recorded_cases,
    recorded_laws,
)
from refsampler.conformance.checks.rows import EVERY_CASE
from refsampler.conformance.checks.steps import PlannedSteps
from refsampler.conformance.checks.tail import PlannedTail
from refsampler.conformance.plan import LAW, Plan, PlannedCase, PlannedLaw
from refsampler.conformance.sequential import Sequential

__all__ = ["plan_of", "with_recorded"]


def with_recorded(plan: Plan, path: Path) -> Plan:
    """Return the plan with a case and a law for each row of a file of recorded logits.

    The laws join those of `draw.law` before the first draw, with equal weights, so that the run
    still fails a right backend at most as often as it promises.

    Raises:
        RecordingError: the file cannot be read.

    """
    of_rows, of_laws = CHECKS
    added = tuple(
        PlannedCase(of_rows, case, case.id, encode_case(case), len(case.requests) * case.calls, 0.0)
        for case in recorded_cases(path, plan.capabilities)
    )
    owned = {clause.id for clause, stands in plan.standings if stands.status is None}
    cases = tuple(recorded_laws(path, plan.capabilities)) if LAW in owned else ()
    laws = tuple(
        PlannedLaw(of_laws, case, draws, prepare(case, plan.capabilities), least=draws)
        for case in cases
        for draws in (law_draws(case.logits.vocab, len(cases), plan.profile),)
    )
    counts = Counter(plan.planned)
    for one in added:
        counts.update({*one.case.clauses, *EVERY_CASE})
    for law in laws:
        counts.update({*law.case.clauses})
    plan = replace(plan, cases=(*plan.cases, *added), planned=dict(counts))
    return _with_laws(plan, laws) if laws else plan


def _with_laws(plan: Plan, added: tuple[PlannedLaw, ...]) -> Plan:
    """Add laws; what one batch shows by itself is less now, as each case has a smaller weight.

    What the designed laws show together stays: more draws of other rows never lose it (`lawsize`).
    """
    laws = (*plan.laws, *added)
    count = len(laws) + len(plan.mixed)
    powers = plan.would_see[: len(plan.would_see) - len(plan.mixed)]
    powers += tuple(mixed_power(one, plan.log_threshold, count) for one in plan.mixed)
    return replace(plan, laws=laws, would_see=powers)


def plan_of(plan: Plan, check: Check, case: Case) -> Plan | None:
    """Return the part of a plan that draws one case which evidence judges; None if there is none."""

    def meant(one: PlannedLaw | PlannedMixed | PlannedTail | PlannedPairs | PlannedSteps) -> bool:
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

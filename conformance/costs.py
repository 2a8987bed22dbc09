"""Costs: the seconds that a plan is expected to take, and what a time budget leaves out.

Measured with the native sampler on one core of a busy two-core machine; a backend that takes longer
is seen to do so as the run goes on, and the time left is scaled by what it took so far.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from refsampler.conformance.plan import Plan, PlannedCase, PlannedLaw

__all__ = ["expected_seconds", "left_out", "total_seconds"]

_CASE_S: Final = 0.008
_ROW_S: Final = 6e-5
_LOGIT_S: Final = 1.2e-7
_LAW_LOGIT_S: Final = 1.2e-7


def expected_seconds(plan: Plan) -> tuple[float, ...]:
    """Return the seconds of every case and then of every law, in the order of the run."""
    cases = [_case_seconds(one) for one in plan.cases]
    return (*cases, *(_law_seconds(one) for one in plan.laws))


def total_seconds(plan: Plan) -> float:
    """Return the seconds of the whole run."""
    return sum(expected_seconds(plan))


def left_out(plan: Plan, time_budget: float) -> tuple[str, ...]:
    """Return the clauses that a time budget leaves INCONCLUSIVE, if costs are as expected."""
    spent = accumulate(expected_seconds(plan), initial=0.0)
    planned: tuple[PlannedCase | PlannedLaw, ...] = (*plan.cases, *plan.laws)
    late = [one for one, before in zip(planned, spent, strict=False) if before >= time_budget]
    late_clauses = {clause for one in late for clause in one.case.clauses}
    return tuple(
        str(clause.id)
        for clause, stands in plan.standings
        if stands.status is None and clause.id in late_clauses
    )


def _case_seconds(one: PlannedCase) -> float:
    return _CASE_S + one.draws * (_ROW_S + _LOGIT_S * one.case.logits.vocab)


def _law_seconds(one: PlannedLaw) -> float:
    return one.draws * one.case.logits.vocab * _LAW_LOGIT_S

"""Costs: the seconds that a plan is expected to take, and what a time budget leaves out.

Measured with the native sampler on one core of a busy two-core machine; a backend that takes longer
is seen to do so as the run goes on, and the time left is scaled by what it took so far.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.checks.steps import PlannedSteps
from refsampler.conformance.checks.tail import PlannedTail
from refsampler.conformance.lawsize import draw_seconds
from refsampler.conformance.plan import Plan, PlannedCase, PlannedLaw

__all__ = ["expected_seconds", "group_seconds", "left_out", "total_seconds"]

_CASE_S: Final = 0.008
_ROW_S: Final = 6e-5
_LOGIT_S: Final = 1.2e-7
_BUSY: Final = 2.0
_PLAIN_LOGIT_S: Final = 4e-8
_PAIR_S: Final = 0.3
_MIXED_LOGIT_S: Final = 6e-7
_STEP_S: Final = 1e-4

_Drawn = PlannedLaw | PlannedMixed | PlannedPairs | PlannedSteps | PlannedTail


def expected_seconds(plan: Plan) -> tuple[float, ...]:
    """Return the seconds of every case, pairing, law and tail, in the order of the run."""
    cases = [_case_seconds(one) for one in plan.cases]
    return (*cases, *(_law_seconds(one) for one in _by_evidence(plan)))


def group_seconds(plan: Plan) -> tuple[tuple[str, float], ...]:
    """Return the seconds of every check, in the order of the run."""
    spent: dict[str, float] = {}
    planned = (*plan.cases, *_by_evidence(plan))
    for one, seconds in zip(planned, expected_seconds(plan), strict=True):
        spent[one.check.name] = spent.get(one.check.name, 0.0) + seconds
    return tuple(spent.items())


def total_seconds(plan: Plan) -> float:
    """Return the seconds of the whole run."""
    return sum(expected_seconds(plan))


def left_out(plan: Plan, time_budget: float) -> tuple[str, ...]:
    """Return the clauses that a time budget leaves INCONCLUSIVE, if costs are as expected."""
    spent = accumulate(expected_seconds(plan), initial=0.0)
    planned: tuple[PlannedCase | _Drawn, ...] = (*plan.cases, *_by_evidence(plan))
    late = [one for one, before in zip(planned, spent, strict=False) if before >= time_budget]
    late_clauses = {clause for one in late for clause in one.case.clauses}
    return tuple(
        str(clause.id)
        for clause, stands in plan.standings
        if stands.status is None and clause.id in late_clauses
    )


def _case_seconds(one: PlannedCase) -> float:
    if one.check.seconds:
        return one.check.seconds
    return _CASE_S + one.draws * (_ROW_S + _LOGIT_S * one.case.logits.vocab)


def _by_evidence(plan: Plan) -> tuple[_Drawn, ...]:
    return (*plan.sequential.pairs, *plan.laws, *plan.mixed, *plan.sequential.tails)


def _law_seconds(one: _Drawn) -> float:
    vocab = one.case.logits.vocab
    if isinstance(one, PlannedSteps):
        return one.draws * _STEP_S
    if isinstance(one, PlannedLaw):
        return _BUSY * one.draws * draw_seconds(one.case)
    each = _MIXED_LOGIT_S if isinstance(one, PlannedMixed) else _PLAIN_LOGIT_S
    looked = _PAIR_S if isinstance(one, PlannedPairs) else 0.0
    return looked + one.draws * vocab * each

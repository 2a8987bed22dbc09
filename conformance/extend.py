"""Extending a plan by cases of the user's own, before anything runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from refsampler.conformance.case import encode_case
from refsampler.conformance.checks.recorded import CHECKS, recorded_cases
from refsampler.conformance.checks.rows import EVERY_CASE
from refsampler.conformance.plan import Plan, PlannedCase

__all__ = ["with_recorded"]


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

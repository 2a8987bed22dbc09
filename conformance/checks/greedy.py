"""Greedy rows: the argmax, ties, the threshold, greedy beside random rows."""

from __future__ import annotations

from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed import greedy

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    Check(
        "greedy-argmax",
        clause_ids("greedy.argmax"),
        Kind.EXACT,
        lambda _capabilities, _run_seed: greedy.argmax_cases(),
    ),
    Check(
        "greedy-ties",
        clause_ids("greedy.tie"),
        Kind.EXACT,
        lambda _capabilities, _run_seed: greedy.tie_cases(),
    ),
    Check(
        "greedy-threshold",
        clause_ids("greedy.threshold"),
        Kind.NEAR_CERTAIN,
        lambda _capabilities, _run_seed: greedy.threshold_cases(),
    ),
    Check(
        "greedy-mixed",
        clause_ids("greedy.mixed", "greedy.argmax"),
        Kind.EXACT,
        lambda _capabilities, _run_seed: greedy.mixed_cases(),
    ),
)

"""Batches: isolation, permutation and size, each arrangement against the exact law."""

from __future__ import annotations

from dataclasses import replace

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed import batches

__all__ = ["CHECKS", "reordered"]


def reordered(case: Case, rows: list[int]) -> Case:
    """Return the batch of these rows of a case, in this order."""
    recipe = replace(case.logits, rows=tuple(case.logits.rows[row] for row in rows))
    return replace(case, logits=recipe, requests=tuple(case.requests[row] for row in rows))


def _alone(case: Case) -> tuple[Case, ...]:
    """Return the batch, then rows by themselves."""
    return (case, *(reordered(case, [row]) for row in range(min(len(case.requests), 11))))


def _permuted(case: Case) -> tuple[Case, ...]:
    """Return the batch as it is, backwards, and by a stride."""
    count = len(case.requests)
    strided = sorted(range(count), key=lambda row: (row % 3, row))
    return (case, reordered(case, list(range(count))[::-1]), reordered(case, strided))


def _permutations(_capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    clause = clause_ids("batch.permutation")
    return tuple(replace(case, clauses=clause) for case in batches.isolation_cases())


CHECKS: tuple[Check, ...] = (
    Check(
        "rows-beside-others",
        clause_ids("batch.isolation"),
        Kind.NEAR_CERTAIN,
        lambda _capabilities, _run_seed: batches.isolation_cases(),
        arrange=_alone,
    ),
    Check(
        "rows-permuted",
        clause_ids("batch.permutation"),
        Kind.NEAR_CERTAIN,
        _permutations,
        arrange=_permuted,
    ),
    Check(
        "batch-sizes",
        clause_ids("batch.size"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _run_seed: batches.size_cases(capabilities),
    ),
)

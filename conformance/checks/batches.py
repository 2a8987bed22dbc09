"""Batches: isolation, permutation and size, each arrangement against the exact law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import bdtrc

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Finding, Kind, Trial, clause_ids
from refsampler.conformance.designed import batches

__all__ = ["CHECKS", "reordered"]

_FRESH = ClauseId("seed.effect")
_UNLIKELY = 1e-16
"""Least probability of an id's count, by the law and between the two sizes."""


def reordered(case: Case, rows: list[int]) -> Case:
    """Return the batch of these rows of a case, in this order."""
    recipe = replace(case.logits, rows=tuple(case.logits.rows[row] for row in rows))
    return replace(case, logits=recipe, requests=tuple(case.requests[row] for row in rows))


def _alone(case: Case) -> tuple[Case, ...]:
    """Return the batch, then rows by themselves."""
    return (case, *(reordered(case, [row]) for row in range(min(len(case.requests), 11))))


def _beside_alone(case: Case) -> tuple[Case, ...]:
    """Return the batch of equal rows, then one of them by itself."""
    return (case, reordered(case, [0]))


def _judge_beside(trial: Trial) -> tuple[Finding, ...]:
    """Find an id that comes too often for the law, and in the batch alone.

    A law that is wrong in every batch breaks other clauses; hence the second, conditional test, which
    holds for whatever law the single row has.  A single row that gives one id for ever shows nothing
    if its noise is not fresh.
    """
    together, single = (
        np.concatenate([draw.ids for draw in one.draws]) for one in trial.arrangements
    )
    rows, vocab = len(trial.case.requests), trial.case.logits.vocab
    for token in range(vocab):
        here, there = int((together == token).sum()), int((single == token).sum())
        draws = len(together) + len(single)
        by_law = bdtrc(here - 1, len(together), 1 / vocab) if here else 1.0
        if by_law <= _UNLIKELY and _by_size(here, there, len(together), draws) <= _UNLIKELY:
            return (
                Finding(
                    trial.case.clauses[0],
                    f"id {token} with probability 1/{vocab} in a batch of {rows}, as by itself",
                    f"in {here} of {len(together)} draws; by itself in {there} of {len(single)}",
                    vocab * _UNLIKELY,
                    unless=_FRESH if len(np.unique(single)) == 1 else None,
                ),
            )
    return ()


def _by_size(here: int, there: int, together: int, draws: int) -> float:
    """Return the probability of so many here, given how many came in all."""
    # half a second to import, in every process of a run; and hardly any run gets here
    from scipy.stats import hypergeom

    return float(hypergeom.sf(here - 1, draws, here + there, together))


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
    Check(
        "sizes-beside-alone",
        clause_ids("batch.size"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _run_seed: batches.flat_size_cases(capabilities),
        _judge_beside,
        arrange=_beside_alone,
    ),
)

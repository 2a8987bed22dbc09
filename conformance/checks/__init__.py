"""Checks: one file for each clause group; `all_checks()` is what a run can plan."""

from __future__ import annotations

from functools import cache

from refsampler.conformance.checks.base import Arrangement, Check, Finding, Kind, Trial

__all__ = ["Arrangement", "Check", "Finding", "Kind", "Trial", "all_checks"]


@cache
def all_checks() -> tuple[Check, ...]:
    """Return every check, in the order in which a run takes them: cheap and exact first."""
    from refsampler.conformance.checks import (
        admission,
        batches,
        corpus,
        cost,
        effects,
        ends,
        filters,
        generated,
        greedy,
        independence,
        inputs,
        large,
        law,
        logprobs,
        metadata,
        mixed,
        modes,
        processes,
        processors,
        recorded,
        refusals,
        seeds,
        sessions,
        speculative,
        steps,
        sums,
        tail,
        tail_dtypes,
        texts,
    )
    from refsampler.conformance.fuzz import channels

    groups = (
        corpus,
        greedy,
        filters,
        processors,
        effects,
        inputs,
        metadata,
        batches,
        seeds,
        processes,
        tail_dtypes,
        logprobs,
        modes,
        refusals,
        admission,
        sessions,
        speculative,
        texts,
        cost,
        generated,
        recorded,
        large,
        ends,
        sums,
        independence,
        steps,
        law,
        mixed,
        tail,
    )
    return (*(check for group in groups for check in group.CHECKS), *channels.CHECKS)

"""Generated batches: anything legal, judged by exact oracles only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from hypothesis.strategies import SearchStrategy

from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.examples import collect
from refsampler.conformance.strategies import EVERYTHING, cases

__all__ = ["CHECKS", "COUNT", "legal_features", "strategy_for"]

COUNT = 200
"""Batches a run."""

_CLAUSES = clause_ids(
    "output.returns", "output.form", "output.range", "draw.support", "input.untouched"
)


def legal_features(capabilities: Capabilities) -> frozenset[Feature]:
    """Return what generated requests may ask: around a kernel the pipeline does the rest."""
    if capabilities.level > 1:
        return capabilities.features
    return EVERYTHING - {Feature.SEED} | (capabilities.features & {Feature.SEED})


def strategy_for(capabilities: Capabilities) -> SearchStrategy[Case]:
    """Return the strategy of cases that are legal for the backend."""
    return _legal(legal_features(capabilities), capabilities.dtypes)


def _legal(features: frozenset[Feature], dtypes: Iterable[DType]) -> SearchStrategy[Case]:
    return cases(features=features, dtypes=sorted(dtypes))


def _generated(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    return _collected(legal_features(capabilities), capabilities.dtypes, COUNT, run_seed)


# a second plan with the same seed need not wait for Hypothesis again, which takes seconds
@lru_cache(maxsize=4)
def _collected(
    features: frozenset[Feature], dtypes: frozenset[DType], count: int, run_seed: int
) -> tuple[Case, ...]:
    found = collect(_legal(features, dtypes), count, run_seed)
    return tuple(replace(case, clauses=_CLAUSES) for case in found)


CHECKS: tuple[Check, ...] = (Check("generated-batches", _CLAUSES, Kind.EXACT, _generated),)

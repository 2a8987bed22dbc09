"""Generated batches: anything legal, judged by exact oracles only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis.strategies import SearchStrategy

from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.examples import collect
from refsampler.conformance.strategies import EVERYTHING, cases

__all__ = ["CHECKS", "COUNT", "generated", "keep", "legal_features", "strategy_for"]

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


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the batches of a run depend on."""

    features: frozenset[Feature]
    dtypes: frozenset[DType]
    count: int
    run_seed: int


_LAST_RUNS = 4
_drawn: dict[_Wish, tuple[Case, ...]] = {}
"""A second plan with the same seed need not wait for Hypothesis again, which takes seconds."""


def generated(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    """Return the batches of a run."""
    wish = _wish(capabilities, run_seed)
    if wish not in _drawn:
        found = collect(_legal(wish.features, wish.dtypes), wish.count, run_seed)
        keep(capabilities, run_seed, [replace(case, clauses=_CLAUSES) for case in found])
    return _drawn[wish]


def keep(capabilities: Capabilities, run_seed: int, batches: Iterable[Case]) -> None:
    """Take what `generated` would return from another process that drew it."""
    for old in list(_drawn)[: 1 - _LAST_RUNS]:
        del _drawn[old]
    _drawn[_wish(capabilities, run_seed)] = tuple(batches)


def _wish(capabilities: Capabilities, run_seed: int) -> _Wish:
    return _Wish(legal_features(capabilities), capabilities.dtypes, COUNT, run_seed)


CHECKS: tuple[Check, ...] = (Check("generated-batches", _CLAUSES, Kind.EXACT, generated),)

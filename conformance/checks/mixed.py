"""Heterogeneous batches in `draw.law`: every row another law, drawn once a call.

Rows of one law hide a row that takes its neighbour's logits or parameters; here that is a wrong law
of its own, declared and bet on beside the bank's alternatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed.laws import mixed_case
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray
from refsampler.conformance.evidence.hetero import HeteroBatch, HeteroProcess, neighbours
from refsampler.conformance.evidence.pool import case_log_threshold
from refsampler.conformance.verdict import Power
from refsampler.law import target_law
from refsampler.semantics import Semantics

__all__ = ["CHECKS", "WRONG", "PlannedMixed", "mixed_power", "plan_mixed", "stray_power"]

WRONG: Final = (
    "law of the row before",
    "law of the row after",
    "temperature of the row before",
    "temperature of the row after",
)
"""Declared wrong laws, in the order of every batch."""

_CALLS: Final = {"quick": 8, "full": 64}
_LEAST_CALLS: Final = 1
_BET_RATE: Final = 0.1  # one of the declared rates
_STRAY_RATE: Final = 0.02
_S_GRID: Final = np.geomspace(0.05, 3.0, 15)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMixed:
    """A planned batch of which every row has another law.

    Attributes:
        check: that it belongs to.
        case: the batch and how often it is drawn.
        logprobs: [rows, vocab] exact.
        core: [rows, vocab] ids that every right backend keeps.
        hull: [rows, vocab] ids that a right backend may keep.
        wrong: per declared wrong law its probabilities [rows, vocab], up to a constant per row.
        delta: [rows] radius of the null.

    """

    check: Check
    case: Case
    logprobs: FloatArray
    core: BoolArray
    hull: BoolArray
    wrong: tuple[FloatArray, ...]
    delta: FloatArray

    @property
    def draws(self) -> int:
        """How many ids are drawn."""
        return len(self.case.requests) * self.case.calls

    def process(self) -> HeteroProcess:
        """Return the evidence before the first draw."""
        return HeteroProcess(self.case.id, WRONG)

    def batch(self, ids: np.ndarray) -> HeteroBatch:
        """Return one call whose draws are ids [rows]."""
        return HeteroBatch(self.logprobs, self.core, self.hull, ids, self.delta, self.wrong)


@dataclass(frozen=True, slots=True, eq=False)
class _Laws:
    """What the rows are under some semantics; magnitude is M of every row."""

    logprobs: FloatArray
    core: BoolArray
    hull: BoolArray
    wrong: tuple[FloatArray, ...]
    magnitude: FloatArray


@lru_cache(maxsize=2)
def _laws(semantics: Semantics) -> _Laws:
    """Return the laws; a second of work, and the same for every plan."""
    case = mixed_case(_LEAST_CALLS)
    logits = case.logits.build(case.dtype.torch)
    law = target_law(logits, case.requests, semantics, thinking=case.thinking)
    logprobs = law.logprobs.numpy().astype(np.float64)
    probs = np.exp(logprobs)
    own = logits.numpy().astype(np.float64)
    own = own - own.max(axis=1, keepdims=True)
    heat = np.array([[one.params.temperature] for one in case.requests])
    # a bet may be any score: of the neighbour's parameters the temperature alone is enough
    wrong = (
        neighbours(probs),
        neighbours(probs, -1),
        np.exp(own / neighbours(heat)),
        np.exp(own / neighbours(heat, -1)),
    )
    core = (law.core & ~law.lumped).numpy()
    hull = (law.hull | law.lumped).numpy()
    return _Laws(logprobs, core, hull, wrong, law.magnitude.numpy().astype(np.float64))


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return the quick batch; none where it is not planned."""
    return () if _unplanned(capabilities) else (mixed_case(_CALLS["quick"]),)


def plan_mixed(capabilities: Capabilities, profile: str) -> tuple[tuple[PlannedMixed, ...], str]:
    """Return the planned batch, or none and why in words.

    The tolerance of a row is that of a law: the declared delta and 2^-23 M.
    """
    why = _unplanned(capabilities)
    if why:
        return (), why
    laws = _laws(capabilities.semantics)
    delta = capabilities.delta + 2.0**-23 * laws.magnitude
    case = mixed_case(_CALLS[profile])
    made = (CHECKS[0], case, laws.logprobs, laws.core, laws.hull, laws.wrong, delta)
    return (PlannedMixed(*made),), ""


def _unplanned(capabilities: Capabilities) -> str:
    case = mixed_case(_LEAST_CALLS)
    elements = len(case.requests) * case.logits.vocab
    if capabilities.level == 3:
        return "rows of mixed laws: an engine admits every row as a request of its own"
    if capabilities.max_elements is not None and capabilities.max_elements < elements:
        return f"rows of mixed laws: they are {elements} logits a call"
    return ""


def mixed_power(one: PlannedMixed, log_threshold: float, cases: int) -> Power:
    """Return how surely the batch alone shows rows that take the law of the row before.

    Chernoff's bound for the bet on that law in as many rows; draws outside the core are silent.

    Args:
        one: the batch.
        log_threshold: of the clause, ln(1/alpha).
        cases: of the clause, with equal weights.

    """
    name = f"{WRONG[0]} in {100 * _BET_RATE:g} %"
    weight = next(bet.weight for bet in one.process().bets if bet.name == name)
    limit = case_log_threshold(log_threshold, 1 / cases) - math.log(weight)
    right = _on(one.core, np.exp(one.logprobs))
    other = one.wrong[0] / one.wrong[0].sum(axis=1, keepdims=True)
    given = _on(one.core, other)
    ratio = np.where(one.core, given / np.maximum(right, 1e-300), 1.0)
    score = np.clip(1 + _BET_RATE * (ratio - 1), 1 / 20, 20.0)
    span = score.max(axis=1) - score.min(axis=1)
    log_e = np.log(score / ((right * score).sum(axis=1) + one.delta * span)[:, None])
    drawn = np.where(one.core, (1 - _BET_RATE) * right + _BET_RATE * other, 0.0)
    silent = np.maximum(1 - drawn.sum(axis=1), 0.0)
    miss = min(
        s * limit
        + one.case.calls * float(np.log((drawn * np.exp(-s * log_e)).sum(axis=1) + silent).sum())
        for s in _S_GRID
    )
    bias = f"law of the row before in {_BET_RATE:.0%} of mixed rows"
    return Power(bias, max(0.0, -math.expm1(miss)))


def stray_power(one: PlannedMixed) -> Power:
    """Return how surely rows that take the law of the row before draw an id outside the hull.

    One such id fails a filter's clause or `batch.isolation`, and costs no false alarm.
    """
    other = one.wrong[0] / one.wrong[0].sum(axis=1, keepdims=True)
    outside = np.where(one.hull, 0.0, other).sum(axis=1)
    miss = one.case.calls * float(np.log1p(-_STRAY_RATE * np.minimum(outside, 1.0)).sum())
    return Power(f"law of the row before in {_STRAY_RATE:.0%} of mixed rows", -math.expm1(miss))


def _on(core: BoolArray, law: FloatArray) -> FloatArray:
    """Return laws [rows, vocab] given the core; uniform where they have no mass there."""
    kept = np.where(core, law, 0.0)
    kept = np.where(kept.sum(axis=1, keepdims=True) > 0, kept, core)
    given: FloatArray = kept / kept.sum(axis=1, keepdims=True)
    return given


CHECKS: tuple[Check, ...] = (Check("mixed-rows", clause_ids("draw.law"), Kind.MIXED, _cases),)

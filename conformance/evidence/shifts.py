"""Shifted and mirrored noise: y is x plus a constant, or a constant minus x, for flat rows.

For two independent draws x, y of a flat law of n ids, (y - x) mod n and (y + x) mod n are flat too.
Given x, if the law of y is within TV delta of flat, so is the law of either, hence of either folded
into buckets.  So a learnt bet on them (`generic`) is an e-process over disjoint pairs: it finds
affine, stratified and antithetic noise without being told the constant.

Pairs of one call are multiplied, and different calls averaged, as in `independence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.generic import LearntBet, log_mean
from refsampler.conformance.evidence.independence import PairProcess
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.pairings import Lag

__all__ = ["PAIR_SHARE", "ShiftProcess", "ShiftedPairs"]

PAIR_SHARE: Final = 0.75
"""Weight of the declared couplings; the rest is on shifts."""

_BUCKETS: Final = 16
_FIRST: Final = 32
_GROWTH: Final = 2.0
_MOST_LAGS: Final = 6


class ShiftProcess:
    """The evidence about shifts within calls of equal flat rows.

    Args:
        ids: n, every id of the vocabulary equally likely.
        lags: pairings; those within a call are used, the first few and the last.
        delta: tolerance of the law in total variation.
        calls: planned, over which evidence is averaged.

    """

    def __init__(self, ids: int, lags: Sequence[Lag], delta: float, calls: int) -> None:
        inside = [lag for lag in lags if lag.calls == 0]
        self._lags = (*inside[: _MOST_LAGS - 1], *inside[_MOST_LAGS - 1 :][-1:])
        self._ids, self._delta, self._calls = ids, delta, calls
        self._called = 0
        words = [
            f"{what} by a constant, {lag.name}"
            for lag in self._lags
            for what in ("shifted", "mirrored")
        ]
        self.names = tuple(f"{one}{grain}" for one in words for grain in ("", " nearly"))
        self._sum: FloatArray = np.full(len(self.names), -np.inf)

    def update(self, draws: IntArray) -> None:
        """Take one call, ids [rows] of the vocabulary."""
        if not self._lags:
            return
        self._called += 1
        if self._called > self._calls:
            raise ValueError(f"call {self._called} is refused: {self._calls} were planned")
        gains = []
        for lag in self._lags:
            x, y = lag.within(draws)
            for moved in ((y - x) % self._ids, (y + x) % self._ids):
                gains.append(self._learnt(moved, self._ids))
                gains.append(self._learnt(moved * _BUCKETS // self._ids, _BUCKETS))
        self._sum = np.logaddexp(self._sum, np.array(gains))

    def _learnt(self, values: IntArray, buckets: int) -> float:
        probs = np.bincount(np.arange(self._ids) * buckets // self._ids, minlength=buckets) / float(
            self._ids
        )
        bet = LearntBet(probs, self._delta)
        start, size = 0, _FIRST
        while start < values.size:
            bet.update(np.bincount(values[start : start + size], minlength=buckets))
            start, size = start + size, math.ceil(size * _GROWTH)
        return bet.log_e

    @property
    def log_each(self) -> FloatArray:
        """Return log e of every bet of `names`."""
        left = self._calls - self._called
        total = np.logaddexp(self._sum, math.log(left) if left else -np.inf)
        return np.asarray(total - math.log(self._calls), dtype=np.float64)


class ShiftedPairs:
    """Declared couplings and, within calls, shifts: one e-process.

    Args:
        pairs: the declared couplings.
        ids: of the flat law.
        lags: pairings of the shifts; without one within a call there are none.
        delta: tolerance of the law in total variation.
        calls: planned.

    """

    def __init__(
        self, pairs: PairProcess, ids: int, lags: Sequence[Lag], delta: float, calls: int
    ) -> None:
        self.pairs = pairs
        self._ids = ids
        self._shifts = ShiftProcess(ids, lags, delta, calls)

    def update(self, draws: IntArray) -> None:
        """Take one call, ids [rows] in order."""
        self.pairs.update(draws)
        inside = (draws >= 0) & (draws < self._ids)
        if inside.all():
            self._shifts.update(draws)

    def evidence(self) -> CaseEvidence:
        """Return what the case says now; nothing in it may be multiplied over cases."""
        found = replace(self.pairs.evidence(), log_components=())
        shifts = self._shifts.names
        each = self._shifts.log_each if shifts else np.zeros(1)
        kept, other = math.log(PAIR_SHARE), math.log(1 - PAIR_SHARE)
        log_e = float(np.logaddexp(found.log_e + kept, log_mean(each) + other))
        best = replace(found.best, log_weighted=found.best.log_weighted + kept)
        at = int(each.argmax())
        weighted = float(each[at]) - math.log(each.size) + other
        if shifts and weighted > best.log_weighted:
            best = Component(shifts[at], float(each[at]), weighted)
        return replace(found, log_e=log_e, best=best)

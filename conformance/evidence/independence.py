"""`independence.*`: e-processes on disjoint pairs of draws.

For every declared pairing (rows at a lag, the same row of the next call, two streams) the bets of
`couplings` are placed on *disjoint* pairs.  Each clause must hold its level whatever the others do,
so a product is taken only over what the clause itself makes independent:

* *rows*: the pairs of one call are multiplied, for rows of a call are independent.  Different calls
  are averaged over their planned number: a generator that repeats itself from call to call would
  square a chance coincidence.  An average of e-values has mean at most 1 however they depend;
* *calls*: the pairs of two calls are averaged over rows, and pairs of calls are multiplied;
* *trusted*: all pairs are multiplied, for a later stream that the harness itself vouches for
  (torch's uniforms): given the first stream each factor has mean 1.

Different lags use the same draws: they are averaged, never multiplied, and so are couplings and rho.

Rows that all equal a flat law of many ids show most: a copied draw is then seen after a handful of
pairs, where a law of two ids needs a hundred times more.  A wrong law within the tolerance is no
dependence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import Bet
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray
from refsampler.conformance.evidence.couplings import (
    Copy,
    Coupling,
    SharedNoise,
    SharedUniform,
    capped,
)
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.pairings import Lag

__all__ = [
    "RATES",
    "CoupledProcess",
    "Factors",
    "PairProcess",
]

RATES: Final = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.999)
"""Bets on rho; the last one is "always", but survives one pair that differs."""


class Factors(Enum):
    """What is multiplied."""

    ROWS = auto()
    CALLS = auto()
    TRUSTED = auto()


class _RateBets:
    """log e per rate, for one coupling and one pairing."""

    def __init__(self, coupling: Coupling, delta: float, factors: Factors, calls: int) -> None:
        rates = np.array(RATES)
        self._coupling = coupling
        self._factors = factors
        self._calls = calls
        self._called = 0
        self._sum: FloatArray = np.full(rates.size, -np.inf)
        self._cap = capped(coupling, delta)
        self._rates = rates
        self._worst = np.log1p(rates * (2 * delta + self._cap * delta**2))
        self.log_e: FloatArray = np.zeros(rates.size)

    def update(self, x: IntArray, y: IntArray) -> None:
        """Take the pairs [pairs] of one call or of two."""
        if x.size == 0:
            return
        score = np.minimum(self._coupling.scores(x, y), self._cap)
        if self._factors is Factors.CALLS:
            gain = np.log1p(self._rates * (float(score.mean()) - 1))
            self.log_e = self.log_e + gain - self._worst
            return
        shared = score[score > 0]
        gain = np.log1p(self._rates[:, None] * (shared - 1)).sum(axis=1)
        gain = gain + (x.size - shared.size) * np.log1p(-self._rates) - x.size * self._worst
        if self._factors is Factors.TRUSTED:
            self.log_e = self.log_e + gain
            return
        self._called += 1
        if self._called > self._calls:
            raise ValueError(f"call {self._called} is refused: {self._calls} were planned")
        self._sum = np.logaddexp(self._sum, gain)
        left = self._calls - self._called
        total = np.logaddexp(self._sum, math.log(left) if left else -np.inf)
        self.log_e = total - math.log(self._calls)


class _Pairs:
    """What both processes share: names, mixture and evidence over a table of bets."""

    def __init__(
        self, name: str, each: Sequence[_RateBets], words: Sequence[str], *, pooled: bool
    ) -> None:
        self.name = name
        self.pairs = 0
        self.skipped = 0
        self._each = tuple(each)
        count = len(words) * len(RATES)
        self.table: tuple[Bet, ...] = tuple(
            Bet(f"{one} with probability {rate:g}", 1 / count) for one in words for rate in RATES
        )
        self.bets: tuple[Bet, ...] = self.table if pooled else ()

    @property
    def log_each(self) -> FloatArray:
        """Return log e of every bet of `table`."""
        return np.concatenate([one.log_e for one in self._each])

    @property
    def log_e(self) -> float:
        """Return log e of the mixture."""
        each = self.log_each
        return float(np.logaddexp.reduce(each)) - math.log(each.size)

    def evidence(self) -> CaseEvidence:
        """Return what the case says now; its draws are pairs (of the best-filled lag)."""
        each = self.log_each
        at = int(each.argmax())
        log_e = float(each[at])
        return CaseEvidence(
            case=self.name,
            log_e=self.log_e,
            log_components=tuple(each.tolist()) if self.bets else (),
            best=Component(self.table[at].name, log_e, log_e - math.log(each.size)),
            draws=self.pairs,
            skipped=self.skipped,
            outside=0,
        )


def _live(law: FloatArray, ids: IntArray) -> BoolArray:
    inside = (ids >= 0) & (ids < law.size)
    found = np.zeros(ids.size, dtype=bool)
    found[inside] = law[ids[inside]] > 0
    return found


class PairProcess(_Pairs):
    """The evidence of calls whose rows all have one law.

    Args:
        law: [ids] exact law of every row, conditional on the core; 0 elsewhere.
        lags: the pairings, all declared before the first draw.
        delta: tolerance of the law in total variation.
        name: id of the case.
        calls: planned number of calls, over which lags within a call are averaged.
        trusted: whether the later calls are streams that the harness vouches for.
        without: patterns of couplings that are not bet on; their weight is lost.

    Attributes:
        table: every bet and its weight.
        bets: those that a `ClausePool` may multiply over cases: none with lags within a call.
        pairs: of the best-filled lag so far.
        skipped: pairs with an id of probability 0, about which nothing is said.

    """

    def __init__(
        self,
        law: FloatArray,
        lags: Sequence[Lag],
        delta: float,
        name: str = "pairs",
        *,
        calls: int = 1,
        trusted: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        if not lags:
            raise ValueError("lags are refused: allowed is at least one")
        if calls < 1:
            raise ValueError(f"calls = {calls} is refused: allowed is at least 1")
        couplings: list[Coupling] = [Copy(law), SharedUniform.build(law, law, mirrored=True)]
        later = Factors.TRUSTED if trusted else Factors.CALLS
        self._law = law
        self._lags = tuple(lags)
        self._table = [
            [
                _RateBets(one, delta, later if lag.calls else Factors.ROWS, calls)
                for one in couplings
            ]
            for lag in lags
        ]
        self._silent = [any(fnmatchcase(one.name, glob) for glob in without) for one in couplings]
        self._paired = [0] * len(lags)
        self._recent: dict[int, IntArray] = {}
        self._call = 0
        words = [f"{one.name}, {lag.name}" for lag in lags for one in couplings]
        pooled = all(lag.calls for lag in lags)
        super().__init__(name, [one for row in self._table for one in row], words, pooled=pooled)

    def update(self, draws: IntArray) -> None:
        """Take new calls, in order: ids [calls, rows], or [rows] of one call."""
        for call in np.atleast_2d(draws):
            for at, lag in enumerate(self._lags):
                if lag.calls == 0:
                    self._add(at, *lag.within(call))
                elif (self._call // lag.calls) % 2 == 1:
                    self._add(at, *lag.between(self._recent[self._call - lag.calls], call))
            self._recent[self._call] = call
            self._recent.pop(self._call - max(lag.calls for lag in self._lags), None)
            self._call += 1

    def update_streams(self, first: IntArray, second: IntArray) -> None:
        """Take new draws of two streams, as a pair of calls (with `stream_lags`)."""
        if self._call % 2:
            raise ValueError("streams are refused: allowed after an even number of calls")
        for one in (first, second):
            self.update(one)

    def _add(self, at: int, x: IntArray, y: IntArray) -> None:
        live = _live(self._law, x) & _live(self._law, y)
        self.skipped += int(x.size - live.sum())
        x, y = x[live], y[live]
        self._paired[at] += x.size
        self.pairs = max(self.pairs, self._paired[at])
        for one, silent in zip(self._table[at], self._silent, strict=True):
            if not silent:
                one.update(x, y)


class CoupledProcess(_Pairs):
    """The evidence of pairs of draws with two different laws.

    Args:
        first: [ids] exact law of the first draw of each pair.
        second: [ids] exact law of the second one.
        delta: tolerance of each in total variation.
        name: id of the case.
        factors: ROWS if both draws of a pair are of one call, CALLS if of two.
        calls: planned number of updates, for ROWS.

    """

    def __init__(
        self,
        first: FloatArray,
        second: FloatArray,
        delta: float,
        name: str = "two laws",
        *,
        factors: Factors = Factors.ROWS,
        calls: int = 1,
    ) -> None:
        couplings: list[Coupling] = [
            SharedUniform.build(first, second),
            SharedUniform.build(first, second, mirrored=True),
            SharedNoise.build(first, second),
        ]
        self._first, self._second = first, second
        each = [_RateBets(one, delta, factors, calls) for one in couplings]
        words = [one.name for one in couplings]
        super().__init__(name, each, words, pooled=factors is not Factors.ROWS)

    def update(self, x: IntArray, y: IntArray) -> None:
        """Take the disjoint pairs of one call, or of two: draws [pairs], [pairs]."""
        live = _live(self._first, x) & _live(self._second, y)
        self.skipped += int(x.size - live.sum())
        self.pairs += int(live.sum())
        for one in self._each:
            one.update(x[live], y[live])

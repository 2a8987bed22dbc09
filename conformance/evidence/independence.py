"""`independence.*`: e-processes on disjoint pairs of draws.

For every declared pairing (rows at a lag, the same row of the next call, two streams) the bets of
`couplings` are multiplied over *disjoint* pairs: under independence given the past the factors are
independent, so each product is an e-process.  Different lags use the same draws; they are averaged,
never multiplied.  So are couplings and rho.

Rows that all equal a flat law of many ids show most: a copied draw is then seen after a handful of
pairs, where a law of two ids needs a hundred times more.  Marginal laws play no part: a wrong law
within the tolerance is no dependence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from refsampler.conformance.evidence.guarantees import (
    BETA,
    Direction,
    PowerError,
    draws_needed_directional,
)
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.pairings import Lag

__all__ = [
    "RATES",
    "CoupledProcess",
    "PairProcess",
    "assert_pairs",
    "draws_needed_pairs",
    "smallest_detectable_pairs",
]

RATES: Final = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.999)
"""Bets on rho; the last one is "always", but survives one pair that differs."""


class _RateBets:
    """log e per rate, for one coupling and one pairing."""

    def __init__(self, coupling: Coupling, delta: float) -> None:
        rates = np.array(RATES)
        self._coupling = coupling
        self._cap = capped(coupling, delta)
        self._rates = rates[:, None]
        self._apart = np.log1p(-rates)
        self._worst = np.log1p(rates * (2 * delta + self._cap * delta**2))
        self.log_e: FloatArray = np.zeros(rates.size)

    def update(self, x: IntArray, y: IntArray) -> None:
        score = np.minimum(self._coupling.scores(x, y), self._cap)
        shared = score[score > 0]
        gains = np.log1p(self._rates * (shared - 1)).sum(axis=1)
        self.log_e = self.log_e + gains + (x.size - shared.size) * self._apart
        self.log_e = self.log_e - x.size * self._worst


class _Pairs:
    """What both processes share: names, mixture and evidence over a table of bets."""

    def __init__(self, name: str, bets: Sequence[_RateBets], words: Sequence[str]) -> None:
        self.name = name
        self.pairs = 0
        self.skipped = 0
        self._each = tuple(bets)
        count = len(words) * len(RATES)
        self.bets: tuple[Bet, ...] = tuple(
            Bet(f"{one} with probability {rate:g}", 1 / count) for one in words for rate in RATES
        )

    @property
    def log_components(self) -> FloatArray:
        """Return log e of every bet of `bets`."""
        return np.concatenate([one.log_e for one in self._each])

    @property
    def log_e(self) -> float:
        """Return log e of the mixture."""
        each = self.log_components
        return float(np.logaddexp.reduce(each)) - math.log(each.size)

    def evidence(self) -> CaseEvidence:
        """Return what the case says now; its draws are pairs (of the best-filled lag)."""
        each = self.log_components
        at = int(each.argmax())
        log_e = float(each[at])
        return CaseEvidence(
            case=self.name,
            log_e=self.log_e,
            log_components=tuple(each.tolist()),
            best=Component(self.bets[at].name, log_e, log_e - math.log(each.size)),
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

    Attributes:
        bets: the bets and their weights, for a `ClausePool`.
        pairs: of the best-filled lag so far.
        skipped: pairs with an id of probability 0, about which nothing is said.

    """

    def __init__(
        self, law: FloatArray, lags: Sequence[Lag], delta: float, name: str = "pairs"
    ) -> None:
        if not lags:
            raise ValueError("lags are refused: allowed is at least one")
        couplings: list[Coupling] = [Copy(law), SharedUniform.build(law, law, mirrored=True)]
        self._law = law
        self._lags = tuple(lags)
        self._table = [[_RateBets(one, delta) for one in couplings] for _ in lags]
        self._paired = [0] * len(lags)
        self._recent: dict[int, IntArray] = {}
        self._call = 0
        words = [f"{one.name}, {lag.name}" for lag in lags for one in couplings]
        super().__init__(name, [one for row in self._table for one in row], words)

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
        for one in self._table[at]:
            one.update(x, y)


class CoupledProcess(_Pairs):
    """The evidence of pairs of draws with two different laws.

    Args:
        first: [ids] exact law of the first draw of each pair.
        second: [ids] exact law of the second one.
        delta: tolerance of each in total variation.
        name: id of the case.

    """

    def __init__(
        self, first: FloatArray, second: FloatArray, delta: float, name: str = "two laws"
    ) -> None:
        couplings: list[Coupling] = [
            SharedUniform.build(first, second),
            SharedUniform.build(first, second, mirrored=True),
            SharedNoise.build(first, second),
        ]
        self._first, self._second = first, second
        each = [_RateBets(one, delta) for one in couplings]
        super().__init__(name, each, [one.name for one in couplings])

    def update(self, x: IntArray, y: IntArray) -> None:
        """Take new disjoint pairs of draws [pairs], [pairs]."""
        live = _live(self._first, x) & _live(self._second, y)
        self.skipped += int(x.size - live.sum())
        self.pairs += int(live.sum())
        for one in self._each:
            one.update(x[live], y[live])


# ---- guarantees


def draws_needed_pairs(
    law: FloatArray,
    rate: float,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> float:
    """Return the pairs of one lag after which copying at the rate is seen but for beta.

    Args:
        law: [ids] exact law of every row.
        rate: probability with which a row copies its partner.
        bets: number of bets in the mixture, `len(process.bets)`.
        log_threshold: that the mixture must reach.
        delta: tolerance in total variation.
        beta: probability of missing it.

    """
    probs, times = np.unique(law[law > 0], return_counts=True)
    cap = capped(Copy(law), delta)
    same = times * (rate * probs + (1 - rate) * probs**2)
    outcomes = np.append(same, max(1 - same.sum(), 0.0))
    score = np.append(np.minimum(1 / probs, cap), 0.0)
    found = math.inf
    for bet in RATES:
        worst = math.log1p(bet * (2 * delta + cap * delta**2))
        direction = Direction(outcomes, np.log1p(bet * (score - 1)) - worst)
        needed = draws_needed_directional(direction, log_threshold + math.log(bets), beta)
        found = min(found, needed)
    return found


def smallest_detectable_pairs(
    law: FloatArray,
    pairs: int,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> float:
    """Return the smallest rate of copying (within 1 %) that the pairs show; inf if none."""

    def seen(rate: float) -> bool:
        needed = draws_needed_pairs(law, rate, bets, log_threshold, delta=delta, beta=beta)
        return needed <= pairs

    if not seen(1.0):
        return math.inf
    low, high = 1e-6, 1.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def assert_pairs(
    law: FloatArray,
    rate: float,
    pairs: int,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> None:
    """Raise PowerError unless the pairs show copying at the rate."""
    needed = draws_needed_pairs(law, rate, bets, log_threshold, delta=delta, beta=beta)
    if pairs < needed:
        msg = f"{pairs} pairs are refused: copying with probability {rate:g} needs {needed:.4g}"
        raise PowerError(msg)

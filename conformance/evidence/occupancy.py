"""How many distinct ids a number of draws gives: exact in both tails, for equally likely ids.

After d distinct ones the next draw is new with probability 1 - d/n.  A right backend may be a little
off: if every id has a probability within (1 +- band)/n, or the law of each draw, given the past, lies
within TV delta of the flat one, the next draw is new with probability at least

    1 - d (1 + band)/n - delta      and at most      1 - d (1 - band)/n + delta.                (1)

Both sides fall with d.  A chain that always uses the left side therefore stays below the true count
when the two are coupled (where they are level, the true one is more likely to step; where they are
not, one step cannot overtake), so its lower tail bounds the true lower tail; the right side bounds
the upper tail in the same way.  With band = delta = 0 both chains are the exact occupancy law.

Too few distinct ids: draws are copied, or some ids cannot be reached.  Too many: draws avoid each
other (stratified noise).  One look at the planned number of draws, charged to the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.guarantees import BETA, PowerError

__all__ = [
    "CountLaw",
    "DistinctResult",
    "DistinctTest",
    "assert_distinct",
    "distinct_law",
    "distinct_power",
    "draws_needed_distinct",
    "smallest_detectable_distinct",
]

_NEGLIGIBLE: Final = 1e-40  # trimmed from the ends at each draw, and added to both tails


@dataclass(frozen=True, slots=True, eq=False)
class CountLaw:
    """The law of a count.

    Attributes:
        first: the count of probs[0].
        probs: [counts] its law, from there on.
        trimmed: mass left out; tails include it.

    """

    first: int
    probs: FloatArray
    trimmed: float

    def at_most(self, count: int) -> float:
        """Return P(at most so many)."""
        return float(self.probs[: max(count - self.first + 1, 0)].sum()) + self.trimmed

    def at_least(self, count: int) -> float:
        """Return P(at least so many)."""
        return float(self.probs[max(count - self.first, 0) :].sum()) + self.trimmed

    def repeated(self, times: int) -> CountLaw:
        """Return the law of the sum of independent counts."""
        total, power, left = CountLaw(0, np.ones(1), 0.0), self, times
        while left:
            if left % 2:
                total = total._plus(power)
            power, left = power._plus(power), left // 2
        return total

    def _plus(self, other: CountLaw) -> CountLaw:
        # All terms are positive, so small tails keep their relative accuracy.
        probs = np.convolve(self.probs, other.probs)
        return _trim(CountLaw(self.first + other.first, probs, self.trimmed + other.trimmed))


def distinct_law(draws: int, ids: int, *, band: float = 0.0, delta: float = 0.0) -> CountLaw:
    """Return the law of the chain (1): the left side, or with negative band and delta the right.

    Args:
        draws: number of draws.
        ids: number of equally likely ids.
        band: relative deviation of an id's probability.
        delta: deviation of each draw's law in total variation.

    Raises:
        ValueError: there are no ids, or draws < 0.

    """
    if ids < 1 or draws < 0:
        raise ValueError(f"draws = {draws}, ids = {ids} is refused: allowed are >= 0 and >= 1")
    law = CountLaw(0, np.ones(1), 0.0)
    for _ in range(draws):
        count = law.first + np.arange(law.probs.size)
        new = np.clip(1 - count * ((1 + band) / ids) - delta, 0.0, 1.0)
        new[count == 0] = 1.0
        new[count >= ids] = 0.0
        step = law.probs * new
        probs = np.append(law.probs - step, 0.0) + np.concatenate([[0.0], step])
        law = _trim(CountLaw(law.first, probs, law.trimmed))
    return law


def _trim(law: CountLaw) -> CountLaw:
    kept = np.flatnonzero(law.probs > _NEGLIGIBLE)
    low, high = int(kept[0]), int(kept[-1]) + 1
    lost = law.probs[:low].sum() + law.probs[high:].sum()
    return CountLaw(law.first + low, law.probs[low:high], law.trimmed + float(lost))


@dataclass(frozen=True, slots=True)
class DistinctResult:
    """What the one look showed.

    Attributes:
        distinct: ids seen, summed over calls.
        expected: mean under the flat law.
        few: largest probability of so few under the null.
        many: largest probability of so many under the null.
        failed: whether either is at most half of alpha.

    """

    distinct: int
    expected: float
    few: float
    many: float
    failed: bool


@dataclass(frozen=True, slots=True)
class DistinctTest:
    """A two-sided fixed-N test.

    Attributes:
        ids: number of equally likely ids.
        draws: of one call.
        alpha: probability of a false FAIL, half of it in each tail.
        calls: whose distinct counts are summed; they must be independent of each other, so a verdict
            about rows uses one call.
        band: as in (1).
        delta: as in (1).

    """

    ids: int
    draws: int
    alpha: float
    calls: int = 1
    band: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a plan without meaning."""
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha = {self.alpha} is refused: allowed is 0 < alpha < 1")
        if self.calls < 1:
            raise ValueError(f"calls = {self.calls} is refused: allowed is at least 1")

    def law(self, side: int) -> CountLaw:
        """Return the bounding law: side +1 of few distinct ids, -1 of many, 0 the flat one."""
        one = distinct_law(self.draws, self.ids, band=side * self.band, delta=side * self.delta)
        return one.repeated(self.calls)

    def judge(self, distinct: int) -> DistinctResult:
        """Judge the number of distinct ids, summed over the calls."""
        flat = self.law(0)
        exact = self.band == self.delta == 0
        few = (flat if exact else self.law(1)).at_most(distinct)
        many = (flat if exact else self.law(-1)).at_least(distinct)
        expected = float((flat.first + np.arange(flat.probs.size)) @ flat.probs)
        return DistinctResult(distinct, expected, few, many, min(few, many) <= self.alpha / 2)

    def most_that_fail(self) -> int:
        """Return the largest count that is too few; -1 if none is."""
        return _most_that_fail(self)


@cache
def _most_that_fail(test: DistinctTest) -> int:
    law = test.law(1)
    failing = np.flatnonzero(np.cumsum(law.probs) + law.trimmed <= test.alpha / 2)
    return law.first + int(failing[-1]) if failing.size else law.first - 1


def distinct_power(test: DistinctTest, reachable: int) -> float:
    """Return the exact probability of FAIL if only so many of the ids can be drawn."""
    limit = test.most_that_fail()
    law = distinct_law(test.draws, reachable).repeated(test.calls)
    return max(0.0, law.at_most(limit) - law.trimmed)


def draws_needed_distinct(
    ids: int, reachable: int, alpha: float, beta: float = BETA, band: float = 0.0
) -> float:
    """Return draws (within 1 %) that show that only so many ids are reachable; inf if none do."""

    def shows(draws: int) -> bool:
        return distinct_power(DistinctTest(ids, draws, alpha, band=band), reachable) >= 1 - beta

    if reachable >= ids / (1 + band):
        return math.inf
    high = 2
    while not shows(high):
        high *= 2
        if high > 64 * ids:
            return math.inf
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


@cache
def smallest_detectable_distinct(test: DistinctTest, beta: float = BETA) -> float:
    """Return the largest share of reachable ids that the test is sure to reject; 0 if none."""
    low, high = 0, test.ids
    while high - low > 1:
        middle = (low + high) // 2
        seen = distinct_power(test, middle) >= 1 - beta
        low, high = (middle, high) if seen else (low, middle)
    return low / test.ids


def assert_distinct(test: DistinctTest, reachable: int, beta: float = BETA) -> None:
    """Raise PowerError unless the test shows that only so many ids are reachable."""
    power = distinct_power(test, reachable)
    if power < 1 - beta:
        msg = f"{test.draws} draws are refused: {reachable} reachable of {test.ids} ids show "
        raise PowerError(msg + f"with probability {power:.4g}")

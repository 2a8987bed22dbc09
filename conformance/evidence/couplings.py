"""Ways in which two draws can share their randomness, as bets on the pair (x, y).

A coupling of the laws p of x and q of y is a joint law c with these margins; its score is
s(x, y) = c(x, y) / (p(x) q(y)).  The bet on "shared with probability rho" is

    e(x, y) = ((1 - rho) + rho min(s, cap)) / (1 + rho (2 delta + cap delta^2)).              (1)

**Validity.**  Let x and y be independent given the past, with laws p' and q' within TV delta of p
and q.  Write p' = p - a + a+ with 0 <= a <= p and a+ of mass at most delta, q' likewise.  All terms
are non-negative and s has means sum_x p(x) s(x, y) <= 1 and sum_y q(y) s(x, y) <= 1, so

    E s <= sum p q s + sum_x a+(x) sum_y q s + sum_y b+(y) sum_x p s + cap sum a+ b+
        <= 1 + delta + delta + cap delta^2.

Cutting s at a cap only lowers it.  The cap is the largest score, unless that times delta^2 exceeds
1/10: then rare ids are bet on less, so that rounding of rare ids is never read as dependence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray, frozen

__all__ = ["Copy", "Coupling", "SharedNoise", "SharedUniform", "capped", "inverse_cdf"]

_LARGEST_EXCESS: Final = 0.1


class Coupling(Protocol):
    """A joint law with the right margins."""

    @property
    def name(self) -> str:
        """What is shared, in words."""

    @property
    def largest(self) -> float:
        """An upper bound on the score."""

    def scores(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return s [pairs] of ids [pairs] that have positive probability."""


def capped(coupling: Coupling, delta: float) -> float:
    """Return the cap of (1)."""
    return min(coupling.largest, _LARGEST_EXCESS / delta**2) if delta > 0 else coupling.largest


def inverse_cdf(law: FloatArray, uniforms: FloatArray) -> IntArray:
    """Return the ids that uniforms in [0, 1) give through the inverse CDF in id order."""
    live = np.flatnonzero(law > 0)
    edges = np.cumsum(law[live])
    place = np.searchsorted(edges / edges[-1], uniforms, side="right")
    return live[np.minimum(place, live.size - 1)].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """The same id twice, for two draws of one law.

    Attributes:
        law: [ids] exact.
        name: what is shared.

    """

    law: FloatArray
    name: str = "same id"

    @property
    def largest(self) -> float:
        """Return 1 over the smallest probability."""
        return 1 / float(self.law[self.law > 0].min())

    def scores(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return 1[x = y] / p(x)."""
        found = np.zeros(x.size)
        same = np.flatnonzero(x == y)
        found[same] = 1 / self.law[x[same]]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SharedUniform:
    """One uniform u through both inverse CDFs in id order, or u and 1 - u.

    Attributes:
        first: [ids] law of x.
        second: [ids] law of y.
        ends: [ids] cumulative sums of the first law.
        second_ends: [ids] of the second one.
        mirrored: whether y takes 1 - u.

    """

    first: FloatArray
    second: FloatArray
    ends: FloatArray
    second_ends: FloatArray
    mirrored: bool

    @classmethod
    def build(
        cls, first: FloatArray, second: FloatArray, *, mirrored: bool = False
    ) -> SharedUniform:
        """Return the coupling of two laws [ids]."""
        ends, second_ends = frozen(np.cumsum(first)), frozen(np.cumsum(second))
        return cls(first, second, ends, second_ends, mirrored)

    @property
    def name(self) -> str:
        """What is shared, in words."""
        return "u and 1 - u" if self.mirrored else "same u"

    @property
    def largest(self) -> float:
        """Overlap is at most the narrower interval, so s is at most 1/max(p, q)."""
        smallest = max(float(law[law > 0].min()) for law in (self.first, self.second))
        return 1 / smallest

    def scores(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return the overlap of the two intervals of u over p(x) q(y)."""
        low, high = self.ends[x] - self.first[x], self.ends[x]
        low_y, high_y = self.second_ends[y] - self.second[y], self.second_ends[y]
        if self.mirrored:
            low_y, high_y = 1 - high_y, 1 - low_y
        overlap = np.minimum(high, high_y) - np.maximum(low, low_y)
        # Below the rounding of a cumulative sum an overlap is none.
        overlap = np.where(overlap > 1e-14, overlap, 0.0)
        return np.minimum(overlap / (self.first[x] * self.second[y]), self.largest)


@dataclass(frozen=True, slots=True, eq=False)
class SharedNoise:
    """The same exponential (or Gumbel) noise per id in two races with different laws.

    Both give id i with probability 1 / sum_j max(p_j / p_i, q_j / q_i); what is left is spread over
    pairs in proportion to the remainders of the margins, which is no exact joint law but has the
    right margins, all that validity asks for.

    Attributes:
        first: [ids] law of x.
        second: [ids] law of y.
        both: [ids] probability that both are this id.
        rest: probability that they differ.

    """

    first: FloatArray
    second: FloatArray
    both: FloatArray
    rest: float

    @classmethod
    def build(cls, first: FloatArray, second: FloatArray) -> SharedNoise:
        """Return the coupling of two laws [ids]."""
        live = np.flatnonzero((first > 0) & (second > 0))
        p, q = first[live], second[live]
        order = np.argsort(q / p, kind="stable")
        p, q = p[order], q[order]
        # Ids that only one race can give are beyond every ratio: they count on their own side.
        only_p, only_q = first[second <= 0].sum(), second[first <= 0].sum()
        below = np.cumsum(p) + only_p
        above = np.cumsum(q[::-1])[::-1] - q + only_q
        both = np.zeros(first.size)
        both[live[order]] = np.minimum(1 / (below / p + above / q), np.minimum(p, q))
        return cls(first, second, frozen(both), max(1 - float(both.sum()), 0.0))

    @property
    def name(self) -> str:
        """What is shared, in words."""
        return "same noise"

    @property
    def largest(self) -> float:
        """Bound the score by its two parts."""
        live = self.both > 0
        same = self.both[live] / (self.first[live] * self.second[live])
        return float(same.max(initial=0.0)) + (1 / self.rest if self.rest > 1e-12 else 0.0)

    def scores(self, x: IntArray, y: IntArray) -> FloatArray:
        """Return the score of the same id, and of the remainders."""
        p, q = self.first[x], self.second[y]
        same = np.where(x == y, self.both[x], 0.0)
        if self.rest <= 1e-12:
            return same / (p * q)
        remainder = (p - self.both[x]) * (q - self.both[y]) / self.rest
        return (same + remainder) / (p * q)

"""Total variation of a row without a direction: one look at the planned number of draws.

Let k be the number of cells, L = ln(1/alpha), S = 1/2 sum_i sqrt(p_i (1 - p_i)), and p^ the observed
frequencies of N independent draws whose laws lie within TV delta of p.

The look comes after a planned number of draws, skipped ones included; N is what fell into cells.
Given which draws did, those are independent, so the level holds whatever N turns out to be.

* Null: E TV(p^, p) <= delta + (S + sqrt(k delta)) / sqrt(N).  For p' in the ball,
  |sqrt(p'_i (1 - p'_i)) - sqrt(p_i (1 - p_i))| is at most the larger of |sqrt p'_i - sqrt p_i| and
  |sqrt(1 - p'_i) - sqrt(1 - p_i)|, so its square is at most 2 |p'_i - p_i|; Cauchy-Schwarz over the
  cells gives sqrt(k delta).  Laws that differ from draw to draw only lower the variance.
* One draw moves TV(p^, p) by at most 1/N, so (McDiarmid) it exceeds its mean by sqrt(L / 2N) with
  probability at most alpha, and falls below it by sqrt(b / 2N) with probability at most e^-b.
* E TV(p^, p) >= TV(q, p) for draws from q (Jensen), which gives the bound on the true TV and the
  number of draws that a guarantee needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray

__all__ = ["CONFIDENCE", "L1Result", "L1Test", "null_spread"]

CONFIDENCE: Final = 1e-6
"""Probability with which the printed upper bound may be too low."""


def null_spread(probs: FloatArray, delta: float) -> float:
    """Return sqrt(N) times the largest mean of TV(p^, p') under the null."""
    return 0.5 * float(np.sqrt(probs * (1 - probs)).sum()) + math.sqrt(probs.size * delta)


@dataclass(frozen=True, slots=True)
class L1Result:
    """What the one look showed.

    Attributes:
        observed: TV between frequencies and exact law.
        threshold: the test fails at or above it.
        failed: whether it fails.
        upper: the true TV is below it with probability >= 1 - CONFIDENCE.

    """

    observed: float
    threshold: float
    failed: bool
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class L1Test:
    """A fixed-N test, planned and charged to the ledger before the first draw.

    Attributes:
        probs: [cells] exact law.
        delta: radius of the null.
        draws: planned, skipped ones included; the test looks once, there.
        alpha: probability of a false FAIL.

    """

    probs: FloatArray
    delta: float
    draws: int
    alpha: float

    def __post_init__(self) -> None:
        """Refuse a plan without meaning."""
        if self.draws < 1:
            raise ValueError(f"draws = {self.draws} is refused: allowed is at least 1")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha = {self.alpha} is refused: allowed is 0 < alpha < 1")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta = {self.delta} is refused: allowed is 0 <= delta < 1")

    def threshold(self, seen: int) -> float:
        """Return the TV at which the test fails, with so many draws in cells."""
        noise = null_spread(self.probs, self.delta) + math.sqrt(-math.log(self.alpha) / 2)
        return self.delta + noise / math.sqrt(seen)

    def judge(self, counts: IntArray, skipped: int = 0) -> L1Result | None:
        """Judge counts [cells] and draws that the law says nothing about.

        Returns:
            None before the planned number of draws, or if all were skipped (INCONCLUSIVE).

        Raises:
            ValueError: there are more draws than planned: the look would have been chosen late.

        """
        seen = int(counts.sum())
        if seen + skipped > self.draws:
            msg = f"{seen + skipped} draws are refused: the test looks once, at {self.draws}"
            raise ValueError(msg)
        if seen + skipped < self.draws or seen == 0:
            return None
        observed = 0.5 * float(np.abs(counts / seen - self.probs).sum())
        upper = observed + math.sqrt(-math.log(CONFIDENCE) / (2 * seen))
        threshold = self.threshold(seen)
        return L1Result(observed, threshold, observed >= threshold, upper)

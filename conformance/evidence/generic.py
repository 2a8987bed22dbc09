"""Bets that name no fault: any cell or group of cells too frequent or too rare, and learnt laws.

Both kinds stay valid for the composite null TV(p', p) <= delta, also when p' changes from draw to
draw; folding cells into buckets keeps that null, because it cannot increase total variation.

**Events.**  Under the null an event A of exact mass p(A) has mass at most p(A) + delta, whatever
the past.  The likelihood ratio of Bernoulli(r edge) against Bernoulli(edge), edge = p(A) + delta and
r > 1, grows with the indicator, so its mean is largest at the edge, where it is 1.  For r < 1 the
edge is p(A) - delta.  It depends on the draws through counts alone, so the size of a batch does not
matter.

**Learnt laws.**  The Dirichlet(c p) mixture predicts draw t by q_t = (c p + counts before t) /
(c + t - 1).  Here q is learnt anew only at each look, from earlier batches, and its likelihood ratio
is clipped for the ball (`tolerance`).  Given the past q is fixed, so each factor has mean at most 1
under every law of the ball, and so has their product.  With delta = 0 and batches of one draw this
is exactly the Dirichlet e-value.  The first batch teaches and is not bet on: look often (growing
batches, a tenth of the draws so far).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray, frozen
from refsampler.conformance.evidence.partitions import Partition
from refsampler.conformance.evidence.tolerance import RATIO_FLOOR, clipped_log_ratio

__all__ = [
    "CONCENTRATIONS",
    "MULTIPLIERS",
    "EventBets",
    "LearntBet",
    "event_sets",
    "log_mean",
    "loudest",
]

MULTIPLIERS: Final = (0.0, 0.5, 0.8, 0.95, 0.99, 1.01, 1.05, 1.25, 2.0, 10.0, 100.0, 1e4)
CONCENTRATIONS: Final = tuple(10.0**power for power in range(1, 10))


def log_mean(logs: FloatArray) -> float:
    """Return the log of the mean of e-values."""
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean()))


@dataclass(frozen=True, slots=True, eq=False)
class EventBets:
    """Uniform mixture over (event, multiplier) of Bernoulli likelihood ratios.

    Attributes:
        hit: [multipliers, events] log e of a draw inside the event.
        miss: [multipliers, events] log e of a draw outside.

    """

    hit: FloatArray
    miss: FloatArray

    @classmethod
    def build(cls, probs: FloatArray, delta: float) -> EventBets:
        """Return the bets on events of exact mass probs [events]."""
        factor = np.array(MULTIPLIERS)[:, None]
        edge = np.where(factor > 1, probs + delta, probs - delta)
        bet = factor * edge
        playable = (edge > 0) & (edge < 1) & (bet < 1)
        edge, bet = np.where(playable, edge, 0.5), np.where(playable, bet, 0.5)
        hit = np.maximum(bet / edge, RATIO_FLOOR)
        miss = (1 - bet) / (1 - edge)
        mean = edge * hit + (1 - edge) * miss  # 1 but for rounding and the floor
        return cls(frozen(np.log(hit / mean)), frozen(np.log(miss / mean)))

    def log_each(self, counts: IntArray | FloatArray, draws: int) -> FloatArray:
        """Return log e [multipliers, events]."""
        each: FloatArray = counts * self.hit + (draws - counts) * self.miss
        return each

    def log_e(self, counts: IntArray | FloatArray, draws: int) -> float:
        """Return log e of the mixture."""
        return log_mean(self.log_each(counts, draws))


def loudest(bets: FloatArray, names: Callable[[int], str]) -> str:
    """Return the event [multipliers, events] that says most, in words."""
    factor, event = np.unravel_index(int(bets.argmax()), bets.shape)
    return f"{names(int(event))} too {'frequent' if MULTIPLIERS[int(factor)] > 1 else 'rare'}"


def event_sets(partition: Partition, counts: IntArray | FloatArray) -> FloatArray:
    """Return per event the counts (or masses): each bucket, then the first 2, 3, .. buckets."""
    first = np.cumsum(counts)[1:-1] if partition.ordered else counts[:0]
    return np.concatenate([counts, first]).astype(np.float64)


class LearntBet:
    """The clipped Dirichlet mixture on one partition.

    Args:
        probs: [buckets] exact law.
        delta: radius of the ball.

    """

    def __init__(self, probs: FloatArray, delta: float) -> None:
        self._probs = probs
        self._delta = delta
        self._counts = np.zeros(probs.size, dtype=np.int64)
        self._log = np.zeros(len(CONCENTRATIONS))

    def update(self, batch: IntArray) -> None:
        """Bet on the batch [buckets] with what was learnt before it, then learn from it."""
        if self._counts.any():
            seen = np.flatnonzero(batch)
            ratios = clipped_log_ratio(self._probs, self._predictions(), self._delta)
            self._log += ratios[:, seen] @ batch[seen]
        self._counts += batch

    def _predictions(self) -> FloatArray:
        """Return the learnt laws [concentrations, buckets]."""
        strength = np.array(CONCENTRATIONS)[:, None]
        laws: FloatArray = strength * self._probs + self._counts
        laws /= laws.sum(axis=-1, keepdims=True)
        return laws

    @property
    def log_e(self) -> float:
        """Return log e, averaged over the concentrations."""
        return log_mean(self._log)

"""e-values that are exactly valid against every law within a total variation of the exact one.

The null is the ball {p' : TV(p', p) <= delta}: a right backend rounds, and rounding is no fault.
For any score r >= 0 on cells, and any p' in the ball,

    E_p'[r] <= E_p[r] + delta (max r - min r),                                           (1)

because p' arises from p by moving at most delta of mass, and no move gains more than the range of
r.  Dividing a score by the right side of (1) therefore gives an e-value: its mean is at most 1 under
every law of the ball, also if that law changes from draw to draw as a function of the past.

The likelihood ratio q/p clipped to [a, b], where

    sum_x (q(x)/b - p(x))_+ = delta    and    sum_x (p(x) - q(x)/a)_+ = delta,           (2)

loses nothing: clipping at b removes b delta of mean, clipping at a adds a delta, so
E_p = 1 - delta (b - a) and the right side of (1) is 1.  It is attained: by (2) the cells with
q/p <= a hold at least delta of p, so delta can be moved from score a to score b.  (Huber's least
favourable pair.)  The supremum of the left side of (2) is over level sets A of q/p, which gives
b = max_A q(A) / (p(A) + delta) and a = min_A q(A) / (p(A) - delta) without iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray

__all__ = [
    "RATIO_FLOOR",
    "ClipBounds",
    "clip_bounds",
    "clipped_log_ratio",
    "heterogeneous_log_ratio",
    "least_favourable_law",
    "worst_case_mean",
]

RATIO_FLOOR = 1e-300
"""Smallest score: log e stays finite, and normalising after the floor keeps it valid."""


@dataclass(frozen=True, slots=True, eq=False)
class ClipBounds:
    """Least and largest value of the clipped likelihood ratio, one pair an alternative."""

    low: FloatArray
    high: FloatArray


def clip_bounds(p: FloatArray, q: FloatArray, delta: float) -> ClipBounds:
    """Solve the two equations (2) for a and b.

    Args:
        p: [cells] exact law, positive.
        q: [..., cells] alternative laws.
        delta: radius of the ball in total variation.

    Returns:
        a and b [...]; both are 1 if q lies in the ball, where nothing can be told apart.

    """
    if delta == 0:  # nothing is clipped
        ratio = q / p
        return ClipBounds(low=ratio.min(axis=-1), high=ratio.max(axis=-1))
    rising = np.argsort(q / p, axis=-1)
    p_rising, q_rising = p[rising], np.take_along_axis(q, rising, axis=-1)
    below_p, below_q = np.cumsum(p_rising, axis=-1), np.cumsum(q_rising, axis=-1)
    above_p = np.cumsum(p_rising[..., ::-1], axis=-1)
    above_q = np.cumsum(q_rising[..., ::-1], axis=-1)
    beyond = below_p > delta
    lows = np.where(beyond, below_q / np.where(beyond, below_p - delta, 1.0), np.inf)
    inside = 0.5 * np.abs(q - p).sum(axis=-1) <= delta
    return ClipBounds(
        low=np.where(inside, 1.0, lows.min(axis=-1)),
        high=np.where(inside, 1.0, (above_q / (above_p + delta)).max(axis=-1)),
    )


def clipped_log_ratio(p: FloatArray, q: FloatArray, delta: float) -> FloatArray:
    """Return log e [..., cells] of the clipped likelihood ratio; sup over the ball of E[e] is 1.

    Normalised by (1) after clipping, so rounding in a and b costs growth of 1e-16, not validity.
    """
    bounds = clip_bounds(p, q, delta)
    score = np.clip(q / p, bounds.low[..., None], bounds.high[..., None])
    return _normalised_log(p, score, delta)


def heterogeneous_log_ratio(
    p: FloatArray, q: FloatArray, delta: float, cap: float = 20.0
) -> FloatArray:
    """Return log e [..., cells] of q/p clipped to [1/cap, cap]: O(cells), for rows drawn once each.

    Valid by (1) for every cap; not optimal where the ratio ranges wider than the fault is.
    """
    return _normalised_log(p, np.clip(q / p, 1 / cap, cap), delta)


def _normalised_log(p: FloatArray, score: FloatArray, delta: float) -> FloatArray:
    score = np.maximum(score, RATIO_FLOOR)
    bound = score @ p + delta * (score.max(axis=-1) - score.min(axis=-1))
    log_e: FloatArray = np.log(score) - np.log(bound)[..., None]
    return log_e


def least_favourable_law(p: FloatArray, score: FloatArray, delta: float) -> FloatArray:
    """Return the law of the ball under which the score's mean is largest.

    The linear programme is solved by moving delta from the lowest scores to the highest one.
    """
    order = np.argsort(score, kind="stable")
    before = np.cumsum(p[order]) - p[order]
    taken = np.minimum(p[order], np.maximum(delta - before, 0.0))
    law = p.copy()
    law[order] -= taken
    law[order[-1]] += taken.sum()
    return law


def worst_case_mean(p: FloatArray, score: FloatArray, delta: float) -> float:
    """Return sup over the ball of the score's mean."""
    return float(least_favourable_law(p, score, delta) @ score)

"""Wrong recoveries: the law of the id that replaces a rejected draft if noise is used twice.

With p the target law, q that of the draft and r the positive part of p - q, a right recovery draws
from r over its sum, with noise of its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray

__all__ = ["residual", "shared_race", "shared_uniform"]


def residual(target: FloatArray, draft: FloatArray) -> FloatArray:
    """Return r over its sum, the target where nothing is left."""
    left = np.maximum(target - draft, 0.0)
    return np.asarray(left / left.sum() if left.any() else target)


def shared_race(target: FloatArray, draft: FloatArray) -> FloatArray:
    """Return the law of argmax r_v/e_v, where argmax q_v/e_v was the draft and was rejected.

    The draft's race ends at T = min e_v/q_v ~ Exp(1).  Given T, every other e_v is q_v T + X_v with
    X_v ~ Exp(1) (exponentials forget), so v replaces the draft with probability

        E_T int r_v [y > q_v T/r_v] exp(-sum_w max(0, r_w y - q_w T)) dy
            = int_{x > q_v/r_v} r_v / (1 + g(x))^2 dx,    g(x) = sum_w max(0, r_w x - q_w),

    with y = T x.  g is linear between the q_w/r_w.
    """
    r = np.maximum(target - draft, 0.0)
    live = np.flatnonzero(r)
    if not live.size:
        return residual(target, draft)
    starts = draft[live] / r[live]
    ends = np.append(np.unique(starts), np.inf)
    law = np.zeros_like(target)
    for low, high in pairwise(ends):
        racing = live[starts <= low]
        slope, offset = r[racing].sum(), 1 - draft[racing].sum()
        # int dx / (offset + slope x)^2
        at_high = 0.0 if np.isinf(high) else 1 / (offset + slope * high)
        law[racing] += r[racing] / slope * (1 / (offset + slope * low) - at_high)
    return law


def shared_uniform(target: FloatArray, draft: FloatArray) -> FloatArray:
    """Return the law of the recovered id if the uniform that rejected also picks it from r.

    A draft d is rejected where u > p_d/q_d; the id is then where the sum of r up to it passes u.
    """
    sums = np.cumsum(residual(target, draft))
    edges = np.concatenate([[0.0], sums / sums[-1]])
    law = np.zeros_like(target)
    for d in np.flatnonzero(draft > target):
        accepted = target[d] / draft[d]
        law += draft[d] * np.diff(np.maximum(edges, accepted))
    total = law.sum()
    return np.asarray(law / total if total else residual(target, draft))

"""Top-k by block maxima: a bound of the k-th value, and only the blocks that reach it.

The k-th largest block maximum is not above the k-th largest logit, so whatever top-k keeps lies in
blocks that reach it: some k of them.  The cuts at k and at p are bisections over float32 values in
integer order; equal logits stand or fall together, and nothing is sorted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from refsampler.backends.cpu.passes import (
    below,
    cut,
    filled_up,
    gather,
    mass_above,
    maxima_of_blocks,
    scaled_sum,
    set_pad,
    weigh,
)
from refsampler.backends.cpu.scalars import LOWEST, exp64, key, ordered_float
from refsampler.backends.cpu.vectors import BLOCK

__all__ = ["LAWLESS", "TOO_MANY", "keep_candidates", "least_of_min_p", "pick"]

LAWLESS: Final = -1
"""The row holds nothing finite, or +inf."""
TOO_MANY: Final = -2
"""More candidates than there is room for: k is large, or ties are."""


@njit(error_model="numpy")
def least_of_min_p(top: np.float32, inverse: float, min_p: float) -> np.float32:
    """Return the least value that min-p keeps: exp((value - top) / T) >= min_p (`min-p.keep`)."""
    if not min_p > 0.0:
        return LOWEST
    low, high = np.int64(key(LOWEST)), np.int64(key(top))
    while low < high:
        middle = (low + high) >> 1
        value = float(ordered_float(np.int32(middle)))
        if exp64((value - top) * inverse) >= min_p:
            high = middle
        else:
            low = middle + 1
    return ordered_float(np.int32(low))


@njit(error_model="numpy")
def keep_candidates(
    x: Any,
    inverse: float,
    k: int,
    p: float,
    min_p: float,
    pad: Any,
    maxima: Any,
    values: Any,
    ids: Any,
    masses: Any,
) -> tuple[int, np.float32]:
    """Collect what min-p, top-k and top-p keep: `ids` and `masses`, 0 where an id is not kept.

    Returns:
        The number of candidates and the least value kept; or `LAWLESS`; or `TOO_MANY` and the least
        value that min-p and top-k keep.

    """
    width = BLOCK if x.size >= 1024 * k else 128 if x.size >= 512 * k else 64
    blocks = set_pad(x, width, pad)
    least, largest = maxima_of_blocks(x, pad, width, blocks, maxima)
    top = ordered_float(largest)
    if not -np.inf < top < np.inf:
        return LAWLESS, LOWEST
    low = least_of_min_p(top, inverse, min_p)
    n = -1
    if k < blocks:
        bound = cut(maxima, filled_up(maxima, blocks), k, k + k // 8, least, largest)
        n = gather(x, pad, width, blocks, maxima, max(low, bound), values, ids)
        low = max(low, bound)
    if n < 0:
        return TOO_MANY, max(low, cut(x, x.size, k, k, key(low), largest))
    padded = filled_up(values, n)
    if n > k:
        low = cut(values, padded, k, k, key(low), largest)
    total = weigh(values, 0, padded, inverse, float(top), below(low), masses)
    if p < 1.0:
        low = _least_of_top_p(values, masses, padded, low, largest, p * total)
        for j in range(padded):
            masses[j] = masses[j] if values[j] >= low else 0.0
    return n, low


@njit(error_model="numpy")
def _least_of_top_p(
    values: Any, masses: Any, n: int, least: np.float32, largest: int, wanted: float
) -> np.float32:
    """Return the least value with a mass strictly above it < `wanted`."""
    low, high = np.int64(key(least)), np.int64(largest)
    while low < high:
        middle = (low + high) >> 1
        if mass_above(values, masses, n, ordered_float(np.int32(middle))) < wanted:
            high = middle
        else:
            low = middle + 1
    return ordered_float(np.int32(low))


@njit(error_model="numpy")
def pick(masses: Any, n: int, u: float) -> int:
    """Invert the cumulative sum of n masses at u in (0, 1): a place with a mass above 0."""
    rest, j, last = u * scaled_sum(masses, 0, n, 1.0), 0, -1
    while j + 16 < n:
        sixteen = scaled_sum(masses, j, j + 16, 1.0)
        if sixteen > rest:
            break
        rest, j = rest - sixteen, j + 16
    for i in range(j, n):
        if masses[i] > 0.0 and rest >= 0.0:
            rest, last = rest - masses[i], i
    while last < 0:  # rounding let u end behind the last mass
        j -= 1
        last = j if masses[j] > 0.0 else -1
    return last

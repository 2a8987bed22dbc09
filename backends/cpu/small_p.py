"""Top-p with a small p: few values are above a pivot that a sample of the row suggests.

Where thousands of values share the mass, a dart is refused 1/p times before one is kept.  Instead
the pivot is put where some 2p of the mass lies above it, what is above is collected, and refused
values cost a pass over the candidates only.  The pivot is proved, not trusted: the candidates' mass
reaches p times an upper bound of the whole, so everything that top-p keeps is among them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from refsampler.backends.cpu.mass import margins, open_row
from refsampler.backends.cpu.passes import below, filled_up, gather, mass_above, weigh
from refsampler.backends.cpu.scalars import LOWEST, key, ordered_float, uniform
from refsampler.backends.cpu.top_k import pick
from refsampler.backends.cpu.vectors import BLOCK

__all__ = ["LARGEST_P", "candidates", "draw_candidate"]

LARGEST_P: Final = 1.0 / 32.0
"""Above it too many values would be candidates."""

_SAMPLE: Final = 512
_LEAST_ABOVE: Final = 10  # of the sample: fewer would often leave less than p above the pivot


@njit(error_model="numpy")
def candidates(
    x: Any,
    pad: Any,
    blocks: int,
    inverse: float,
    p: float,
    top: np.float32,
    base: np.float32,
    total: float,
    maxima: Any,
    values: Any,
    ids: Any,
    masses: Any,
) -> int:
    """Collect values, ids and float64 masses of what holds p of the mass > base; 0 if it cannot.

    `total` is an upper bound of that mass.
    """
    if x.size < 8 * _SAMPLE:
        return 0
    stride = x.size // _SAMPLE
    for j in range(_SAMPLE):
        values[j] = x[j * stride]
    mass = weigh(values, 0, _SAMPLE, inverse, float(top), base, masses)
    wanted = max(2.0 * p, _LEAST_ABOVE / _SAMPLE) * mass
    low, high = np.int64(key(max(base, LOWEST))), np.int64(key(top))
    while low < high:
        middle = (low + high + 1) >> 1
        sampled = mass_above(values, masses, _SAMPLE, ordered_float(np.int32(middle)))
        if sampled < wanted:
            high = middle - 1
            continue
        low = middle
        if sampled <= 1.2 * wanted:
            break
    least = ordered_float(np.int32(low + 1))
    n = gather(x, pad, BLOCK, blocks, maxima, least, values, ids)
    if n <= 0:
        return 0
    mass = weigh(values, 0, filled_up(values, n), inverse, float(top), below(least), masses)
    return n if mass >= p * total * (1.0 + 1e-9) else 0


@njit(error_model="numpy")
def draw_candidate(
    x: Any,
    pad: Any,
    blocks: int,
    inverse: float,
    p: float,
    top: np.float32,
    octave: float,
    exact: bool,
    base: np.float32,
    total: float,
    maxima: Any,
    n: int,
    values: Any,
    ids: Any,
    masses: Any,
    sums: Any,
    opened: Any,
    seed: np.uint64,
    step: np.uint64,
    stream: np.uint64,
) -> int:
    """Draw from the candidates until top-p keeps what was drawn; its id."""
    ratio, _, _ = margins(octave, total, p)
    least = total if exact else total / ratio
    padded = filled_up(values, n)
    for count in range(1 << 20):
        j = pick(masses, padded, uniform(seed, step, np.uint64(count), stream))
        value = values[j]
        above = mass_above(values, masses, padded, value)
        if above < p * least:
            return ids[j]
        if above < p * total:
            least = total = open_row(x, pad, blocks, inverse, top, base, maxima, sums, opened)
            if above < p * total:
                return ids[j]
        for i in range(padded):
            masses[i] = masses[i] if values[i] > value else 0.0
    return ids[0]

"""Passes over a row: block maxima, candidates, masses, and masses of lists of candidates.

A row `x` is contiguous float32.  It is cut into blocks of `width` floats; what is left at its end
lives in `pad`, filled up with -inf, so that every block is whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from refsampler.backends.cpu.scalars import NEGINF, exp64, key, ordered_float
from refsampler.backends.cpu.vectors import (
    BLOCK,
    bit_count,
    block_max,
    block_max64,
    block_max128,
    mask_at_least,
    trailing_zeros,
    wide_max,
)

__all__ = [
    "below",
    "count_at_least",
    "cut",
    "filled_up",
    "gather",
    "mass_above",
    "maxima_of_blocks",
    "row_max",
    "scaled_sum",
    "set_pad",
    "weigh",
]


@njit(error_model="numpy")
def below(value: np.float32) -> np.float32:
    """Return the largest float that is smaller than `value`; 0 and -0 are one value."""
    return ordered_float(np.int32(-2)) if value == 0 else ordered_float(key(value) - np.int32(1))


@njit(error_model="numpy")
def set_pad(x: Any, width: int, pad: Any) -> int:
    """Put the row's end into `pad` if its last block is not whole; return the number of blocks."""
    full = x.size // width
    if full * width == x.size:
        return full
    for j in range(pad.size):
        pad[j] = NEGINF
    for j in range(full * width, x.size):
        pad[j - full * width] = x[j]
    return full + 1


@njit(error_model="numpy")
def maxima_of_blocks(x: Any, pad: Any, width: int, blocks: int, maxima: Any) -> tuple[Any, Any]:
    """Fill `maxima`, one pass over memory; return keys of the least and the largest of them."""
    full = x.size // width
    if width == BLOCK:
        for b in range(full):
            maxima[b] = block_max(x, b * BLOCK)
    elif width == 128:
        for b in range(full):
            maxima[b] = block_max128(x, b * 128)
    else:
        for b in range(full):
            maxima[b] = block_max64(x, b * 64)
    if blocks > full:
        maxima[full] = block_max(pad, 0)
    least, largest = np.int32(2**31 - 1), np.int32(-(2**31))
    for b in range(blocks):
        number = key(maxima[b])
        least = min(number, least)
        largest = max(number, largest)
    return least, largest


@njit(error_model="numpy")
def row_max(x: Any) -> np.float32:
    """Return the maximum of a row: little but loads, hence the memory floor."""
    top, wide = NEGINF, x.size // (8 * BLOCK)
    for b in range(wide):
        top = max(top, wide_max(x, b * 8 * BLOCK))
    for b in range(wide * 8, x.size // BLOCK):
        top = max(top, block_max(x, b * BLOCK))
    for j in range(x.size // BLOCK * BLOCK, x.size):
        top = max(x[j], top)
    return top


@njit(error_model="numpy")
def gather(
    x: Any, pad: Any, width: int, blocks: int, maxima: Any, low: np.float32, values: Any, ids: Any
) -> int:
    """Collect what is >= low from the blocks that reach it; -1 if there is no room for all."""
    full, n, room = x.size // width, 0, ids.size - 64
    for b in range(blocks):
        if maxima[b] >= low:
            if n + width > room:
                return -1
            for i in range(b * width, (b + 1) * width, 64):
                found = (
                    mask_at_least(x, i, low) if b < full else mask_at_least(pad, i - b * width, low)
                )
                # Two without asking, which saves a branch that nobody can predict.
                rest = found & (found - np.uint64(1))
                ids[n] = i + trailing_zeros(found)
                ids[n + 1] = i + trailing_zeros(rest)
                rest, place = rest & (rest - np.uint64(1)), n + 2
                while rest:
                    ids[place] = i + trailing_zeros(rest)
                    rest, place = rest & (rest - np.uint64(1)), place + 1
                n += bit_count(found)
    for j in range(n):
        values[j] = x[ids[j]]
    return n


@njit(error_model="numpy")
def filled_up(values: Any, n: int) -> int:
    """Append -inf up to a multiple of 64, so that vector loops leave no rest; the new length."""
    for j in range(n, n + 63):
        values[j] = NEGINF
    return (n + 63) & ~63


@njit(error_model="numpy")
def count_at_least(values: Any, n: int, low: np.float32) -> np.int32:
    """Count the first n values that are >= low."""
    count = np.int32(0)
    for j in range(n):
        count += np.int32(values[j] >= low)
    return count


@njit(error_model="numpy")
def cut(values: Any, n: int, k: int, most: int, least: int, largest: int) -> np.float32:
    """Find a value that k to `most` of n values reach; the k-th largest where ties forbid that.

    Bisection over the floats in integer order, without a sort.

    Args:
        values: of which at least k reach the float with key `least`.
        n: how many of them count.
        k: wanted, 1 or more.
        most: k for the k-th largest value itself, or more for a bound below it.
        least: key that is not above the answer's.
        largest: key of the maximum.

    """
    low, high, count = np.int64(least), np.int64(largest), n
    while low < high and not k <= count <= most:
        middle = (low + high + 1) >> 1
        count = count_at_least(values, n, ordered_float(np.int32(middle)))
        if count >= k:
            low = middle
        else:
            high = middle - 1
    return ordered_float(np.int32(low))


@njit(fastmath={"reassoc", "contract"}, error_model="numpy")
def mass_above(values: Any, masses: Any, n: int, floor: np.float32) -> float:
    """Sum the masses of the first n values that are > floor."""
    total = 0.0
    for j in range(n):
        total += masses[j] if values[j] > floor else 0.0
    return total


@njit(fastmath={"reassoc"}, error_model="numpy")
def scaled_sum(masses: Any, start: int, stop: int, unit: float) -> float:
    """Multiply masses[start:stop] by `unit` where they lie; return their sum."""
    total = 0.0
    for j in range(start, stop):
        masses[j] *= unit
        total += masses[j]
    return total


@njit(fastmath={"reassoc", "contract"}, error_model="numpy")
def weigh(
    values: Any, at: int, n: int, inverse: float, top: float, floor: np.float32, masses: Any
) -> float:
    """Put exp((value - top) / T) of n values > floor into `masses`, 0 elsewhere; their sum."""
    total = 0.0
    for j in range(n):
        value = values[at + j]
        masses[j] = exp64((float(value) - top) * inverse) if value > floor else 0.0
        total += masses[j]
    return total

"""One row: which path it takes, and the id that it draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from refsampler.backends.cpu.mass import bound_row, is_kept, throw
from refsampler.backends.cpu.passes import below, maxima_of_blocks, set_pad
from refsampler.backends.cpu.scalars import LOWEST, key, ordered_float, uniform
from refsampler.backends.cpu.small_p import LARGEST_P, candidates, draw_candidate
from refsampler.backends.cpu.top_k import (
    LAWLESS,
    TOO_MANY,
    keep_candidates,
    least_of_min_p,
    pick,
)
from refsampler.backends.cpu.vectors import BLOCK

__all__ = ["argmax_row", "draw_row"]


@njit(error_model="numpy")
def argmax_row(x: Any, pad: Any, maxima: Any) -> int:
    """Return the lowest id of the largest value (`greedy.tie`); 0 if there is none."""
    blocks = set_pad(x, BLOCK, pad)
    _, largest = maxima_of_blocks(x, pad, BLOCK, blocks, maxima)
    top = ordered_float(largest)
    for b in range(blocks):
        if maxima[b] == top:
            for j in range(b * BLOCK, min((b + 1) * BLOCK, x.size)):
                if x[j] == top:
                    return j
    return 0


@njit(error_model="numpy")
def draw_row(
    x: Any,
    inverse: float,
    k: int,
    p: float,
    min_p: float,
    seed: np.uint64,
    step: np.uint64,
    stream: np.uint64,
    show: bool,
    pad: Any,
    maxima: Any,
    values: Any,
    ids: Any,
    bounds: Any,
    above: Any,
    masses: Any,
    opened: Any,
) -> tuple[int, np.float32]:
    """Draw an id from the softmax of x / T that min-p, top-k and top-p leave.

    Args:
        x: contiguous float32 logits of the row.
        inverse: 1 / T.
        k: of top-k; off outside of 1..V-1.
        p: of top-p, above 0; off from 1 on.
        min_p: off at 0.
        seed: key of the noise.
        step: counter of the noise.
        stream: more of the counter: 0 for seeded rows, 1 for others.
        show: whether the least value kept is asked for, which costs passes.
        pad: scratch, a block.
        maxima: scratch, a number for each block.
        values: scratch, a list of candidates.
        ids: likewise.
        bounds: scratch, a number for each block.
        above: likewise.
        masses: scratch, a list of candidates.
        opened: scratch, a block.

    Returns:
        The id, 0 for a row without a law; and the least value kept if `show`.

    """
    least = LOWEST
    if 0 < k < x.size:
        n, least = keep_candidates(x, inverse, k, p, min_p, pad, maxima, values, ids, masses)
        if n == LAWLESS:
            return 0, least
        if n != TOO_MANY:
            return ids[pick(masses, n, uniform(seed, step, np.uint64(0), stream))], least
    elif min_p > 0.0:
        blocks = set_pad(x, BLOCK, pad)
        _, largest = maxima_of_blocks(x, pad, BLOCK, blocks, maxima)
        top = ordered_float(largest)
        if -np.inf < top < np.inf:
            least = least_of_min_p(top, inverse, min_p)
    return _draw_by_mass(
        x,
        inverse,
        least,
        p,
        seed,
        step,
        stream,
        show,
        pad,
        maxima,
        values,
        ids,
        bounds,
        above,
        masses,
        opened,
    )


@njit(error_model="numpy")
def _least_kept(
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
    bounds: Any,
    above: Any,
    opened: Any,
) -> np.float32:
    """Return the least value that top-p keeps, by bisection over the floats in integer order."""
    low, high = np.int64(key(base) + np.int32(1)), np.int64(key(top))
    while low < high:
        middle = (low + high) >> 1
        kept, _ = is_kept(
            x,
            pad,
            blocks,
            inverse,
            p,
            top,
            octave,
            exact,
            base,
            total,
            ordered_float(np.int32(middle)),
            maxima,
            bounds,
            total,
            above,
            opened,
        )
        if kept:
            high = middle
        else:
            low = middle + 1
    return ordered_float(np.int32(low))


@njit(error_model="numpy")
def _draw_by_mass(
    x: Any,
    inverse: float,
    least: np.float32,
    p: float,
    seed: np.uint64,
    step: np.uint64,
    stream: np.uint64,
    show: bool,
    pad: Any,
    maxima: Any,
    values: Any,
    ids: Any,
    bounds: Any,
    above: Any,
    masses: Any,
    opened: Any,
) -> tuple[int, np.float32]:
    """Draw from what is >= least, with top-p on it."""
    blocks, octave, top, total, exact = bound_row(x, inverse, least, pad, maxima, bounds, opened)
    if blocks == 0:
        return 0, LOWEST
    floor = base = below(least)
    if show and p < 1.0:
        least = _least_kept(
            x,
            pad,
            blocks,
            inverse,
            p,
            top,
            octave,
            exact,
            base,
            total,
            maxima,
            bounds,
            above,
            opened,
        )
    if p <= LARGEST_P:
        n = candidates(x, pad, blocks, inverse, p, top, base, total, maxima, values, ids, masses)
        if n > 0:
            found = draw_candidate(
                x,
                pad,
                blocks,
                inverse,
                p,
                top,
                octave,
                exact,
                base,
                total,
                maxima,
                n,
                values,
                ids,
                masses,
                above,
                opened,
                seed,
                step,
                stream,
            )
            return found, least
    held = total
    for count in range(1 << 30):
        u = uniform(seed, step, np.uint64(count), stream)
        found = throw(x, pad, blocks, inverse, top, floor, bounds, held, u, opened)
        if found < 0:
            continue
        if p >= 1.0:
            return found, least
        kept, mass = is_kept(
            x,
            pad,
            blocks,
            inverse,
            p,
            top,
            octave,
            exact,
            base,
            total,
            x[found],
            maxima,
            bounds,
            held,
            above,
            opened,
        )
        if kept:
            return found, least
        floor, held, bounds, above = x[found], mass, above, bounds
    return 0, least

"""Top-k off: darts at upper bounds of the masses of blocks.

One pass gives every block its maximum and an upper bound of its mass, at most 6.2 % too large.  A
uniform picks a point on the line of bounds; only the block below it is opened, in float64.  A point
beyond the block's true mass is thrown again, so that an id's probability is proportional to its
float64 mass whatever the bounds were: cheap exponentials, and the law is exact, tails included.

Top-p needs no threshold: the id drawn is kept iff the mass strictly above it is < p * S.  The
bounds decide that for about 99 %, a closer pass for nearly all others, float64 for the rest.  A
value that was refused becomes the floor of the next throw.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import njit

from refsampler.backends.cpu.passes import below, maxima_of_blocks, scaled_sum, set_pad, weigh
from refsampler.backends.cpu.scalars import LOG2E, LOWEST, NEGINF, ordered_float
from refsampler.backends.cpu.vectors import (
    BLOCK,
    CHORD,
    CLOSE_ERROR,
    block_above,
    block_close,
    block_stats,
)

__all__ = ["bound_row", "is_kept", "margins", "open_row", "throw"]

# What covers the float32 rounding of a block's bound: 4e-5 at worst, and 1.2e-7 an octave of x / T.
_SLACK: Final = 1e-4
_SLACK_PER_OCTAVE: Final = 2e-7
# From so many octaves on, float32 cannot hold x / T: float64 masses take the place of bounds.
_EXTREME: Final = 1e5
# A maximum may be so many octaves above the unit of the bounds before the unit has to rise.
_HEADROOM: Final = 60.0


@njit(error_model="numpy")
def _line(octave: float, rate: float) -> tuple[np.float32, np.float32]:
    """Return slope and offset of the float's bits as a function of x, in units of 2**octave."""
    return np.float32(rate * 2.0**23), np.float32((127.0 - octave) * 2.0**23)


@njit(error_model="numpy")
def _bound_blocks(
    x: Any,
    blocks: int,
    first: int,
    octave: float,
    top: np.float32,
    rate: float,
    maxima: Any,
    bounds: Any,
) -> tuple[float, np.float32]:
    """Fill maxima and bounds of whole blocks, in units of 2**octave, which rises when it must."""
    slope, offset = _line(octave, rate)
    limit, b = np.float32((octave + _HEADROOM) / rate), 0
    while b < blocks:
        maximum, bound = block_stats(x, b * BLOCK, slope, offset)
        if maximum > limit:  # the first block with a finite value, or one far above it
            before, octave = octave, float(math.floor(maximum * rate))
            slope, offset = _line(octave, rate)
            limit = max(np.float32((octave + _HEADROOM) / rate), maximum)
            scaled_sum(bounds, 0, first + b, 2.0 ** (before - octave))
        else:
            maxima[first + b], bounds[first + b] = maximum, bound
            top = max(maximum, top)
            b += 1
    return octave, top


@njit(error_model="numpy")
def bound_row(
    x: Any, inverse: float, least: np.float32, pad: Any, maxima: Any, bounds: Any, masses: Any
) -> tuple[int, float, np.float32, float, bool]:
    """Fill maxima and upper bounds of the masses of what is >= least, relative to the maximum.

    Returns:
        Blocks, octave of the unit that the bounds were computed in, maximum, sum of the bounds, and
        whether they are float64 masses instead.

    """
    blocks, rate, full = set_pad(x, BLOCK, pad), inverse * LOG2E, x.size // BLOCK
    if least > LOWEST:
        _, largest = maxima_of_blocks(x, pad, BLOCK, blocks, maxima)
        top = ordered_float(largest)
        octave = float(math.floor(top * rate))
    else:
        octave, top = _bound_blocks(x, full, 0, -np.inf, NEGINF, rate, maxima, bounds)
        if blocks > full:
            octave, top = _bound_blocks(pad, 1, full, octave, top, rate, maxima, bounds)
    if not -np.inf < top < np.inf:
        return 0, octave, top, 0.0, False
    if abs(octave) > _EXTREME:
        total = open_row(x, pad, blocks, inverse, top, below(least), maxima, bounds, masses)
        return blocks, octave, top, total, True
    unit = _unit(octave, top, inverse)
    if least > LOWEST:
        floor = below(least)
        total, _ = _bound_above(
            x, pad, blocks, octave, rate, maxima, floor, unit, bounds, bounds, np.inf, -1.0, np.inf
        )
    else:
        total = scaled_sum(bounds, 0, blocks, unit)
    return blocks, octave, top, total, False


@njit(error_model="numpy")
def _slack(octave: float) -> float:
    return _SLACK + _SLACK_PER_OCTAVE * abs(octave)


@njit(error_model="numpy")
def _unit(octave: float, top: np.float32, inverse: float) -> float:
    """Return what makes a block's sum an upper bound, relative to the row's maximum."""
    return math.exp(octave / LOG2E - top * inverse) * (1.0 + _slack(octave))


@njit(error_model="numpy")
def _bound_above(
    x: Any,
    pad: Any,
    blocks: int,
    octave: float,
    rate: float,
    maxima: Any,
    floor: np.float32,
    unit: float,
    bounds: Any,
    above: Any,
    total: float,
    sure: float,
    never: float,
) -> tuple[float, float]:
    """Bound the mass > floor of every block, those that do not reach it skipped.

    Stops as soon as the sum cannot reach `sure` any more, or has reached `never`.

    Returns:
        The sum, and how much `bounds` hold in the blocks that were not looked at.

    """
    slope, offset = _line(octave, rate)
    full, reached = x.size // BLOCK, 0.0
    for b in range(full):
        part = 0.0
        if maxima[b] > floor:
            part = block_above(x, b * BLOCK, slope, offset, floor) * unit
        total -= bounds[b]
        above[b] = part
        reached += part
        if reached + total < sure or reached >= never:
            return reached, total
    if blocks > full:
        part = block_above(pad, 0, slope, offset, floor) * unit if maxima[full] > floor else 0.0
        total -= bounds[full]
        above[full] = part
        reached += part
    return reached, 0.0


@njit(error_model="numpy")
def _open_block(
    x: Any,
    pad: Any,
    b: int,
    inverse: float,
    top: np.float32,
    floor: np.float32,
    masses: Any,
) -> float:
    """Put the float64 masses > floor of one block into `masses`; their sum."""
    if (b + 1) * BLOCK <= x.size:
        return weigh(x, b * BLOCK, BLOCK, inverse, float(top), floor, masses)
    return weigh(pad, 0, BLOCK, inverse, float(top), floor, masses)


@njit(error_model="numpy")
def open_row(
    x: Any,
    pad: Any,
    blocks: int,
    inverse: float,
    top: np.float32,
    floor: np.float32,
    maxima: Any,
    sums: Any,
    masses: Any,
) -> float:
    """Put the float64 mass > floor of every block into `sums`; their sum."""
    for b in range(blocks):
        sums[b] = 0.0
        if maxima[b] > floor:
            sums[b] = _open_block(x, pad, b, inverse, top, floor, masses)
    return scaled_sum(sums, 0, blocks, 1.0)


@njit(error_model="numpy")
def _close_row(
    x: Any, pad: Any, blocks: int, octave: float, rate: float, floor: np.float32, maxima: Any
) -> float:
    """Return the mass > floor in units of 2**octave, within slack and `CLOSE_ERROR`."""
    slope, offset = _line(octave, rate)
    total = 0.0
    for b in range(blocks):
        if maxima[b] > floor:
            if (b + 1) * BLOCK <= x.size:
                total += block_close(x, b * BLOCK, slope, offset, floor)
            else:
                total += block_close(pad, 0, slope, offset, floor)
    return total


@njit(error_model="numpy")
def throw(
    x: Any,
    pad: Any,
    blocks: int,
    inverse: float,
    top: np.float32,
    floor: np.float32,
    bounds: Any,
    total: float,
    u: float,
    masses: Any,
) -> int:
    """Throw one dart at the bounds: the id that it hits, or -1 for a miss."""
    rest, b = u * total, 0
    while b + 16 < blocks:
        sixteen = scaled_sum(bounds, b, b + 16, 1.0)
        if sixteen > rest:
            break
        rest, b = rest - sixteen, b + 16
    while b < blocks - 1 and bounds[b] <= rest:
        rest, b = rest - bounds[b], b + 1
    if _open_block(x, pad, b, inverse, top, floor, masses) > rest:
        for j in range(BLOCK):
            rest -= masses[j]
            if rest < 0.0:
                return b * BLOCK + j
    return -1


@njit(error_model="numpy")
def margins(octave: float, total: float, p: float) -> tuple[float, float, float]:
    """Say what upper bounds of masses prove, given the sum of all of them.

    A bound is between its mass and `ratio` times that.  With M above a value and R the rest, the
    value is kept iff M * (1 - p) < p * R.

    Returns:
        `ratio`; a bound of M below which the value is kept; one from which on it is not.

    """
    slack = _slack(octave)
    ratio = CHORD * (1.0 + slack) ** 2
    sure = p * total * (1.0 - slack) / ((1.0 - p) * ratio + p)
    never = p * ratio * total * (1.0 + slack) / (1.0 - p + p * ratio)
    return ratio, sure, never


@njit(error_model="numpy")
def is_kept(
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
    value: np.float32,
    maxima: Any,
    bounds: Any,
    held: float,
    above: Any,
    masses: Any,
) -> tuple[bool, float]:
    """Decide whether top-p keeps a value: the mass above it is < p * (the mass above `base`).

    Args:
        x: the row.
        pad: its end.
        blocks: their number.
        inverse: 1 / T.
        p: below 1.
        top: the row's maximum.
        octave: of the bounds' unit.
        exact: `total` is a float64 mass.
        base: what the filters before top-p left is > base.
        total: mass > base, or the sum of its bounds.
        value: asked about.
        maxima: of the blocks.
        bounds: of a part of the row that holds everything above `value`.
        held: their sum.
        above: bounds of what is > value; complete if the value is not kept.
        masses: scratch.

    Returns:
        Whether it is kept, and the sum of `above`.

    """
    if exact:
        mass = open_row(x, pad, blocks, inverse, top, value, maxima, above, masses)
        return mass < p * total, mass
    rate, slack = inverse * LOG2E, _slack(octave)
    _, sure, never = margins(octave, total, p)
    unit = _unit(octave, top, inverse)
    bound, unseen = _bound_above(
        x, pad, blocks, octave, rate, maxima, value, unit, bounds, above, held, sure, np.inf
    )
    if bound + unseen < sure:
        return True, bound
    if bound >= never:
        return False, bound
    gap = 1.5 * slack + CLOSE_ERROR
    part = _close_row(x, pad, blocks, octave, rate, value, maxima)
    whole = _close_row(x, pad, blocks, octave, rate, base, maxima)
    if part * (1.0 + gap) < p * whole * (1.0 - gap):
        return True, bound
    if part * (1.0 - gap) >= p * whole * (1.0 + gap):
        return False, bound
    wanted = p * open_row(x, pad, blocks, inverse, top, base, maxima, above, masses)
    mass = open_row(x, pad, blocks, inverse, top, value, maxima, above, masses)
    return mass < wanted, mass

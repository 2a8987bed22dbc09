"""Top-p alone: read two gives the mass strictly above each of four proposals.

Its float32 sums decide all but the proposals within `_BAND` of the edge; those rows are left to
the last kernel, which sums again in integers.  So the id does not depend on which kernel drew it.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import (
    LAST,
    LOG2E,
    at_least,
    fixed,
    fixed_sums,
    lane_sums,
    mass_edge,
    power,
)
from refsampler.backends.triton.device.rows import (
    controls,
    load_chunks,
    load_parts,
    row_temperature,
)

__all__ = [
    "OPEN",
    "SMALL_P",
    "WHOLE",
    "above_kernel",
    "drawn_at",
    "first_inside",
    "in_doubt",
    "settle",
]

OPEN = tl.constexpr(-1)
"""In `todo`: proposals are made, none is accepted yet."""
WHOLE = tl.constexpr(1 << 30)
"""In `todo`: the row is left to the last kernel, all of it."""
SMALL_P = tl.constexpr(0.6)
"""Below this the next round draws only from what lies above the highest rejected proposal.

It contains the nucleus, and the acceptance grows about fivefold.
"""
_BAND = tl.constexpr(2.0**-19)
"""Of the total mass; float32 sums of 1024 terms, a tree of 10 levels, err by less than 2^-20."""


@triton.jit
def first_inside(above, everything, p, turn):
    """Return when the first of four proposals inside the nucleus was drawn, or LAST.

    Then how many are inside.  `above` is the mass above each, `everything` the total.
    """
    inside = (above == 0) | (above < mass_edge(p, everything))
    return tl.min(tl.where(inside, turn, LAST), 0), tl.sum(inside.to(tl.int32), 0)


@triton.jit
def in_doubt(above, everything, p):
    """Return whether masses `above` that are float32 sums cannot tell what is inside."""
    edge = mass_edge(p, everything)
    band = (everything.to(tl.float32) * _BAND).to(tl.int64)
    near = (above > 0) & (above >= edge - band) & (above < edge + band)
    return tl.max(near.to(tl.int32), 0) > 0


@triton.jit
def drawn_at(ids, turn, when):
    """Return the proposal that was drawn then."""
    return tl.sum(tl.where(turn == when, ids, 0), 0)


@triton.jit
def settle(
    row, p, groups, proposed, turn, part, total, todo, out, parts,
    SCALE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Take the first proposal inside the nucleus, if it is known.

    Returns whether it is, how many of the four are inside, and whether that can be told.
    """
    j, g = tl.arange(0, 4), tl.arange(0, PARTS)
    places = (row * parts + g[:, None]) * 4 + j[None, :]
    mass = tl.load(part + places, mask=(g < parts)[:, None], other=0.0)
    above, turns = tl.sum(fixed(mass, SCALE), 0), tl.load(turn + row * 4 + j)
    everything = tl.load(total + row)
    when, count = first_inside(above, everything, p, turns)
    told = in_doubt(above, everything, p) == 0
    known = told & (when < LAST) & ((count < 4) | (groups == 1))
    if known:
        tl.store(out + row, drawn_at(tl.load(proposed + row * 4 + j), turns, when))
        tl.store(todo + row, 0)
    return known, count, told


@triton.jit(do_not_specialize=["blocks"])
def above_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    top_p,
    chunk_mass,
    edge,
    part,
    largest,
    V,
    chunks,
    blocks,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    A: tl.constexpr,
    W: tl.constexpr,
    LANES: tl.constexpr,
    C: tl.constexpr,
):
    """Write the mass above each proposal in each of W parts; grid rows * blocks.

    The last rows come first: of those the L2 still holds what read one left there.
    """
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row, block = (program // blocks).to(tl.int64), program % blocks
    start = logits + row * row_stride
    x = load_parts(start, block * A * W * LANES, id_stride, V, STRIDED, A, W, LANES)
    t, _ = row_temperature(temperature, row)
    s, top = LOG2E / t, tl.load(largest + row)
    edge += row * 4
    l0, l1, l2, l3 = tl.load(edge), tl.load(edge + 1), tl.load(edge + 2), tl.load(edge + 3)
    _, p, _ = controls(None, top_p, None, row, False, 1)
    e = at_least(power((x - top) * s, PTX), 0.0)
    part += ((row * blocks + block) * W + tl.arange(0, W)) * 4
    tl.store(part, tl.sum(lane_sums(x, l0, e, PTX), 1))
    tl.store(part + 1, tl.sum(lane_sums(x, l1, e, PTX), 1))
    tl.store(part + 2, tl.sum(lane_sums(x, l2, e, PTX), 1))
    tl.store(part + 3, tl.sum(lane_sums(x, l3, e, PTX), 1))
    if p < SMALL_P:
        # Read again, from the cache: what is kept for few rows costs registers in all.
        R: tl.constexpr = A * W * LANES // C
        limit = tl.maximum(tl.maximum(l0, l1), tl.maximum(l2, l3))
        again = load_chunks(start, block * R, id_stride, V, STRIDED, R, C, LANES)
        kept = tl.where(again > limit, power((again - top) * s, PTX), 0.0)
        chunk = block * R + tl.arange(0, R)
        tl.store(chunk_mass + (2 * row + 1) * chunks + chunk, fixed_sums(kept))

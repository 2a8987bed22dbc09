"""Top-p alone: read two gives the mass strictly above each of four proposals.

Its float32 sums decide all but the proposals within `_BAND` of the edge; those rows are left to
the last kernel, which repeats them in integers.  So the id does not depend on which kernel drew it.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import LOG2E, fixed, fixed_sums, mass_edge
from refsampler.backends.triton.device.rows import controls, load_tile, row_temperature

__all__ = ["OPEN", "SMALL_P", "WHOLE", "above_kernel", "settle"]

OPEN = tl.constexpr(-1)
"""In `todo`: proposals are made, none is accepted yet."""
WHOLE = tl.constexpr(1 << 30)
"""In `todo`: the row is left to the last kernel, all of it."""
SMALL_P = tl.constexpr(0.6)
"""Below this the next round draws only from what lies above the highest rejected proposal.

It contains the nucleus, and the acceptance grows about fivefold.
"""
_BAND = tl.constexpr(2.0**-19)
"""Of the total mass; float32 sums of 4096 terms, a tree of 12 levels, err by less than 2^-20."""


@triton.jit
def settle(
    row, top_p, proposed, part, total, todo, out, segments,
    SCALE: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Take the first proposal inside the nucleus; return 1 if there is none, 0 if that is known.

    Where float32 cannot tell, `todo` becomes WHOLE.
    """
    j, g = tl.arange(0, 4), tl.arange(0, SEGMENTS)
    places = (row * segments + g[:, None]) * 4 + j[None, :]
    mass = tl.load(part + places, mask=(g < segments)[:, None], other=0.0)
    above = tl.sum(fixed(mass, SCALE), 0)
    _, p, _ = controls(None, top_p, None, row, False, 1)
    everything = tl.load(total + row)
    edge = mass_edge(p, everything)
    band = (everything.to(tl.float32) * _BAND).to(tl.int64)
    certain = (above == 0) | (above < edge - band)
    first = tl.min(tl.where(certain | (above < edge + band), j, 4), 0)
    if first < 4:
        if tl.max(tl.where(j == first, certain.to(tl.int32), 0), 0) == 1:
            tl.store(out + row, tl.load(proposed + row * 4 + first))
            tl.store(todo + row, 0)
        else:
            tl.store(todo + row, WHOLE)
    return (first == 4).to(tl.int32)


@triton.jit(do_not_specialize=["segments", "blocks"])
def above_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    top_p,
    chunk_mass,
    todo,
    edge,
    part,
    largest,
    V,
    chunks,
    segments,
    blocks,
    STRIDED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    TILES: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Write each segment's mass above each proposal; grid rows * blocks, TILES segments each."""
    program = tl.program_id(0)
    row, block = (program // blocks).to(tl.int64), program % blocks
    if not FIRST:
        # In the first round every row is open: asking would only delay the loads.
        if tl.load(todo + row) != OPEN:
            return
    t, _ = row_temperature(temperature, row)
    s, top = LOG2E / t, tl.load(largest + row)
    for tile in range(TILES):
        segment = block * TILES + tile
        start = logits + row * row_stride
        x = load_tile(start, segment * R * C, id_stride, V, STRIDED, R, C)
        e = tl.exp2((x - top) * s)
        for j in tl.static_range(4):
            limit = tl.load(edge + row * 4 + j)
            mass = tl.sum(tl.where(x > limit, e, 0.0))
            tl.store(part + (row * segments + segment) * 4 + j, mass)
        if tl.load(top_p + row) < SMALL_P:
            limit = tl.max(tl.load(edge + row * 4 + tl.arange(0, 4)), 0)
            chunk = segment * R + tl.arange(0, R)
            restricted = fixed_sums(tl.where(x > limit, e, 0.0))
            tl.store(chunk_mass + row * chunks + chunk, restricted)

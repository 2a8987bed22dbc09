"""Rows without top-k and min-p: draws against prefix sums of chunk masses, one chunk reopened each.

One draw is the id itself where no filter is left.  With top-p alone four independent draws are
proposals: the first one inside the nucleus is the id, which is exact.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.nucleus import OPEN, SMALL_P, settle
from refsampler.backends.triton.device.numbers import (
    INF,
    LOG2E,
    NINF,
    below,
    fixed,
    relative,
    same_scaled,
)
from refsampler.backends.triton.device.rows import load_logits, row_bits, row_temperature

__all__ = ["draw_kernel", "draws"]

_UNIT = tl.constexpr(2.0**-44)


@triton.jit
def _choose(w, bits, LENGTH: tl.constexpr):
    """Return for each draw the place in w [LENGTH], and how far into its mass, in [0, 1]."""
    a = tl.arange(0, LENGTH)
    upto, total = tl.cumsum(w, 0), tl.sum(w, 0)
    target = below(bits, total)
    place = tl.sum((upto[:, None] <= target[None, :]).to(tl.int32), 0)
    place = tl.minimum(place, LENGTH - 1)
    here = a[:, None] == place[None, :]
    own = tl.sum(tl.where(here, w[:, None], 0), 0)
    before = tl.sum(tl.where(here, upto[:, None], 0), 0) - own
    part = (target - before).to(tl.float64) / tl.maximum(own, 1).to(tl.float64)
    return place, tl.minimum(tl.maximum(part, 0.0), 1.0)


@triton.jit
def draws(
    start, id_stride, t, greedy, bits, chunk_max, chunk_mass, chunks, floor, V,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Return N independent ids, their logits, the largest logit and the total mass.

    A greedy row, or one that holds +inf, gives the lowest id of the largest logit.

    `start`, `chunk_max` and `chunk_mass` are the row's, `bits` 64 random bits for each draw.  With a
    floor above -inf only ids above it count, and the masses are theirs relative to the largest logit.

    """
    a, i, s = tl.arange(0, CHUNKS), tl.arange(0, C), LOG2E / t
    m = tl.load(chunk_max + a, mask=a < chunks, other=NINF)
    top = tl.max(m, 0)
    greedy = greedy | (top == INF)
    bits = tl.where(greedy, tl.zeros_like(bits), bits)
    mass = tl.load(chunk_mass + a, mask=a < chunks, other=0).to(tl.float32) * _UNIT
    mass *= tl.where(floor > NINF, 1.0, relative(m, top, s))
    mass = tl.where(m > NINF, mass, 0.0)
    w = fixed(tl.where(greedy, (m == top).to(tl.float32), mass), SCALE)
    chunk, into = _choose(w, bits, CHUNKS)
    ids = chunk[:, None] * C + i[None, :]
    x = load_logits(start, ids, id_stride, ids < V, STRIDED)
    e = tl.where(x > floor, tl.exp2((x - tl.max(x, 1)[:, None]) * s), 0.0)
    inside = fixed(tl.where(greedy, (x == top).to(tl.float32), e), SCALE)
    sums = tl.sum(inside, 1)
    target = tl.minimum((into * sums.to(tl.float64)).to(tl.int64), sums - 1)
    at = tl.sum((tl.cumsum(inside, 1) <= target[:, None]).to(tl.int32), 1)
    value = tl.sum(tl.where(i[None, :] == at[:, None], x, 0.0), 1)
    token = tl.where(top > NINF, tl.minimum(chunk * C + at, V - 1), 0)
    return token, value, top, tl.sum(w, 0)


@triton.jit(do_not_specialize=["segments"])
def draw_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    top_p,
    seed,
    noise,
    seeded,
    step,
    chunk_max,
    chunk_mass,
    todo,
    out,
    proposed,
    edge,
    part,
    total,
    largest,
    V,
    chunks,
    segments,
    STRIDED: tl.constexpr,
    SCALE: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    ROUND: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """Draw N ids of a row: its id (N = 1), or proposals for top-p, of which later rounds are rare."""
    row = tl.program_id(0).to(tl.int64)
    if ROUND > 0:
        if tl.load(todo + row) != OPEN:
            return
        if settle(row, top_p, proposed, part, total, todo, out, segments, SCALE, SEGMENTS) == 0:
            return
    j = tl.arange(0, N)
    t, greedy = row_temperature(temperature, row)
    bits = row_bits(seed, noise, seeded, step, row, j + ROUND * N, greedy)
    floor = tl.full((), NINF, tl.float32)
    if ROUND > 0:
        if tl.load(top_p + row) < SMALL_P:
            floor = tl.max(tl.load(edge + row * N + j), 0)
    token, value, top, mass = draws(
        logits + row * row_stride, id_stride, t, greedy, bits, chunk_max + row * chunks,
        chunk_mass + row * chunks, chunks, floor, V, STRIDED, SCALE, CHUNKS, C,
    )  # fmt: skip
    if N == 1:
        tl.store(out + row + j, token)
    else:
        tl.debug_barrier()  # every thread has read the last round's edge
        tl.store(proposed + row * N + j, token)
        tl.store(edge + row * N + j, same_scaled(value, t, 1))
        if ROUND == 0:
            tl.store(total + row, mass)
            tl.store(largest + row, top)
            tl.store(todo + row, OPEN)

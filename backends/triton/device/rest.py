"""The last kernel: rows that the fast ones left, one program each.

These are more candidates than can be ranked at once, plateaus, rows without top-k in a batch that
has it, and the few whose proposals all fell outside the nucleus.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.draw import draws
from refsampler.backends.triton.device.nucleus import OPEN, SMALL_P, WHOLE, settle
from refsampler.backends.triton.device.numbers import (
    INF,
    LOG2E,
    NINF,
    chunk_masses,
    fixed_sums,
    mass_edge,
    row_max,
    same_scaled,
)
from refsampler.backends.triton.device.rows import (
    controls,
    load_logits,
    row_bits,
    row_temperature,
)
from refsampler.backends.triton.device.search import (
    draw_above,
    draw_from_list,
    filter_and_draw,
    mass_above,
)
from refsampler.backends.triton.device.top_k import PLATEAU

__all__ = ["rest_kernel"]

_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _chunk_masses(
    start, id_stride, t, floor, top, chunk_max, chunk_mass, chunks, V,
    STRIDED: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write what the scan writes, or with a floor what read two writes: the same integers."""
    for first in range(0, chunks, R):
        chunk = first + tl.arange(0, R)
        ids = chunk[:, None] * C + tl.arange(0, C)[None, :]
        x = load_logits(start, ids, id_stride, ids < V, STRIDED)
        if floor > NINF:
            e = tl.where(x > floor, tl.exp2((x - top) * (LOG2E / t)), 0.0)
            tl.store(chunk_mass + chunk, fixed_sums(e), mask=chunk < chunks)
        else:
            m = row_max(x)
            tl.store(chunk_max + chunk, m, mask=chunk < chunks)
            tl.store(chunk_mass + chunk, chunk_masses(x, m, t), mask=chunk < chunks)
    tl.debug_barrier()


@triton.jit
def _propose(
    start, id_stride, t, p, given_p, seed, noise, seeded, step, row,
    chunk_max, chunk_mass, chunks, V,
    ROUNDS: tl.constexpr, STRIDED: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the first proposal inside the nucleus or -1, a bound that it exceeds, the total mass.

    These are the rounds of top-p, in integers.
    """
    j = tl.arange(0, 4)
    token, number = tl.full((), -1, tl.int32), tl.zeros((), tl.int32)
    floor, highest = tl.full((), NINF, tl.float32), tl.full((), NINF, tl.float32)
    top, total = tl.full((), NINF, tl.float32), tl.zeros((), tl.int64)
    while (token < 0) & (number < 4 * ROUNDS):
        if (number == 0) | ((number % 4 == 0) & (given_p < SMALL_P)):
            floor = highest
            _chunk_masses(
                start, id_stride, t, floor, top, chunk_max, chunk_mass, chunks, V, STRIDED, R, C
            )
        bits = row_bits(seed, noise, seeded, step, row, j + (number // 4) * 4, False)
        ids, values, largest, mass = draws(
            start, id_stride, t, False, bits, chunk_max, chunk_mass, chunks, floor, V,
            STRIDED, SCALE, CHUNKS, C,
        )  # fmt: skip
        top = largest
        total = tl.where(number == 0, mass, total)
        mine = j == number % 4
        value = tl.sum(tl.where(mine, values, 0.0), 0)
        limit = same_scaled(value, t, 1)
        inside = p >= 1.0
        if not inside:
            above = mass_above(start, V, id_stride, limit, top, t, STRIDED, SCALE, BLOCK)
            inside = above < mass_edge(p, total)
        token = tl.where(inside, tl.sum(tl.where(mine, ids, 0), 0), token)
        highest = tl.where(number % 4 == 0, limit, tl.maximum(highest, limit))
        number += 1
    return token, highest, total


@triton.jit
def _list_above(
    start, id_stride, V, floor, cand_x, cand_i,
    STRIDED: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy what lies above the floor, in index order; return how many, from CAP on only counted."""
    a, n = tl.arange(0, BLOCK), tl.zeros((), tl.int32)
    for first in range(0, V, BLOCK):
        ids = first + a
        x = load_logits(start, ids, id_stride, ids < V, STRIDED)
        take = (x > floor).to(tl.int32)
        at = n + tl.cumsum(take, 0) - take
        tl.store(cand_x + at, x, mask=(take > 0) & (at < CAP))
        tl.store(cand_i + at, ids, mask=(take > 0) & (at < CAP))
        n += tl.sum(take, 0)
    tl.debug_barrier()
    return n


@triton.jit(do_not_specialize=["segments", "lists"])
def rest_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    noise,
    seeded,
    step,
    chunk_max,
    chunk_mass,
    block_mass,
    cand_x,
    cand_i,
    todo,
    out,
    proposed,
    edge,
    part,
    total,
    V,
    chunks,
    segments,
    lists,
    STRIDED: tl.constexpr,
    SCALE: tl.constexpr,
    SETTLE: tl.constexpr,
    ROUNDS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Draw the ids that `todo` says are missing; `chunks` are those of the scan with masses."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(todo + row)
    if n == 0:
        return
    if SETTLE:
        if n == OPEN:
            if settle(row, top_p, proposed, part, total, todo, out, segments, SCALE, SEGMENTS) == 0:
                if tl.load(todo + row) == 0:
                    return
                n = tl.zeros((), tl.int32) + WHOLE
    start, block_mass = logits + row * row_stride, block_mass + row * BLOCKS
    t, greedy = row_temperature(temperature, row)
    k, p, least = controls(top_k, top_p, min_p, row, greedy, V)
    cand_x += row * lists
    by_count = (k < V) | (least > 0)
    token, floor = tl.full((), -1, tl.int32), tl.full((), NINF, tl.float32)
    everything = tl.zeros((), tl.int64)
    last = tl.zeros((), tl.int32) + tl.where(by_count, 0, 4 * ROUNDS)
    bits = row_bits(seed, noise, seeded, step, row, last, greedy)
    listed = tl.zeros((), tl.int32)
    if n == PLATEAU:
        top = tl.load(cand_x)
        bits = tl.where(top == INF, tl.zeros_like(bits), bits)
        token = draw_above(
            start, V, id_stride, block_mass, same_scaled(top, t, -1), top, t, least, bits,
            True, STRIDED, SCALE, BLOCK, BLOCKS,
        )  # fmt: skip
    elif n == OPEN:
        floor = tl.max(tl.load(edge + row * 4 + tl.arange(0, 4)), 0)
        everything = tl.load(total + row)
    elif by_count:
        listed = tl.where(n <= CAP, n, 0)
    else:
        given_p = tl.full((), 1.0, tl.float32)
        if top_p is not None:
            given_p = tl.load(top_p + row)
        token, floor, everything = _propose(
            start, id_stride, t, p, given_p, seed, noise, seeded, step, row,
            chunk_max + row * chunks, chunk_mass + row * chunks, chunks, V,
            ROUNDS, STRIDED, SCALE, CHUNKS, R, C, BLOCK,
        )  # fmt: skip
    cand_i += row * lists
    if (token < 0) & (by_count == 0):
        n = _list_above(start, id_stride, V, floor, cand_x, cand_i, STRIDED, CAP, BLOCK)
        listed = tl.where(n <= CAP, n, 0)
    if listed > 0:
        at = draw_from_list(cand_x, listed, everything, t, k, p, least, bits, SCALE, CAP)
        token = tl.load(cand_i + at)
    if token < 0:
        low = tl.full((), _LOWEST, tl.float32)
        low = tl.maximum(low, tl.where(by_count, tl.load(cand_x), floor))
        token = filter_and_draw(
            start, V, id_stride, block_mass, low, everything, t, k, p, least, bits,
            STRIDED, SCALE, BLOCK, BLOCKS,
        )  # fmt: skip
    tl.store(out + row, token)

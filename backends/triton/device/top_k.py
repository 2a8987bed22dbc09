"""Rows with top-k or min-p, greedy ones among them: few chunks reopened, few candidates ranked.

The k-th largest chunk maximum bounds the k-th value from below, so only chunks that reach it can
hold a kept id.  Their ids that reach it, in index order, are ranked against each other: how many
and how much mass lie strictly above.  Ties, top-k, top-p of what top-k left and the draw follow
from these two numbers; nothing is sorted.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.nucleus import WHOLE
from refsampler.backends.triton.device.numbers import (
    INF,
    LAST,
    LOG2E,
    LOWEST,
    NINF,
    below,
    fixed,
    key_value,
    mass_edge,
    order_key,
    relative,
    same_scaled,
)
from refsampler.backends.triton.device.rows import (
    controls,
    load_logits,
    row_bits,
    row_temperature,
    store_both,
)
from refsampler.backends.triton.device.search import draw_from_list, draw_level

__all__ = ["PLATEAU", "bound_by_count", "candidates", "top_k_kernel"]

PLATEAU = tl.constexpr(-2)
"""In `todo`: drawn, from at least k ids that share the largest value; nothing else is kept."""


@triton.jit
def bound_by_count(key, k, k_slack):
    """Return a value that at least k keys reach, and hardly more than k + slack: bisection."""
    low, high = tl.min(key, 0).to(tl.int64), tl.max(key, 0).to(tl.int64) + 1
    reach = k + k_slack + 1
    while (high - low > 1) & (reach > k + k_slack):
        middle = (low + high) >> 1
        count = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0)
        enough = count >= k
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        reach = tl.where(enough, count, reach)
    return key_value(low.to(tl.int32))


@triton.jit
def _bound_by_min_p(top, t, least):
    """Return a value that every id which min-p keeps reaches, with room for rounding."""
    gap = t * tl.log2(tl.maximum(least, 1e-37)) / LOG2E
    return top + gap * 1.00001 - 1e-6 * tl.abs(top) - 1e-6 * t


@triton.jit
def candidates(
    logits, id_stride, picked, selected, bound, cand_x, cand_i, V,
    STRIDED: tl.constexpr, PTX: tl.constexpr, C: tl.constexpr, G: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Copy what reaches the bound from the picked chunks, in index order; return how many.

    From CAP on they are only counted.
    """
    n = tl.zeros((), tl.int32)
    bound = tl.maximum(bound, LOWEST)
    g = tl.arange(0, G)
    ahead = tl.load(picked + g, mask=g < selected, other=0)
    for first in range(0, selected, G):
        place, chunk = first + g, ahead
        ahead = tl.load(picked + place + G, mask=place + G < selected, other=0)
        ids = chunk[:, None] * C + tl.arange(0, C)[None, :]
        alive = (place < selected)[:, None] & (ids < V)
        x = load_logits(logits, ids, id_stride, alive, STRIDED)
        take = (x >= bound).to(tl.int32)
        each = tl.sum(take, 1)
        at = n + (tl.cumsum(each, 0) - each)[:, None] + tl.cumsum(take, 1) - take
        store_both(cand_x + at, x, cand_i + at, ids, (take > 0) & (at < CAP), PTX)
        n += tl.sum(each, 0)
    return n


@triton.jit
def _rank_and_draw(
    cand_x, n, top, t, k, p, least, bits, SCALE: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """Return the position drawn among n <= FAST candidates, by comparing all pairs."""
    i, s = tl.arange(0, FAST), LOG2E / t
    x = tl.load(cand_x + i, mask=i < n, other=NINF)
    y, e = tl.div_rn(x, t), relative(x, top, s)
    w = fixed(e, SCALE)
    count, above = tl.zeros((FAST,), tl.int32), tl.zeros((FAST,), tl.int64)
    for j in tl.range(0, n, loop_unroll_factor=4):
        other = tl.load(cand_x + j)
        e_other = relative(other, top, s)
        higher = tl.div_rn(other, t) > y
        count += higher.to(tl.int32)
        mass = tl.where(e_other >= least, fixed(e_other, SCALE), 0)
        above += tl.where(higher, mass, 0)
    keep = (i < n) & (count < k) & (e >= least)
    edge = mass_edge(p, tl.sum(tl.where(keep, w, 0), 0))
    w = tl.where(keep & (above < edge), w, 0)
    target = below(bits, tl.sum(w, 0))
    return tl.min(tl.where(tl.cumsum(w, 0) > target, i, LAST), 0)


@triton.jit(do_not_specialize=["picks", "lists"])
def top_k_kernel(
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
    picked,
    cand_x,
    cand_i,
    todo,
    out,
    V,
    chunks,
    picks,
    lists,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    SCALE: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
    G: tl.constexpr,
    CAP: tl.constexpr,
    FAST: tl.constexpr,
    MOST: tl.constexpr,
    W: tl.constexpr,
    L: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Draw one id a program, or say in `todo` that the whole row is left."""
    row = tl.program_id(0).to(tl.int64)
    t, greedy = row_temperature(temperature, row)
    k, p, least = controls(top_k, top_p, min_p, row, greedy, V)
    if (k >= V) & (least <= 0):
        tl.store(todo + row, WHOLE)
        return
    a = tl.arange(0, CHUNKS)
    m = tl.load(chunk_max + row * chunks + a, mask=a < chunks, other=NINF)
    top = tl.max(m, 0)
    if top == INF:
        t, k, p, least = t * 0 + 1, k * 0 + 1, p * 0 + 2, least * 0
    zero = tl.zeros((), tl.int32)
    bits = row_bits(seed, noise, seeded, step, row, zero, greedy | (top == INF))
    bound = tl.full((), NINF, tl.float32)
    if k <= chunks:
        bound = bound_by_count(order_key(m), k, 3)
    if least > 0:
        bound = tl.maximum(bound, _bound_by_min_p(top, t, least))
    bound = tl.where(bound > NINF, same_scaled(bound, t, -1), bound)
    reaches = ((m >= bound) & (m > NINF)).to(tl.int32)
    selected = tl.sum(reaches, 0)
    picked += row * picks
    tl.store(picked + tl.cumsum(reaches, 0) - 1, a, mask=reaches > 0)
    tl.debug_barrier()
    cand_x += row * lists
    cand_i += row * lists
    start = logits + row * row_stride
    if selected > MOST:
        low = same_scaled(top, t, -1)
        if tl.sum((m >= low).to(tl.int32), 0) >= k:
            # Its list of chunks is not needed any more: the counts go there.
            token = draw_level(start, V, id_stride, picked, low, bits, STRIDED, W, L, PARTS)
            tl.store(out + row, token)
            tl.store(todo + row, PLATEAU)
        else:
            tl.store(todo + row, WHOLE)
            tl.store(cand_x, bound)
    else:
        n = candidates(
            start, id_stride, picked, selected, bound, cand_x, cand_i, V, STRIDED, PTX, C, G, CAP
        )
        tl.debug_barrier()
        tl.store(todo + row, tl.where(n <= CAP, 0, WHOLE))
        if n == 0:
            tl.store(out + row, 0)
        elif n > CAP:
            tl.store(cand_x, bound)
        else:
            if n <= FAST:
                at = _rank_and_draw(cand_x, n, top, t, k, p, least, bits, SCALE, FAST)
            else:
                at = draw_from_list(cand_x, n, t, k, p, least, bits, SCALE, CAP)
            tl.store(out + row, tl.load(cand_i + at))

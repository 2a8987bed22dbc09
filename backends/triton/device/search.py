"""A row in one program: searches for the edge of a filter, and a draw from what it leaves.

The source is the row itself, or a list of candidates that stays in registers.  Counts and
masses are integers, so nothing here depends on block size, warps or the order of sums.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import (
    INF,
    LAST,
    LOG2E,
    NINF,
    below,
    fixed,
    key_value,
    mass_edge,
    order_key,
    relative,
    same_scaled,
)
from refsampler.backends.triton.device.rows import load_logits

__all__ = [
    "draw_above",
    "draw_from_list",
    "draw_level",
    "filter_and_draw",
    "list_edge",
    "list_mass",
    "mass_above",
    "row_edge",
    "row_mass",
]


@triton.jit
def _weights(x, low, top, t, least, SCALE: tl.constexpr):
    """Return fixed-point masses of x >= low that min-p keeps, 0 elsewhere."""
    e = relative(x, top, LOG2E / t)
    return tl.where((x >= low) & (x > NINF) & (e >= least), fixed(e, SCALE), 0)


@triton.jit
def _edge(
    source, length, stride, tile, t, top, low, want, least,
    COUNT: tl.constexpr, LIST: tl.constexpr, STRIDED: tl.constexpr,
    SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the largest v with f(x >= v) >= want, or low; f counts ids or adds masses.

    Keys are searched by quarters, the largest logit alone first.  With LIST the tile is all.
    """
    DT: tl.constexpr = tl.int32 if COUNT else tl.int64
    a = tl.arange(0, BLOCK)
    lo, end = order_key(low).to(tl.int64), order_key(top).to(tl.int64) + 1
    hi, q = end, tl.maximum(end - 1 - lo, 1)
    reach = tl.zeros((), DT)
    while (hi - lo > 1) & (reach != want):
        k1, k2, k3 = lo + q, tl.minimum(lo + 2 * q, LAST), tl.minimum(lo + 3 * q, LAST)
        f1, f2, f3 = tl.zeros((BLOCK,), DT), tl.zeros((BLOCK,), DT), tl.zeros((BLOCK,), DT)
        for first in range(0, length, BLOCK):
            x = tile
            if not LIST:
                x = load_logits(source, first + a, stride, first + a < length, STRIDED)
            if COUNT:
                w = (x > NINF).to(tl.int32)
            else:
                w = _weights(x, low, top, t, least, SCALE)
            key = order_key(x)
            f1 += tl.where(key >= k1.to(tl.int32), w, 0)
            f2 += tl.where(key >= k2.to(tl.int32), w, 0)
            f3 += tl.where(key >= k3.to(tl.int32), w, 0)
        if COUNT and LIST:
            # 21 bits each: one reduction instead of three.
            n = tl.sum(f1.to(tl.int64) + (f2.to(tl.int64) << 21) + (f3.to(tl.int64) << 42), 0)
            n1, n2 = (n & 0x1FFFFF).to(tl.int32), ((n >> 21) & 0x1FFFFF).to(tl.int32)
            n3 = (n >> 42).to(tl.int32)
        else:
            n1, n2, n3 = tl.sum(f1, 0), tl.sum(f2, 0), tl.sum(f3, 0)
        s1, s2, s3 = (n1 >= want).to(tl.int64), (n2 >= want).to(tl.int64), (n3 >= want).to(tl.int64)
        steps = s1 + s2 + s3
        reach = tl.where(steps == 0, reach, tl.where(steps == 1, n1, tl.where(steps == 2, n2, n3)))
        hi = tl.minimum(tl.where(steps == 3, hi, lo + q * (steps + 1)), end)
        lo = lo + q * steps
        q = tl.maximum((hi - lo) >> 2, 1)
    return same_scaled(key_value(lo.to(tl.int32)), t, -1)


@triton.jit
def _first_beyond(w, ids, bits, fallback):
    """Return the first id whose cumulative weight exceeds the draw."""
    target = below(bits, tl.sum(w, 0))
    return tl.min(tl.where(tl.cumsum(w, 0) > target, ids, fallback), 0)


@triton.jit
def mass_above(
    source, length, stride, limit, top, t, STRIDED: tl.constexpr, SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the mass strictly above a limit."""
    a, mass = tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.int64)
    for first in range(0, length, BLOCK):
        x = load_logits(source, first + a, stride, first + a < length, STRIDED)
        mass += tl.where(x > limit, _weights(x, NINF, top, t, 0.0, SCALE), 0)
    return tl.sum(mass, 0)


@triton.jit
def draw_above(
    source, length, stride, block_mass, low, top, t, least, bits,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return an id drawn from x >= low that min-p keeps: two steps, one read."""
    a, b = tl.arange(0, BLOCK), tl.arange(0, BLOCKS)
    for first in range(0, length, BLOCK):
        x = load_logits(source, first + a, stride, first + a < length, STRIDED)
        mass = tl.sum(_weights(x, low, top, t, least, SCALE), 0)
        tl.store(block_mass + first // BLOCK, mass)
    tl.debug_barrier()
    masses = tl.load(block_mass + b, mask=b * BLOCK < length, other=0)
    target, upto = below(bits, tl.sum(masses, 0)), tl.cumsum(masses, 0)
    block = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), BLOCKS - 1)
    target -= tl.sum(tl.where(b < block, masses, 0), 0)
    ids = block * BLOCK + a
    x = load_logits(source, ids, stride, ids < length, STRIDED)
    w = _weights(x, low, top, t, least, SCALE)
    return tl.min(tl.where(tl.cumsum(w, 0) > target, ids, length - 1), 0)


@triton.jit
def draw_level(
    source, length, stride, counts, low, bits,
    STRIDED: tl.constexpr, W: tl.constexpr, L: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Return an id drawn from x >= low, all alike; `counts` takes one number for each L ids.

    L ids lie inside one warp: the read waits for no other.
    """
    w, a, b = tl.arange(0, W), tl.arange(0, L), tl.arange(0, PARTS)
    for first in range(0, length, W * L):
        ids = first + w[:, None] * L + a[None, :]
        x = load_logits(source, ids, stride, ids < length, STRIDED)
        tl.store(counts + first // L + w, tl.sum((x >= low).to(tl.int32), 1))
    tl.debug_barrier()
    each = tl.load(counts + b, mask=b * L < length, other=0).to(tl.int64)
    target, upto = below(bits, tl.sum(each, 0)), tl.cumsum(each, 0)
    part = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), PARTS - 1)
    target -= tl.sum(tl.where(b < part, each, 0), 0)
    ids = part * L + a
    x = load_logits(source, ids, stride, ids < length, STRIDED)
    return tl.min(tl.where(tl.cumsum((x >= low).to(tl.int64), 0) > target, ids, length - 1), 0)


@triton.jit
def list_edge(cand_x, n, t, k, p, least, SCALE: tl.constexpr, CAP: tl.constexpr):
    """Return the lowest logit that min-p, top-k and top-p keep of n <= CAP candidates."""
    a = tl.arange(0, CAP)
    x = tl.load(cand_x + a, mask=a < n, other=NINF)
    top = tl.max(x, 0)
    low = tl.min(tl.where(a < n, x, top), 0)
    if k < n:
        low = _edge(cand_x, CAP, 1, x, t, top, low, k, least, True, True, False, SCALE, CAP)
    if p < 1.0:
        want = mass_edge(p, tl.sum(_weights(x, low, top, t, least, SCALE), 0))
        low = _edge(cand_x, CAP, 1, x, t, top, low, want, least, False, True, False, SCALE, CAP)
    return low


@triton.jit
def _list_weights(cand_x, n, t, low, least, SCALE: tl.constexpr, CAP: tl.constexpr):
    a = tl.arange(0, CAP)
    x = tl.load(cand_x + a, mask=a < n, other=NINF)
    return _weights(x, low, tl.max(x, 0), t, least, SCALE)


@triton.jit
def list_mass(cand_x, n, t, low, least, SCALE: tl.constexpr, CAP: tl.constexpr):
    """Return the mass of the candidates from `low` on."""
    return tl.sum(_list_weights(cand_x, n, t, low, least, SCALE, CAP), 0)


@triton.jit
def draw_from_list(
    cand_x, n, t, k, p, least, bits, SCALE: tl.constexpr, CAP: tl.constexpr
):  # fmt: skip
    """Return the position of an id drawn from the n <= CAP candidates that the filters keep."""
    low = list_edge(cand_x, n, t, k, p, least, SCALE, CAP)
    w = _list_weights(cand_x, n, t, low, least, SCALE, CAP)
    return _first_beyond(w, tl.arange(0, CAP), bits, n - 1)


@triton.jit
def _row_max(
    start, V, stride, STRIDED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    a = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), NINF, tl.float32)
    for first in range(0, V, BLOCK):
        x = load_logits(start, first + a, stride, first + a < V, STRIDED)
        high = tl.maximum(high, x)
    return tl.max(high, 0)


@triton.jit
def row_mass(
    start, V, stride, low, top, t, least,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the mass of the row from `low` on, of what min-p keeps."""
    a, mass = tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.int64)
    for first in range(0, V, BLOCK):
        x = load_logits(start, first + a, stride, first + a < V, STRIDED)
        mass += _weights(x, low, top, t, least, SCALE)
    return tl.sum(mass, 0)


@triton.jit
def row_edge(
    start, V, stride, low, total, top, t, k, p, least,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the lowest logit that top-k and top-p keep of a row, none is below `low`.

    `total` is the mass that top-p refers to, if that is known, else 0.
    """
    nothing = tl.full((BLOCK,), NINF, tl.float32)
    if k < V:
        low = _edge(
            start, V, stride, nothing, t, top, low, k, least, True, False, STRIDED, SCALE, BLOCK
        )
    if p < 1.0:
        mass = row_mass(start, V, stride, low, top, t, least, STRIDED, SCALE, BLOCK)
        want = mass_edge(p, tl.where(total > 0, total, mass))
        low = _edge(
            start, V, stride, nothing, t, top, low, want, least, False, False, STRIDED, SCALE,
            BLOCK,
        )  # fmt: skip
    return low


@triton.jit
def filter_and_draw(
    start, V, stride, block_mass, low, total, t, k, p, least, bits,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return an id of the whole row, drawn after min-p, top-k and top-p; none is below `low`."""
    top = _row_max(start, V, stride, STRIDED, BLOCK)
    flat = top == INF
    t, k, p = tl.where(flat, 1.0, t), tl.where(flat, 1, k), tl.where(flat, 2.0, p)
    bits = tl.where(flat, tl.zeros_like(bits), bits)
    low = row_edge(start, V, stride, low, total, top, t, k, p, least, STRIDED, SCALE, BLOCK)
    return draw_above(
        start, V, stride, block_mass, low, top, t, least, bits, STRIDED, SCALE, BLOCK, BLOCKS
    )

"""Numbers of the kernels: ordered keys, scaled ties, fixed-point masses, counter-based noise."""

import triton
import triton.language as tl

__all__ = [
    "INF",
    "INT64_MAX",
    "LAST",
    "LOG2E",
    "LOWEST",
    "NINF",
    "at_least",
    "below",
    "chunk_masses",
    "chunk_max",
    "fixed",
    "fixed_each",
    "fixed_sums",
    "key_value",
    "lane_sums",
    "mass_edge",
    "order_key",
    "power",
    "random64",
    "relative",
    "row_max",
    "same_scaled",
]

LOG2E = tl.constexpr(1.4426950408889634)
NINF = tl.constexpr(float("-inf"))
LAST = tl.constexpr(2147483647)
"""Larger than every id, position and key."""
INT64_MAX = tl.constexpr(9223372036854775807)
INF = tl.constexpr(float("inf"))
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""Below every other finite number."""
_MAXIMUM_DROPS_NAN = tl.constexpr(not triton.knobs.runtime.interpret)
"""On a GPU the larger of NaN and a number is the number; numpy, which interprets, returns NaN."""


@triton.jit
def at_least(x, least):
    """Return the larger, in one instruction; `least` where x is NaN."""
    if _MAXIMUM_DROPS_NAN:
        larger = tl.maximum(x, least)
    else:
        larger = tl.where(x > least, x, least)
    return larger


@triton.jit
def row_max(x):
    """Return the maximum of each row of x [R, C], not counting NaN; -inf if there is nothing else."""
    if not _MAXIMUM_DROPS_NAN:
        x = at_least(x, NINF)
    return at_least(tl.max(x, 1), NINF)


@triton.jit
def power(x, PTX: tl.constexpr):
    """Return 2^x; numbers below 2^-126, which no mass is fine enough to see, may become 0.

    With PTX this is one instruction, where the compiler's own also serves those numbers.
    """
    if PTX:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def lane_sums(x, limit, e, PTX: tl.constexpr):
    """Return the sums [W, LANES] over the middle axis of e >= 0 where x > limit.

    With PTX the comparison gives a number, which is multiplied: two instructions instead of three.
    """
    if PTX:
        one = tl.inline_asm_elementwise(
            "set.gt.f32.f32 $0, $1, $2;", "=f,f,f", [x, limit], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip
        e = e * one
    else:
        e = tl.where(x > limit, e, 0.0)
    return tl.sum(e, 1)


@triton.jit
def relative(x, top, s):
    """Return exp(x - top) in units of s = log2(e) / T; 1 at the top, even if that is infinite."""
    return tl.where(x == top, 1.0, tl.exp2((x - top) * s))


@triton.jit
def order_key(x):
    """Return the int32 whose signed order is the order of the floats; -0 and +0 share one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """Return the float of an order key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def same_scaled(x, t, STEP: tl.constexpr):
    """Return the outermost value, upwards (STEP 1) or downwards (-1), with the same x / t.

    Division by t merges neighbours: at most three floats share one quotient.  Infinities stay.
    """
    y = tl.div_rn(x, t)
    infinite = tl.abs(x) == INF
    for _ in range(2):
        beside = key_value(order_key(x) + STEP)
        x = tl.where((tl.div_rn(beside, t) == y) & (infinite == 0), beside, x)
    return x


@triton.jit
def fixed(w, SCALE: tl.constexpr):
    """Return a float32 weight as int64: sums of these depend on no order, block or wave size."""
    return (w * SCALE).to(tl.int64)


@triton.jit
def _parts(e):
    """Return e, numbers in [0, 1], as integers in units of 2^-22 and of 2^-44, to be added.

    A number is split by adding 3.0, whose neighbours are 2^-22 apart: float additions only, where a
    conversion to int64 would cost more than the read it hides behind.
    """
    three = tl.full(e.shape, 3.0, tl.float32)
    base = three.to(tl.int32, bitcast=True)
    raised = e + three
    rest = (e - (raised - three)) * 4194304.0
    return raised.to(tl.int32, bitcast=True) - base, (rest + three).to(
        tl.int32, bitcast=True
    ) - base


@triton.jit
def fixed_sums(e):
    """Return the sum of each chunk of e [R, H, LANES], numbers in [0, 1], in units of 2^-44.

    A chunk has at most 256, so that sums of 32 bits do.
    """
    high, low = _parts(e)
    high, low = tl.sum(tl.sum(high, 1), 1), tl.sum(tl.sum(low, 1), 1)
    return (high.to(tl.int64) << 22) + low.to(tl.int64)


@triton.jit
def fixed_each(e):
    """Return what `fixed_sums` adds."""
    high, low = _parts(e)
    return (high.to(tl.int64) << 22) + low.to(tl.int64)


@triton.jit
def chunk_max(x):
    """Return the maximum of each chunk of x [R, H, LANES], not counting NaN; -inf without another."""
    if not _MAXIMUM_DROPS_NAN:
        x = at_least(x, NINF)
    return at_least(tl.max(tl.max(x, 1), 1), NINF)


@triton.jit
def chunk_masses(x, top, t, PTX: tl.constexpr):
    """Return the mass of each chunk of x [R, H, LANES] relative to its maximum, in units of 2^-44.

    NaN has none, nor has +inf beside itself: rows that hold +inf are not drawn by mass.
    """
    shift = tl.where(top == NINF, 0.0, top)
    e = power((x - shift[:, None, None]) * (LOG2E / t), PTX)
    return fixed_sums(at_least(e, 0.0))


@triton.jit
def mass_edge(p, total):
    """Return the mass that must not lie above a kept id; everything is kept from p = 1 on."""
    edge = tl.maximum(tl.ceil(p * total.to(tl.float64)).to(tl.int64), 1)
    return tl.where(p >= 1.0, INT64_MAX, edge)


@triton.jit
def random64(key, step, proposal, stream):
    """Return 64 bits of Philox4x32-10 with that key and counter (step, proposal, stream)."""
    zero = proposal.to(tl.uint32) * 0
    low, high = (step & 0xFFFFFFFF).to(tl.uint32), ((step >> 32) & 0xFFFFFFFF).to(tl.uint32)
    r0, r1, _, _ = tl.philox(
        key, zero + low, zero + high, proposal.to(tl.uint32), zero + stream.to(tl.uint32)
    )
    return (r0.to(tl.uint64) << 32) | r1.to(tl.uint64)


@triton.jit
def below(bits, total):
    """Return floor(bits * total / 2^64): an integer in [0, total), the draw against int64 sums."""
    return tl.umulhi(bits, tl.zeros_like(bits) + total.to(tl.uint64)).to(tl.int64)

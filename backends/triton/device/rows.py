"""What a program knows of its row: logits, controls, noise."""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import NINF, at_least, random64

__all__ = [
    "controls",
    "load_chunks",
    "load_logits",
    "load_parts",
    "row_bits",
    "row_temperature",
    "store_both",
]

_GREEDY_BELOW = tl.constexpr(1e-5)


@triton.jit
def load_logits(start, ids, stride, alive, STRIDED: tl.constexpr):
    """Return float32 logits at `ids` of the row that starts there; -inf where not `alive`, NaN too."""
    at = ids
    if STRIDED:
        at = ids.to(tl.int64) * stride
    return at_least(tl.load(start + at, mask=alive, other=NINF).to(tl.float32), NINF)


@triton.jit
def load_chunks(
    start, chunk, id_stride, V, STRIDED: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Return raw logits [R, C / LANES, LANES] of R chunks of C ids from `chunk` on.

    A warp has LANES ids of a chunk at a time, and all of it: sums over a chunk wait for no other.
    """
    h, r, i = tl.arange(0, C // LANES), tl.arange(0, R), tl.arange(0, LANES)
    ids = r[:, None, None] * C + h[None, :, None] * LANES + i[None, None, :]
    return _load(start, chunk * C, ids, R * C, id_stride, V, STRIDED)


@triton.jit
def load_parts(
    start, first, id_stride, V, STRIDED: tl.constexpr, A: tl.constexpr, W: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Return raw logits [W, A, LANES] from id `first` on: W parts, each inside one warp."""
    a, w, i = tl.arange(0, A), tl.arange(0, W), tl.arange(0, LANES)
    ids = w[:, None, None] * LANES + a[None, :, None] * (W * LANES) + i[None, None, :]
    return _load(start, first, ids, A * W * LANES, id_stride, V, STRIDED)


@triton.jit
def _load(start, first, ids, length, id_stride, V, STRIDED: tl.constexpr):
    ids += first
    at = ids
    if STRIDED:
        at = ids.to(tl.int64) * id_stride
    if first + length <= V:
        x = tl.load(start + at).to(tl.float32)
    else:
        x = tl.load(start + at, mask=ids < V, other=NINF).to(tl.float32)
    return x


@triton.jit
def store_both(xs, x, ids_at, ids, mask, PTX: tl.constexpr):
    """Store float32 and int32 values at scattered places where `mask`.

    The compiler would first move them, the mask and the pointers to threads in order of the places,
    as if those were neighbours: trips through shared memory.  With PTX they stay where they are.
    """
    if PTX:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $5, 0; @p st.global.b32 [$1], $2;"
            " @p st.global.b32 [$3], $4; mov.b32 $0, 0; }",
            "=r,l,r,l,r,r",
            [
                xs.to(tl.int64),
                x.to(tl.int32, bitcast=True),
                ids_at.to(tl.int64),
                ids,
                mask.to(tl.int32),
            ],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(xs, x, mask=mask)
        tl.store(ids_at, ids, mask=mask)


@triton.jit
def row_temperature(temperature, row):
    """Return the row's temperature, 1 without one, and whether it is greedy (then T counts as 1)."""
    t = tl.full((), 1.0, tl.float32)
    if temperature is not None:
        t = tl.load(temperature + row)
    greedy = t < _GREEDY_BELOW
    return tl.where(greedy, 1.0, t), greedy


@triton.jit
def controls(top_k, top_p, min_p, row, greedy, V):
    """Return k (V: off), p (2: off) and min-p (0: off) of a row; a greedy one has k = 1 alone."""
    k = tl.zeros((), tl.int32) + V
    if top_k is not None:
        asked = tl.load(top_k + row).to(tl.int32)
        k = tl.where((asked <= 0) | (asked > V), V, asked)
    p = tl.full((), 2.0, tl.float64)
    if top_p is not None:
        given = tl.load(top_p + row).to(tl.float64)
        p = tl.where(given < 1.0, given, 2.0)
    least = tl.zeros((), tl.float32)
    if min_p is not None:
        least = tl.load(min_p + row)
    return tl.where(greedy, 1, k), tl.where(greedy, 2.0, p), tl.where(greedy, 0.0, least)


@triton.jit
def row_bits(seed, noise, seeded, step, row, proposal, greedy):
    """Return 64 random bits for each proposal of the row; 0, the lowest id, if it is greedy.

    A seeded row's are a function of (seed, step), another's of a key that torch's generator gave.
    """
    own = tl.load(seeded + row) != 0
    key = tl.load(seed + row)
    stream = tl.zeros((), tl.int32)
    if noise is not None:
        key = tl.where(own, key, tl.load(noise + row))
        stream = tl.where(own, 0, 1)
    bits = random64(key, tl.load(step + row), proposal, stream)
    return tl.where(greedy, tl.zeros_like(bits), bits)

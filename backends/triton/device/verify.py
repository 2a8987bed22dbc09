"""Verifying drafts: which of them are accepted, and what stands behind the last one.

Of the target rows of the drafts one read is needed, for their normalisers; acceptance then takes two
numbers a draft.  Only the row of the first draft that is not accepted is read again, with its draft
law, for the masses of max(p - q, 0): one uniform picks a chunk, which is reopened, and the id in it.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import (
    INF,
    LAST,
    LOG2E,
    LOWEST,
    NINF,
    at_least,
    below,
    fixed,
    fixed_each,
    fixed_sums,
    power,
    random64,
    relative,
)
from refsampler.backends.triton.device.rows import load_chunks, load_logits, row_temperature
from refsampler.backends.triton.device.scan import store_masses
from refsampler.backends.triton.device.search import draw_above

__all__ = ["draft_scan_kernel", "judge_kernel", "residual_kernel", "settle_kernel"]

_UNIT = tl.constexpr(2.0**-44)
_ACCEPT, _RECOVER = tl.constexpr(2), tl.constexpr(4)
"""Streams of noise of seeded requests, those of others are the next; 0 and 1 are the draw's."""


@triton.jit
def _bits(seed, noise, seeded, step, request, place, STREAM: tl.constexpr):
    """Return 64 random bits for a place behind the request's step."""
    own = tl.load(seeded + request) != 0
    key = tl.where(own, tl.load(seed + request), tl.load(noise + request))
    number = tl.zeros((), tl.int32) + place
    return random64(key, tl.load(step + request), number, tl.where(own, STREAM, STREAM + 1))


@triton.jit(do_not_specialize=["blocks"])
def draft_scan_kernel(
    logits,
    row_stride,
    id_stride,
    position,
    owner,
    temperature,
    mass_max,
    chunk_mass,
    V,
    chunks,
    blocks,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write R maxima and masses of a draft's target row a program; grid drafts * blocks."""
    program = tl.program_id(0)
    draft, block = (program // blocks).to(tl.int64), program % blocks
    start = logits + tl.load(position + draft) * row_stride
    x = load_chunks(start, block * R, id_stride, V, STRIDED, R, C, LANES)
    t, _ = row_temperature(temperature, tl.load(owner + draft))
    at = draft * chunks + block * R
    store_masses(x, t, mass_max + at, chunk_mass + at, PTX)


@triton.jit
def _argmax(start, id_stride, chunk_max, top, V, STRIDED: tl.constexpr, C: tl.constexpr):
    """Return the lowest id of the largest logit."""
    a = tl.arange(0, chunk_max.shape[0])
    ids = tl.min(tl.where(chunk_max == top, a, LAST), 0) * C + tl.arange(0, C)
    x = load_logits(start, ids, id_stride, ids < V, STRIDED)
    return tl.min(tl.where(x == top, ids, LAST), 0)


@triton.jit
def judge_kernel(
    logits,
    row_stride,
    id_stride,
    draft_ids,
    draft_probs,
    law_stride,
    position,
    owner,
    first,
    temperature,
    seed,
    noise,
    seeded,
    step,
    mass_max,
    chunk_mass,
    low,
    kept,
    accepted,
    best,
    largest,
    scale,
    V,
    chunks,
    STRIDED: tl.constexpr,
    SCALE: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
):
    """Accept a draft or not, one a program, whatever happens to those before it.

    Writes what p is made of: the largest logit and one over the sum, 0 where the target is certain,
    as that of a greedy request is; then `best` is its id, and the only draft to accept.
    """
    draft = tl.program_id(0).to(tl.int64)
    request = tl.load(owner + draft)
    start = logits + tl.load(position + draft) * row_stride
    t, greedy = row_temperature(temperature, request)
    a, s = tl.arange(0, CHUNKS), LOG2E / t
    m = tl.load(mass_max + draft * chunks + a, mask=a < chunks, other=NINF)
    top = tl.max(m, 0)
    token = tl.load(draft_ids + draft).to(tl.int32)
    real = (token >= 0) & (token < V)
    tl.store(largest + draft, top)
    if greedy | (top == INF) | (top == NINF):
        argmax = _argmax(start, id_stride, m, top, V, STRIDED, C)
        tl.store(best + draft, tl.where(top > NINF, argmax, 0))
        tl.store(scale + draft, tl.zeros((), tl.float32))
        tl.store(accepted + draft, ((token == argmax) & (top > NINF)).to(tl.int32))
    else:
        if kept is None:
            mass = tl.load(chunk_mass + draft * chunks + a, mask=a < chunks, other=0)
            mass = mass.to(tl.float32) * _UNIT * relative(m, top, s)
            total = tl.sum(fixed(tl.where(m > NINF, mass, 0.0), SCALE), 0)
            least = tl.full((), LOWEST, tl.float32)
        else:
            total, least = tl.load(kept + draft), tl.load(low + draft)
        over = SCALE / total.to(tl.float64)
        tl.store(scale + draft, over.to(tl.float32))
        x = load_logits(start, token, id_stride, real, STRIDED)
        p = tl.where(x >= least, relative(x, top, s), 0.0).to(tl.float64) * over
        q = tl.full((), 1.0, tl.float64)
        if draft_probs is not None:
            at = draft_probs + draft * law_stride + token
            q = tl.load(at, mask=real, other=0.0).to(tl.float64)
        place = draft - tl.load(first + request)
        bits = _bits(seed, noise, seeded, step, request, place, _ACCEPT)
        u = (bits >> 11).to(tl.int64).to(tl.float64) * 2.0**-53
        tl.store(accepted + draft, (real & (q > 0) & (u * q < p)).to(tl.int32))


@triton.jit
def _prefix(accepted, start, size, MOST: tl.constexpr):
    """Return how many drafts come before the first that is not accepted; MOST exceeds `size`."""
    j = tl.arange(0, MOST)
    one = tl.load(accepted + start + j, mask=j < size, other=0)
    return tl.min(tl.where(one == 0, j, LAST), 0)


@triton.jit
def _left(x, q, top, s, over, least, PTX: tl.constexpr):
    """Return max(p - q, 0) of logits x and draft law q, numbers in [0, 1]."""
    e = at_least(power((x - top) * s, PTX), 0.0)
    p = tl.where(x >= least, e * over, 0.0)
    return at_least(p - at_least(q, 0.0), 0.0)


@triton.jit(do_not_specialize=["blocks"])
def residual_kernel(
    logits,
    row_stride,
    id_stride,
    draft_ids,
    draft_probs,
    law_stride,
    position,
    first,
    sizes,
    temperature,
    low,
    accepted,
    largest,
    scale,
    residual,
    V,
    chunks,
    blocks,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    MOST: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write the masses of what is left of R chunks a program; grid requests * blocks.

    Nothing is read for requests whose drafts are all accepted, nor where the target is certain.
    """
    program = tl.program_id(0)
    request, block = (program // blocks).to(tl.int64), program % blocks
    size, begin = tl.load(sizes + request), tl.load(first + request)
    length = _prefix(accepted, begin, size, MOST)
    if length >= size:
        return
    draft = begin + length
    over = tl.load(scale + draft)
    if over == 0:
        return
    token = tl.load(draft_ids + draft).to(tl.int32)
    start = logits + tl.load(position + draft) * row_stride
    x = load_chunks(start, block * R, id_stride, V, STRIDED, R, C, LANES)
    if draft_probs is None:
        h, r, i = tl.arange(0, C // LANES), tl.arange(0, R), tl.arange(0, LANES)
        ids = (block * R + r[:, None, None]) * C + h[None, :, None] * LANES + i[None, None, :]
        q = (ids == token).to(tl.float32)
    else:
        law = draft_probs + draft * law_stride
        q = load_chunks(law, block * R, 1, V, False, R, C, LANES)
        q = tl.where(token < 0, 0.0, q)
    t, _ = row_temperature(temperature, request)
    least = tl.full((), LOWEST, tl.float32)
    if low is not None:
        least = tl.load(low + draft)
    w = _left(x, q, tl.load(largest + draft), LOG2E / t, over, least, PTX)
    tl.store(residual + request * chunks + block * R + tl.arange(0, R), fixed_sums(w))


@triton.jit
def _recover(
    start, id_stride, law, token, top, t, over, least, bits, residual, block_mass, chunks, V,
    STRIDED: tl.constexpr, PTX: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return an id drawn from max(p - q, 0), or from p where nothing is left."""
    a, i = tl.arange(0, CHUNKS), tl.arange(0, C)
    w = tl.load(residual + a, mask=a < chunks, other=0)
    total, upto = tl.sum(w, 0), tl.cumsum(w, 0)
    if total > 0:
        target = below(bits, total)
        chunk = tl.sum((upto <= target).to(tl.int32), 0)
        target -= tl.sum(tl.where(a < chunk, w, 0), 0)
        ids = chunk * C + i
        x = load_logits(start, ids, id_stride, ids < V, STRIDED)
        if law is None:
            q = (ids == token).to(tl.float32)
        else:
            q = tl.load(law + ids, mask=(ids < V) & (token >= 0), other=0.0).to(tl.float32)
        each = fixed_each(_left(x, q, top, LOG2E / t, over, least, PTX))
        # The compiler may round here otherwise than in the kernel before: then the last one.
        end = tl.max(tl.where(each > 0, ids, chunk * C), 0)
        drawn = tl.min(tl.where(tl.cumsum(each, 0) > target, ids, end), 0)
    else:
        drawn = draw_above(
            start, V, id_stride, block_mass, least, top, t, 0.0, bits,
            STRIDED, SCALE, BLOCK, BLOCKS,
        )  # fmt: skip
    return drawn


@triton.jit
def settle_kernel(
    logits,
    row_stride,
    id_stride,
    draft_ids,
    draft_probs,
    law_stride,
    position,
    first,
    sizes,
    temperature,
    seed,
    noise,
    seeded,
    step,
    low,
    accepted,
    best,
    largest,
    scale,
    residual,
    block_mass,
    bonus,
    out,
    V,
    chunks,
    width,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    SCALE: tl.constexpr,
    MOST: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write what a request emits, one a program: accepted drafts, one id more, -1 behind them."""
    request = tl.program_id(0).to(tl.int64)
    size, begin = tl.load(sizes + request), tl.load(first + request)
    length = _prefix(accepted, begin, size, MOST)
    token = tl.load(bonus + request).to(tl.int32)
    if length < size:
        draft = begin + length
        over = tl.load(scale + draft)
        if over == 0:
            token = tl.load(best + draft)
        else:
            start = logits + tl.load(position + draft) * row_stride
            t, _ = row_temperature(temperature, request)
            least = tl.full((), LOWEST, tl.float32)
            if low is not None:
                least = tl.load(low + draft)
            law = None
            if draft_probs is not None:
                law = draft_probs + draft * law_stride
            bits = _bits(seed, noise, seeded, step, request, length, _RECOVER)
            token = _recover(
                start, id_stride, law, tl.load(draft_ids + draft).to(tl.int32),
                tl.load(largest + draft), t, over, least, bits,
                residual + request * chunks, block_mass + request * BLOCKS, chunks, V,
                STRIDED, PTX, SCALE, CHUNKS, C, BLOCK, BLOCKS,
            )  # fmt: skip
    j = tl.arange(0, MOST)
    ids = tl.load(draft_ids + begin + j, mask=j < length, other=-1).to(tl.int32)
    tl.store(out + request * width + j, tl.where(j == length, token, ids), mask=j < width)

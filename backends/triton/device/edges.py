"""What top-k and top-p leave of a row: the lowest logit, and the mass from there on."""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import INF, LOWEST, NINF, order_key, same_scaled
from refsampler.backends.triton.device.rows import controls, row_temperature
from refsampler.backends.triton.device.search import list_edge, list_mass, row_edge, row_mass
from refsampler.backends.triton.device.top_k import bound_by_count, candidates

__all__ = ["edge_kernel"]


@triton.jit(do_not_specialize=["lists"])
def edge_kernel(
    logits,
    row_stride,
    id_stride,
    position,
    owner,
    temperature,
    top_k,
    top_p,
    mass_max,
    picked,
    cand_x,
    cand_i,
    low,
    kept,
    V,
    chunks,
    lists,
    STRIDED: tl.constexpr,
    SCALE: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
    G: tl.constexpr,
    CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write both for a draft's target row, one a program; nothing where the target is certain.

    With top-k only chunks whose maximum reaches a bound of the k-th value are reopened.
    """
    draft = tl.program_id(0).to(tl.int64)
    request = tl.load(owner + draft)
    t, greedy = row_temperature(temperature, request)
    k, p, least = controls(top_k, top_p, None, request, greedy, V)
    a = tl.arange(0, CHUNKS)
    m = tl.load(mass_max + draft * chunks + a, mask=a < chunks, other=NINF)
    top = tl.max(m, 0)
    if greedy | (top == INF) | (top == NINF):
        return
    start = logits + tl.load(position + draft) * row_stride
    picked, cand_x, cand_i = picked + draft * CHUNKS, cand_x + draft * lists, cand_i + draft * lists
    bound, n = tl.full((), LOWEST, tl.float32), tl.full((), CAP + 1, tl.int32)
    if k <= chunks:
        bound = tl.maximum(same_scaled(bound_by_count(order_key(m), k, 3), t, -1), bound)
        reaches = ((m >= bound) & (m > NINF)).to(tl.int32)
        tl.store(picked + tl.cumsum(reaches, 0) - 1, a, mask=reaches > 0)
        tl.debug_barrier()
        n = candidates(
            start, id_stride, picked, tl.sum(reaches, 0), bound, cand_x, cand_i, V,
            STRIDED, False, C, G, CAP,
        )  # fmt: skip
        tl.debug_barrier()
    if n <= CAP:
        edge = list_edge(cand_x, n, t, k, p, least, SCALE, CAP)
        mass = list_mass(cand_x, n, t, edge, least, SCALE, CAP)
    else:
        nothing = tl.zeros((), tl.int64)
        edge = row_edge(
            start, V, id_stride, bound, nothing, top, t, k, p, least, STRIDED, SCALE, BLOCK
        )
        mass = row_mass(start, V, id_stride, edge, top, t, least, STRIDED, SCALE, BLOCK)
    tl.store(low + draft, edge)
    tl.store(kept + draft, mass)

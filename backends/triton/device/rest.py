"""The last kernel: takes a proposal of top-p, and draws in the rows that the fast ones left.

These are rows of top-p whose proposals all fell outside, rows without top-k in a batch that has it,
rows with more candidates than can be listed, and the few that float32 sums could not decide.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.draw import proposal_groups
from refsampler.backends.triton.device.nucleus import SMALL_P, WHOLE, settle
from refsampler.backends.triton.device.numbers import LOWEST, NINF
from refsampler.backends.triton.device.rounds import first_of_round, rounds
from refsampler.backends.triton.device.rows import controls, row_bits, row_temperature
from refsampler.backends.triton.device.search import filter_and_draw

__all__ = ["rest_kernel"]


@triton.jit(do_not_specialize=["parts", "lists"])
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
    mass_max,
    chunk_mass,
    block_mass,
    cand_x,
    todo,
    out,
    proposed,
    turn,
    edge,
    part,
    total,
    V,
    chunks,
    parts,
    lists,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    SCALE: tl.constexpr,
    SETTLE: tl.constexpr,
    ROUNDS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
    A: tl.constexpr,
    W: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Draw the ids that `todo` says are missing; `chunks` are those of the scan with masses.

    With SETTLE the whole batch has top-p alone, and the first round was made by other kernels.
    """
    row = tl.program_id(0).to(tl.int64)
    if not SETTLE:
        if tl.load(todo + row) != WHOLE:
            return
    t, greedy = row_temperature(temperature, row)
    k, p, least = controls(top_k, top_p, min_p, row, greedy, V)
    number, look = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    floor, everything = tl.full((), NINF, tl.float32), tl.zeros((), tl.int64)
    if SETTLE:
        groups = proposal_groups(p)
        known, count, told = settle(
            row, p, groups, proposed, turn, part, total, todo, out, parts, SCALE, PARTS
        )
        if known:
            return
        everything = tl.load(total + row)
        # What cannot be told is the first round again.
        look += (told & (count == 4)).to(tl.int32)
        number += (told & (count < 4)).to(tl.int32)
        if (p < SMALL_P) & (number > 0):
            floor = tl.max(tl.load(edge + row * 4 + tl.arange(0, 4)), 0)
    start, block_mass = logits + row * row_stride, block_mass + row * BLOCKS
    mass_max, chunk_mass = mass_max + row * chunks, chunk_mass + 2 * row * chunks
    token = tl.full((), -1, tl.int32)
    low = tl.full((), LOWEST, tl.float32)
    last = tl.zeros((), tl.int32)
    if (k < V) | (least > 0):
        low = tl.maximum(low, tl.load(cand_x + row * lists))
    else:
        last += first_of_round(ROUNDS)
        token, floor, everything = rounds(
            start, id_stride, t, p, number, look, floor, everything,
            seed, noise, seeded, step, row, mass_max, chunk_mass, chunks, V,
            ROUNDS, STRIDED, PTX, SCALE, CHUNKS, C, A, W, LANES, BLOCK,
        )  # fmt: skip
        low = tl.maximum(low, floor)
    if token < 0:
        bits = row_bits(seed, noise, seeded, step, row, last, greedy)
        token = filter_and_draw(
            start, V, id_stride, block_mass, low, everything, t, k, p, least, bits,
            STRIDED, SCALE, BLOCK, BLOCKS,
        )  # fmt: skip
    tl.store(out + row, token)

"""The last kernel: takes a proposal of top-p, and draws in the rows that the fast ones left.

These are rows of top-p whose proposals all fell outside, rows without top-k in a batch that has it,
rows with more candidates than can be listed, and the few that float32 sums could not decide.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.draw import chunk_weights, draws, proposal_groups
from refsampler.backends.triton.device.nucleus import SMALL_P, WHOLE, settle
from refsampler.backends.triton.device.numbers import (
    LOG2E,
    LOWEST,
    NINF,
    chunk_masses,
    chunk_max,
    fixed_sums,
    same_scaled,
)
from refsampler.backends.triton.device.rounds import (
    element,
    first_of_round,
    proposals,
    rounds,
    took,
)
from refsampler.backends.triton.device.rows import (
    controls,
    load_chunks,
    row_bits,
    row_temperature,
)
from refsampler.backends.triton.device.search import filter_and_draw, mass_above

__all__ = ["rest_kernel"]


@triton.jit
def _write_masses(
    start, id_stride, t, floor, top, mass_max, chunk_mass, chunks, V,
    STRIDED: tl.constexpr, R: tl.constexpr, C: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write what the scan writes, or with a floor what read two writes: the same integers."""
    for first in range(0, chunks, R):
        chunk = first + tl.arange(0, R)
        x = load_chunks(start, first, id_stride, V, STRIDED, R, C, LANES)
        if floor > NINF:
            e = tl.where(x > floor, tl.exp2((x - top) * (LOG2E / t)), 0.0)
            tl.store(chunk_mass + chunk, fixed_sums(e), mask=chunk < chunks)
        else:
            m = chunk_max(x)
            tl.store(mass_max + chunk, m, mask=chunk < chunks)
            tl.store(chunk_mass + chunk, chunk_masses(x, m, t, False), mask=chunk < chunks)
    tl.debug_barrier()


@triton.jit
def _exact_rounds(
    start, id_stride, t, p, seed, noise, seeded, step, row, mass_max, chunk_mass, chunks, V,
    ROUNDS: tl.constexpr, STRIDED: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the first proposal inside the nucleus or -1, a bound that it exceeds, the total mass.

    These are the rounds of `rounds.py`, from the first one on, in integers: no doubt is left.
    """
    j, token = tl.arange(0, 4), tl.full((), -1, tl.int32)
    number, look = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    floor, top = tl.full((), NINF, tl.float32), tl.full((), NINF, tl.float32)
    everything, doubt = tl.zeros((), tl.int64), tl.zeros((), tl.int32)
    while (token < 0) & (number < ROUNDS) & (doubt == 0):
        _write_masses(
            start, id_stride, t, floor, top, mass_max, chunk_mass, chunks, V,
            STRIDED, R, C, LANES,
        )  # fmt: skip
        ids, values, turns, largest, mass = proposals(
            start, id_stride, t, p, number, look, floor, seed, noise, seeded, step, row,
            mass_max, chunk_mass, chunks, V, STRIDED, SCALE, CHUNKS, C,
        )  # fmt: skip
        top = largest
        everything = tl.where(number == 0, mass, everything)
        limits, above = same_scaled(values, t, 1), tl.zeros((4,), tl.int64)
        for one in range(4):
            mass = mass_above(
                start, V, id_stride, element(limits, one), top, t, STRIDED, SCALE, BLOCK
            )
            above = tl.where(j == one, mass, above)
        number, look, floor, token, doubt = took(
            ids, turns, limits, above, everything, p, number, look, floor, token, True
        )
    return token, floor, everything


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
    R: tl.constexpr,
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
    doubt = tl.zeros((), tl.int32)
    floor, everything = tl.full((), NINF, tl.float32), tl.zeros((), tl.int64)
    if SETTLE:
        groups = proposal_groups(p)
        known, count, doubt = settle(
            row, p, groups, proposed, turn, part, total, todo, out, parts, SCALE, PARTS
        )
        if known:
            return
        everything = tl.load(total + row)
        look += (count == 4).to(tl.int32)
        number += (count < 4).to(tl.int32)
        if (p < SMALL_P) & (count < 4):
            floor = tl.max(tl.load(edge + row * 4 + tl.arange(0, 4)), 0)
    start, block_mass = logits + row * row_stride, block_mass + row * BLOCKS
    mass_max, chunk_mass = mass_max + row * chunks, chunk_mass + 2 * row * chunks
    token = tl.full((), -1, tl.int32)
    low = tl.full((), LOWEST, tl.float32)
    last = tl.zeros((), tl.int32)
    if (k < V) | (least > 0):
        low = tl.maximum(low, tl.load(cand_x + row * lists))
    elif p >= 1.0:
        bits = row_bits(seed, noise, seeded, step, row, tl.arange(0, 1), False)
        w, upto, top, flat = chunk_weights(
            t, False, mass_max, chunk_mass, chunks, floor, SCALE, CHUNKS
        )
        ids, _ = draws(
            start, id_stride, t, bits, w, upto, top, flat, floor, V, STRIDED, SCALE, CHUNKS, C
        )
        token = tl.max(ids, 0)
    else:
        last += first_of_round(ROUNDS)
        if doubt == 0:
            token, floor, everything, doubt = rounds(
                start, id_stride, t, p, number, look, floor, everything,
                seed, noise, seeded, step, row, mass_max, chunk_mass, chunks, V,
                ROUNDS, STRIDED, PTX, SCALE, CHUNKS, C, A, W, LANES,
            )  # fmt: skip
        if doubt != 0:
            token, floor, everything = _exact_rounds(
                start, id_stride, t, p, seed, noise, seeded, step, row, mass_max, chunk_mass,
                chunks, V, ROUNDS, STRIDED, SCALE, CHUNKS, R, C, LANES, BLOCK,
            )  # fmt: skip
        low = tl.maximum(low, floor)
    if token < 0:
        bits = row_bits(seed, noise, seeded, step, row, last, greedy)
        token = filter_and_draw(
            start, V, id_stride, block_mass, low, everything, t, k, p, least, bits,
            STRIDED, SCALE, BLOCK, BLOCKS,
        )  # fmt: skip
    tl.store(out + row, token)

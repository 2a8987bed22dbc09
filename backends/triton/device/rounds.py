"""Later rounds of top-p, and all rounds of its rows beside rows with top-k, one program a row.

Four proposals more, a read of the row for the mass above each, until one lies inside.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.draw import proposal_groups, propose
from refsampler.backends.triton.device.nucleus import (
    SMALL_P,
    drawn_at,
    first_inside,
    in_doubt,
)
from refsampler.backends.triton.device.numbers import (
    LAST,
    LOG2E,
    NINF,
    at_least,
    fixed,
    fixed_sums,
    lane_sums,
    power,
    same_scaled,
)
from refsampler.backends.triton.device.rows import load_chunks
from refsampler.backends.triton.device.search import mass_above

__all__ = ["first_of_round", "rounds"]


@triton.jit
def _element(values, place):
    """Return one of four."""
    return tl.sum(tl.where(tl.arange(0, 4) == place, values, tl.zeros_like(values)), 0)


@triton.jit
def first_of_round(number):
    """Return the number of the first proposal of a round: the first one may have up to 16."""
    return tl.where(number == 0, 0, 12 + 4 * number)


@triton.jit
def _add_above(total, x, limit, e, PTX: tl.constexpr, SCALE: tl.constexpr):
    """Add to int64 sums [W, LANES / 4], in one thread each."""
    sums = lane_sums(x, limit, e, PTX)
    W: tl.constexpr = sums.shape[0]
    return total + fixed(tl.sum(tl.reshape(sums, (W, sums.shape[1] // 4, 4)), 2), SCALE)


@triton.jit
def _masses_above(
    start, id_stride, t, top, limits, restrict, chunk_mass, V,
    STRIDED: tl.constexpr, PTX: tl.constexpr, SCALE: tl.constexpr, C: tl.constexpr,
    A: tl.constexpr, W: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return the mass above each of four limits, as read two gives it; one tile is read ahead.

    A warp has W-th parts of a tile, runs of whole chunks, so that its masses wait for no other.
    With `restrict` the chunk masses become those of what lies above the highest limit.
    """
    RUN: tl.constexpr = A * LANES
    R: tl.constexpr = W * RUN // C
    s, floor = LOG2E / t, tl.max(limits, 0)
    l0, l1 = _element(limits, 0), _element(limits, 1)
    l2, l3 = _element(limits, 2), _element(limits, 3)
    s0 = tl.zeros((W, LANES // 4), tl.int64)
    s1, s2, s3 = s0, s0, s0
    x = load_chunks(start, 0, id_stride, V, STRIDED, W, RUN, LANES)
    for first in range(0, V, W * RUN):
        ahead = load_chunks(start, first // RUN + W, id_stride, V, STRIDED, W, RUN, LANES)
        e = at_least(power((x - top) * s, PTX), 0.0)
        s0 = _add_above(s0, x, l0, e, PTX, SCALE)
        s1 = _add_above(s1, x, l1, e, PTX, SCALE)
        s2 = _add_above(s2, x, l2, e, PTX, SCALE)
        s3 = _add_above(s3, x, l3, e, PTX, SCALE)
        if restrict:
            kept = tl.reshape(tl.where(x > floor, e, 0.0), (R, C // LANES, LANES))
            chunk = first // C + tl.arange(0, R)
            tl.store(chunk_mass + chunk, fixed_sums(kept), mask=chunk * C < V)
        x = ahead
    tl.debug_barrier()
    j = tl.arange(0, 4)
    low = tl.where(j == 0, tl.sum(tl.sum(s0, 1), 0), tl.sum(tl.sum(s1, 1), 0))
    high = tl.where(j == 2, tl.sum(tl.sum(s2, 1), 0), tl.sum(tl.sum(s3, 1), 0))
    return tl.where(j < 2, low, high)


@triton.jit
def _exact_masses(
    start, id_stride, t, top, limits, V,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the mass above each of four limits, summed in integers: a read for each."""
    j, above = tl.arange(0, 4), tl.zeros((4,), tl.int64)
    for one in range(4):
        mass = mass_above(start, V, id_stride, _element(limits, one), top, t, STRIDED, SCALE, BLOCK)
        above = tl.where(j == one, mass, above)
    return above


@triton.jit
def _proposals(
    start, id_stride, t, p, number, look, floor, seed, noise, seeded, step, row,
    mass_max, chunk_mass, chunks, V,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Return four proposals of a round: the highest, or at the later looks four in turn."""
    groups = tl.where((number == 0) & (look == 0), proposal_groups(p), 1)
    first = first_of_round(number) + 4 * tl.maximum(look - 1, 0)
    return propose(
        start, id_stride, t, False, seed, noise, seeded, step, row, first, groups,
        mass_max, chunk_mass, chunks, floor, V, STRIDED, SCALE, CHUNKS, C,
    )  # fmt: skip


@triton.jit
def _took(ids, turns, limits, above, everything, p, number, look, floor):
    """Return the state of the rounds after a look at four proposals.

    The number of the round and of the look, the floor of its draws, the id or -1.  Where more than
    four were drawn and the four highest are all inside, four at a time are looked at from the first
    on.
    """
    first, count = first_inside(above, everything, p, turns)
    groups = tl.where(number == 0, proposal_groups(p), 1)
    highest = look == 0
    in_turn = tl.where(highest, (count == 4) & (groups > 1), look < groups)
    found = (first < LAST) & ((look > 0) | (in_turn == 0))
    token = tl.where(found, drawn_at(ids, turns, first), -1)
    floor = tl.where((p < SMALL_P) & (in_turn == 0) & (found == 0), tl.max(limits, 0), floor)
    return tl.where(in_turn, number, number + 1), tl.where(in_turn, look + 1, 0), floor, token


@triton.jit
def rounds(
    start, id_stride, t, p, number, look, floor, everything, seed, noise, seeded, step, row,
    mass_max, chunk_mass, chunks, V,
    ROUNDS: tl.constexpr, STRIDED: tl.constexpr, PTX: tl.constexpr, SCALE: tl.constexpr,
    CHUNKS: tl.constexpr, C: tl.constexpr, A: tl.constexpr, W: tl.constexpr, LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the id from round `number` on, or -1, and a bound that it exceeds, the total mass.

    Without top-p the first proposal is the id, and nothing is read for it.
    """
    token = tl.full((), -1, tl.int32)
    while (token < 0) & (number < ROUNDS):
        restricted = tl.where(floor > NINF, chunks, 0)
        ids, values, turns, top, mass = _proposals(
            start, id_stride, t, p, number, look, floor, seed, noise, seeded, step, row,
            mass_max, chunk_mass + restricted, chunks, V, STRIDED, SCALE, CHUNKS, C,
        )  # fmt: skip
        everything = tl.where(number == 0, mass, everything)
        limits, above = same_scaled(values, t, 1), tl.zeros((4,), tl.int64)
        if p < 1.0:
            tl.debug_barrier()  # every thread has read the masses of the last round
            above = _masses_above(
                start, id_stride, t, top, limits, (p < SMALL_P) & (look == 0),
                chunk_mass + chunks, V, STRIDED, PTX, SCALE, C, A, W, LANES,
            )  # fmt: skip
            if in_doubt(above, everything, p):
                above = _exact_masses(start, id_stride, t, top, limits, V, STRIDED, SCALE, BLOCK)
        number, look, floor, token = _took(
            ids, turns, limits, above, everything, p, number, look, floor
        )
    return token, floor, everything

"""Rows without top-k and min-p: draws against prefix sums of chunk masses, one chunk reopened each.

One draw is the id itself where no filter is left.  With top-p alone independent draws are
proposals: the first one inside the nucleus is the id, which is exact.  Of four, each is looked at.
Where p is small there are 8 or 16, and the four highest are looked at: if one of those is outside,
all others are, and the first one inside is known; else it is looked for in the order of the draws.
"""

import triton
import triton.language as tl

from refsampler.backends.triton.device.nucleus import OPEN
from refsampler.backends.triton.device.numbers import (
    INF,
    LOG2E,
    NINF,
    below,
    fixed,
    relative,
    same_scaled,
)
from refsampler.backends.triton.device.rows import (
    controls,
    load_logits,
    row_bits,
    row_temperature,
)

__all__ = ["chunk_weights", "draw_kernel", "draws", "proposal_groups", "propose"]

_UNIT = tl.constexpr(2.0**-44)
_P_OF_FOUR = tl.constexpr(0.15)
_P_OF_TWO = tl.constexpr(0.3)


@triton.jit
def _choose(w, upto, bits, LENGTH: tl.constexpr):
    """Return for each draw the place in w [LENGTH], and how far into its mass, in [0, 1].

    `upto` are the prefix sums of w.
    """
    target = below(bits, tl.max(upto, 0))
    place = tl.sum((upto[:, None] <= target[None, :]).to(tl.int32), 0)
    place = tl.minimum(place, LENGTH - 1)
    own = tl.gather(w, place, 0)
    before = tl.gather(upto, place, 0) - own
    part = (target - before).to(tl.float64) / tl.maximum(own, 1).to(tl.float64)
    return place, tl.minimum(tl.maximum(part, 0.0), 1.0)


@triton.jit
def chunk_weights(
    t, greedy, chunk_max, chunk_mass, chunks, floor, SCALE: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """Return the masses of a row's chunks, their prefix sums, and the largest logit.

    Then whether only that one counts: the row is greedy, or holds +inf.  With a floor above -inf the
    masses are those above it, relative to the largest logit.
    """
    a = tl.arange(0, CHUNKS)
    m = tl.load(chunk_max + a, mask=a < chunks, other=NINF)
    top = tl.max(m, 0)
    greedy = greedy | (top == INF)
    mass = tl.load(chunk_mass + a, mask=a < chunks, other=0).to(tl.float32) * _UNIT
    mass *= tl.where(floor > NINF, 1.0, relative(m, top, LOG2E / t))
    mass = tl.where(m > NINF, mass, 0.0)
    w = fixed(tl.where(greedy, (m == top).to(tl.float32), mass), SCALE)
    return w, tl.cumsum(w, 0), top, greedy


@triton.jit
def draws(
    start, id_stride, t, bits, w, upto, top, greedy, floor, V,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Return N independent ids and their logits.

    A greedy row, or one that holds +inf, gives the lowest id of the largest logit.

    `start` is the row's, `bits` 64 random bits for each draw; w, upto, top and greedy are
    `chunk_weights`.  With a floor above -inf only ids above it count.

    """
    i, s = tl.arange(0, C), LOG2E / t
    bits = tl.where(greedy, tl.zeros_like(bits), bits)
    chunk, into = _choose(w, upto, bits, CHUNKS)
    ids = chunk[:, None] * C + i[None, :]
    x = load_logits(start, ids, id_stride, ids < V, STRIDED)
    e = tl.where(x > floor, tl.exp2((x - tl.max(x, 1)[:, None]) * s), 0.0)
    inside = fixed(tl.where(greedy, (x == top).to(tl.float32), e), SCALE)
    sums = tl.sum(inside, 1)
    target = tl.minimum((into * sums.to(tl.float64)).to(tl.int64), sums - 1)
    at = tl.sum((tl.cumsum(inside, 1) <= target[:, None]).to(tl.int32), 1)
    value = tl.sum(tl.where(i[None, :] == at[:, None], x, 0.0), 1)
    return tl.where(top > NINF, tl.minimum(chunk * C + at, V - 1), 0), value


@triton.jit
def proposal_groups(p):
    """Return how many times four proposals are made in the first round: more where p is small."""
    return tl.where(p < _P_OF_FOUR, 4, tl.where(p < _P_OF_TWO, 2, 1))


@triton.jit
def _highest_of_eight(token, value, turn, other_token, other_value, other_turn):
    """Return the four of eight proposals with the highest logits; of equals the earlier ones."""
    i, r = tl.arange(0, 8), tl.arange(0, 4)
    tokens = tl.reshape(tl.join(token, other_token), (8,))
    values = tl.reshape(tl.join(value, other_value), (8,))
    turns = tl.reshape(tl.join(turn, other_turn), (8,))
    later = (values[None, :] > values[:, None]) | (
        (values[None, :] == values[:, None]) & (turns[None, :] < turns[:, None])
    )
    rank = tl.sum(later.to(tl.int32), 1)
    mine = (rank[None, :] == r[:, None]) & (i[None, :] >= 0)
    token = tl.sum(tl.where(mine, tokens[None, :], 0), 1)
    value = tl.sum(tl.where(mine, values[None, :], 0.0), 1)
    return token, value, tl.sum(tl.where(mine, turns[None, :], 0), 1)


@triton.jit
def propose(
    start, id_stride, t, greedy, seed, noise, seeded, step, row, first, groups,
    chunk_max, chunk_mass, chunks, floor, V,
    STRIDED: tl.constexpr, SCALE: tl.constexpr, CHUNKS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Return the four proposals with the highest logits of 4 * groups, and when each was drawn.

    Then the largest logit and the total mass; `first` is the number of the first proposal.
    """
    w, upto, top, greedy = chunk_weights(
        t, greedy, chunk_max, chunk_mass, chunks, floor, SCALE, CHUNKS
    )
    turn = tl.zeros((4,), tl.int32)
    token, value = turn, tl.zeros((4,), tl.float32)
    # One body for all groups: what is written twice is compiled twice.
    for group in range(groups):
        other = group * 4 + tl.arange(0, 4)
        bits = row_bits(seed, noise, seeded, step, row, first + other, greedy)
        other_token, other_value = draws(
            start, id_stride, t, bits, w, upto, top, greedy, floor, V, STRIDED, SCALE, CHUNKS, C
        )
        if group == 0:
            token, value, turn = other_token, other_value, other
        else:
            token, value, turn = _highest_of_eight(
                token, value, turn, other_token, other_value, other
            )
    return token, value, turn, top, tl.max(upto, 0)


@triton.jit
def draw_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    top_p,
    seed,
    noise,
    seeded,
    step,
    mass_max,
    chunk_mass,
    todo,
    out,
    proposed,
    turn,
    edge,
    total,
    largest,
    V,
    chunks,
    STRIDED: tl.constexpr,
    SCALE: tl.constexpr,
    CHUNKS: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
):
    """Draw the id of a row (N = 1), or the four first proposals for top-p."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, N)
    t, greedy = row_temperature(temperature, row)
    floor = tl.full((), NINF, tl.float32)
    start = logits + row * row_stride
    mass_max, chunk_mass = mass_max + row * chunks, chunk_mass + 2 * row * chunks
    if N == 1:
        bits = row_bits(seed, noise, seeded, step, row, j, greedy)
        w, upto, top, greedy = chunk_weights(
            t, greedy, mass_max, chunk_mass, chunks, floor, SCALE, CHUNKS
        )
        token, _ = draws(
            start, id_stride, t, bits, w, upto, top, greedy, floor, V, STRIDED, SCALE, CHUNKS, C
        )
        tl.store(out + row + j, token)
    else:
        _, p, _ = controls(None, top_p, None, row, greedy, V)
        token, value, when, top, mass = propose(
            start, id_stride, t, greedy, seed, noise, seeded, step, row, 0, proposal_groups(p),
            mass_max, chunk_mass, chunks, floor, V, STRIDED, SCALE, CHUNKS, C,
        )  # fmt: skip
        tl.store(proposed + row * N + j, token)
        tl.store(turn + row * N + j, when)
        tl.store(edge + row * N + j, same_scaled(value, t, 1))
        tl.store(total + row, mass)
        tl.store(largest + row, top)
        tl.store(todo + row, OPEN)

"""What the Triton kernels must return, in float64 numpy: Philox on the host, inverse CDF in order.

Independent of the kernels: sorted rows, float sums, no chunks, no bounds, no fixed point.
"""

from dataclasses import dataclass

import numpy as np

ROUNDS = 8
SMALL_P = 0.6


def philox(key, counter):
    """Philox4x32-10 of a 64-bit key and four 32-bit counters, in Python's integers."""
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    for _ in range(10):
        low, high = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (high >> 32) ^ c1 ^ k0,
            high & 0xFFFFFFFF,
            (low >> 32) ^ c3 ^ k1,
            low & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed, step, proposal):
    """The uniform of a seeded row's draw."""
    r0, r1, _, _ = philox(seed % 2**64, (step & 0xFFFFFFFF, (step >> 32) & 0xFFFFFFFF, proposal, 0))
    return (r0 << 32 | r1) / 2**64


@dataclass(frozen=True)
class Asked:
    """The parameters of one row."""

    temperature: float = 1.0
    k: int = 0
    p: float = 1.0
    min_p: float = 0.0


def groups(p):
    """Groups of four proposals in the first round."""
    return 4 if p < 0.15 else 2 if p < 0.3 else 1


def first_of_round(number):
    """The number of a round's first proposal."""
    return 4 * number + 12 if number else 0


def kept(x, asked):
    """Masses of the ids that the filters keep, 0 elsewhere, and the scaled logits."""
    x = np.where(np.isnan(x), -np.inf, x).astype(np.float32)
    scaled = x / np.float32(asked.temperature)
    mass = np.exp((x.astype(np.float64) - x.max()) / asked.temperature)
    mass[mass < np.float32(asked.min_p)] = 0
    if 0 < asked.k < len(x):
        kth = np.sort(scaled)[-asked.k]
        mass[scaled < kth] = 0
    if asked.p < 1:
        edge = np.float64(np.float32(asked.p)) * mass.sum()
        order = np.argsort(-scaled, kind="stable")
        before = np.cumsum(mass[order]) - mass[order]
        place = np.searchsorted(-scaled[order], -scaled, side="left")
        above = before[place]
        mass[(above >= edge) & (above > 0)] = 0
    return mass, scaled


def invert(mass, u):
    """The first id whose cumulative mass exceeds u times the total."""
    upto = np.cumsum(mass)
    return int(np.searchsorted(upto, u * upto[-1], side="right"))


def token(x, asked, seed, step, rounds=ROUNDS):
    """The id of a seeded row."""
    x = np.asarray(x)
    alive = np.where(np.isnan(x), -np.inf, x)
    if not (alive > -np.inf).any():
        return 0
    if asked.temperature < 1e-5 or alive.max() == np.inf:
        return int(alive.argmax())
    mass, scaled = kept(x, asked)
    everything = kept(x, Asked(asked.temperature))[0]
    if 0 < asked.k < len(x) or asked.min_p > 0:
        return invert(mass, uniform(seed, step, 0))
    for number in range(rounds):
        count = 4 * groups(asked.p) if number == 0 else 4
        first = first_of_round(number)
        drawn = [invert(everything, uniform(seed, step, first + j)) for j in range(count)]
        inside = [one for one in drawn if mass[one] > 0]
        if inside:
            return inside[0]
        if asked.p < SMALL_P:
            everything = np.where(scaled > scaled[drawn].max(), everything, 0)
    return invert(mass, uniform(seed, step, first_of_round(rounds)))

"""Bets for rows that are drawn once each, every row with another law.

Per row and bet there is a score r >= 0 on ids, chosen before the draw, and

    e(x) = r(x) / (E_p[r] + delta (max r - min r)),

which is an e-value over the whole ball (`tolerance`, formula 1).  Three kinds of score:

* a function of *groups* of ids (bins of surprisal, blocks of the vocabulary): one pass over the row
  gives the mass of each group, and any number of tilts is then free.  Temperature, uniform mixtures,
  noise floors and preferences for probable ids or low ids are such functions, up to the width of a
  bin, which costs power and never validity;
* an *event*: one id or a few get more or less than their share;
* a declared *wrong law* (a neighbour's parameters, rounded logits), mixed in with a rate.

Only ids of the core are looked at, flat: entries in row order, ids ascending within a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray
from refsampler.conformance.evidence.cells import masses

__all__ = ["FEATURE_BETS", "WRONG_RATES", "Entries", "feature_log_e", "wrong_log_e"]

_BINS: Final = 96
_WIDTH: Final = 0.3  # nats
_BLOCKS: Final = 16

_TEMPERATURES: Final = (-0.2, -0.05, -0.01, -0.001, 0.001, 0.01, 0.05, 0.25)
_UNIFORMS: Final = (1e-3, 1e-2)
_SLOPES: Final = (-0.05, -0.01, 0.01, 0.05)
_FLOOR_BITS: Final = 24
_GREEDY: Final = (1e-3, 1e-2)
_FACTORS: Final = (0.0, 0.8, 0.95, 0.99, 1.01, 1.05, 1.25, 2.0)
_EVENTS: Final = (
    "most probable id",
    "least probable kept id",
    "first kept id",
    "last kept id",
    "odd ids",
    "rarest tenth of the ids",
)

WRONG_RATES: Final = (1e-3, 1e-2, 0.1, 1.0)
"""How often a declared wrong law takes the place of the right one."""

_MOST: Final = 20.0  # cap on the gain of one draw


FEATURE_BETS: Final = (
    *(f"temperature {100 * size:+g} %" for size in _TEMPERATURES),
    *(f"uniform mixture {100 * rate:+g} %" for rate in _UNIFORMS),
    *(f"log-rank tilt {100 * slope:+g} %" for slope in _SLOPES),
    f"noise floor 2^-{_FLOOR_BITS}",
    *(f"low-id tilt {100 * slope:+g} %" for slope in _SLOPES),
    *(f"greedy mixture {100 * rate:+g} %" for rate in _GREEDY),
    *(f"{event} x{factor:g}" for event in _EVENTS for factor in _FACTORS),
)
"""Names of the generic bets, in the order of `feature_log_e`."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The core of all rows, flat, and the draws that fell into it.

    Attributes:
        row: [entries] ascending.
        ids: [entries] ascending within a row.
        probs: [entries] exact law given the core; sums to 1 in every row.
        below: [entries] nats below the row's most probable id.
        start: [rows] first entry of each row.
        drawn: [rows] the entry that was drawn.
        vocab: number of ids in all.

    """

    row: IntArray
    ids: IntArray
    probs: FloatArray
    below: FloatArray
    start: IntArray
    drawn: IntArray
    vocab: int

    @classmethod
    def build(cls, logprobs: FloatArray, core: BoolArray, draws: IntArray) -> Entries:
        """Flatten rows [rows, vocab] whose draws [rows] are core ids."""
        rows, vocab = core.shape
        row, ids = np.nonzero(core)
        start = np.searchsorted(row, np.arange(rows))
        logs = logprobs[core]
        below = np.maximum.reduceat(logs, start)[row] - logs
        weight = np.exp(-below)
        probs = weight / np.add.reduceat(weight, start)[row]
        drawn = np.searchsorted(row * vocab + ids, np.arange(rows) * vocab + draws)
        return cls(row, ids, probs, below, start, drawn, vocab)


def feature_log_e(entries: Entries, delta: FloatArray) -> FloatArray:
    """Return log e [bets, rows] of `FEATURE_BETS`; delta [rows]."""
    tilts, rarest = _by_surprisal(entries, delta)
    blocks, odd = _by_block(entries, delta)
    top = _first_where(entries, entries.below == 0)
    deepest = np.maximum.reduceat(entries.below, entries.start)[entries.row]
    last = _first_where(entries, entries.below == deepest)
    ends = np.append(entries.start[1:], entries.row.size) - 1
    events = [
        *(
            _Event(entries.probs[at], entries.drawn == at)
            for at in (top, last, entries.start, ends)
        ),
        odd,
        rarest,
    ]
    return np.concatenate(
        [tilts, blocks, _by_greedy(events[0], delta), *(_by_event(one, delta) for one in events)]
    )


def wrong_log_e(entries: Entries, wrong: FloatArray, delta: FloatArray) -> FloatArray:
    """Return log e [rates, rows] of a wrong law [rows, vocab], probabilities, with `WRONG_RATES`."""
    law = wrong.reshape(-1)[entries.row * entries.vocab + entries.ids]
    mass = np.add.reduceat(law, entries.start)
    law = np.where((mass > 0)[entries.row], law, entries.probs)
    mass = np.where(mass > 0, mass, 1.0)
    ratio = law / np.maximum(entries.probs, 1e-300) / mass[entries.row]
    found = []
    for rate in WRONG_RATES:
        score = np.clip(1 + rate * (ratio - 1), 1 / _MOST, _MOST)
        found.append(_of_entries(entries, score, delta))
    return np.stack(found)


def _of_entries(entries: Entries, score: FloatArray, delta: FloatArray) -> FloatArray:
    mean = np.add.reduceat(score * entries.probs, entries.start)
    high = np.maximum.reduceat(score, entries.start)
    low = np.minimum.reduceat(score, entries.start)
    log_e: FloatArray = np.log(score[entries.drawn] / (mean + delta * (high - low)))
    return log_e


def _of_groups(
    score: FloatArray, mass: FloatArray, drawn: IntArray, delta: FloatArray
) -> FloatArray:
    """Return log e [bets, rows] of scores [bets, rows, groups] on groups of mass [rows, groups]."""
    score = np.clip(score, 1 / _MOST, _MOST)
    live = mass > 0
    mean = (score * mass).sum(axis=-1)
    high = np.where(live, score, -np.inf).max(axis=-1)
    low = np.where(live, score, np.inf).min(axis=-1)
    at = score[:, np.arange(drawn.size), drawn]
    log_e: FloatArray = np.log(at / (mean + delta * (high - low)))
    return log_e


def _grouped(entries: Entries, group: IntArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """Return mass and number of ids [rows, groups]."""
    key = entries.row * groups + group
    shape = (entries.start.size, groups)
    size = shape[0] * groups
    mass: FloatArray = masses(key, entries.probs, size).reshape(shape)
    count: FloatArray = np.bincount(key, minlength=size).reshape(shape).astype(np.float64)
    return mass, count


@dataclass(frozen=True, slots=True, eq=False)
class _Event:
    """A set of ids in every row: its mass [rows], and whether the draw fell into it [rows]."""

    mass: FloatArray
    hit: BoolArray


def _by_surprisal(entries: Entries, delta: FloatArray) -> tuple[FloatArray, _Event]:
    """Return the bets on functions of probability, and the rarest tenth of the ids."""
    group = np.minimum(entries.below * (1 / _WIDTH), _BINS - 1).astype(np.int64)
    mass, count = _grouped(entries, group, _BINS)
    typical = np.where(count > 0, mass / np.maximum(count, 1), 1.0)
    logs = np.log(np.maximum(typical, 1e-300))
    ids = count.sum(axis=-1, keepdims=True)
    before = np.cumsum(count, axis=-1) - count / 2
    rank = np.log1p(before) / np.maximum(np.log1p(ids), 1e-9)
    cold = 1 / (1 + np.array(_TEMPERATURES)[:, None, None]) - 1
    centred = logs - (logs * mass).sum(axis=-1, keepdims=True)
    uniform = np.array(_UNIFORMS)[:, None, None]
    slope = np.array(_SLOPES)[:, None, None]
    scores = (
        np.exp(np.clip(cold * centred, -40, 40)),
        1 - uniform + uniform / (ids * np.maximum(typical, 1e-300)),
        1 + slope * (1 - 2 * rank),
        np.exp(-(2.0**-_FLOOR_BITS) / np.maximum(typical, 1e-12))[None],
    )
    drawn = group[entries.drawn]
    # Up to a bin: the bins that lie in the lower tenth of the ids.
    rare = np.cumsum(count[:, ::-1], axis=-1)[:, ::-1] <= 0.1 * ids
    hit = rare[np.arange(drawn.size), drawn]
    event = _Event(np.where(rare, mass, 0.0).sum(axis=-1), hit)
    return _of_groups(np.concatenate(scores), mass, drawn, delta), event


def _by_block(entries: Entries, delta: FloatArray) -> tuple[FloatArray, _Event]:
    """Return the bets on where ids lie in the vocabulary, and the odd ids."""
    odd = entries.ids & 1
    group = entries.ids * _BLOCKS // entries.vocab * 2 + odd
    mass, _ = _grouped(entries, group, 2 * _BLOCKS)
    height = (np.repeat(np.arange(_BLOCKS), 2) + 0.5) / _BLOCKS
    score = 1 + np.array(_SLOPES)[:, None, None] * (1 - 2 * height)
    score = np.broadcast_to(score, (len(_SLOPES), *mass.shape))
    event = _Event(mass[:, 1::2].sum(axis=-1), odd[entries.drawn] == 1)
    return _of_groups(score, mass, group[entries.drawn], delta), event


def _by_greedy(top: _Event, delta: FloatArray) -> FloatArray:
    """Return log e of a share of draws that takes the most probable id."""
    rate = np.array(_GREEDY)[:, None]
    hit = 1 - rate + rate / top.mass
    return _of_event(hit, np.broadcast_to(1 - rate, hit.shape), top, delta)


def _by_event(event: _Event, delta: FloatArray) -> FloatArray:
    shape = (len(_FACTORS), event.mass.size)
    factor = np.broadcast_to(np.array(_FACTORS)[:, None], shape)
    return _of_event(factor, np.ones(shape), event, delta)


def _of_event(hit: FloatArray, miss: FloatArray, event: _Event, delta: FloatArray) -> FloatArray:
    mass = np.clip(event.mass, 0.0, 1.0)
    groups = np.stack([mass, 1 - mass], axis=-1)
    return _of_groups(np.stack([hit, miss], axis=-1), groups, (~event.hit).astype(np.int64), delta)


def _first_where(entries: Entries, mask: BoolArray) -> IntArray:
    """Return per row the first entry that is marked; each row has one."""
    marked = np.flatnonzero(mask)
    first: IntArray = marked[np.searchsorted(entries.row[marked], np.arange(entries.start.size))]
    return first

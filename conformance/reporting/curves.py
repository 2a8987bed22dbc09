"""What the plots of a law show: three views of counts beside the exact law.

All bands hold for the exact law and one look, at `BAND` each; they describe and never judge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray

__all__ = ["BAND", "Buckets", "Difference", "Ratios", "buckets", "difference", "ratios"]

BAND: Final = 0.999
"""Probability of a band, of each point by itself in `ratios` and `buckets`."""

_MOST_POINTS: Final = 120


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Rank-PIT against the diagonal: summed frequency minus summed probability, from the top rank.

    At the borders between cells this is the randomised transform itself, between them its mean.

    Attributes:
        at: [points] summed probability, from 0 to 1.
        off: [points] frequency minus probability.
        band: half width that the largest deviation keeps to (Dvoretzky, Kiefer, Wolfowitz).

    """

    at: FloatArray
    off: FloatArray
    band: float


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """Observed over expected, for cells of like probability together.

    Attributes:
        prob: [points] mean probability of a cell.
        ratio: [points] observed over expected.
        low: [points] lower end of the exact binomial band, as a ratio.
        high: [points] upper end.

    """

    prob: FloatArray
    ratio: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Observed minus expected mass, by power-of-two bucket of rank.

    Attributes:
        first: [buckets] first rank, from 1.
        off: [buckets] observed minus expected mass.
        low: [buckets] lower end of the exact interval of that difference (Clopper, Pearson).
        high: [buckets] upper end.

    """

    first: IntArray
    off: FloatArray
    low: FloatArray
    high: FloatArray


def difference(probs: FloatArray, counts: IntArray) -> Difference:
    """Return the rank-PIT difference of counts [cells]; there is at least one draw."""
    order = np.argsort(-probs, kind="stable")
    draws = int(counts.sum())
    at = np.concatenate([[0.0], np.cumsum(probs[order])])
    seen = np.concatenate([[0.0], np.cumsum(counts[order]) / draws])
    off = seen - at
    keep = _thinned(at, off)
    band = math.sqrt(math.log(2 / (1 - BAND)) / (2 * draws))
    return Difference(at[keep], off[keep], band)


def _thinned(at: FloatArray, off: FloatArray) -> IntArray:
    """Return the points to draw: both ends, and in every stretch the lowest and the highest."""
    if at.size <= _MOST_POINTS:
        return np.arange(at.size)
    stretch = np.minimum((at * (_MOST_POINTS // 2)).astype(np.int64), _MOST_POINTS // 2 - 1)
    kept = {0, at.size - 1}
    for one in np.unique(stretch):
        inside = np.flatnonzero(stretch == one)
        kept |= {int(inside[off[inside].argmin()]), int(inside[off[inside].argmax()])}
    return np.array(sorted(kept), dtype=np.int64)


def ratios(probs: FloatArray, counts: IntArray) -> Ratios:
    """Return observed over expected; neighbours in rank stand together where there are many."""
    order = np.argsort(-probs, kind="stable")
    draws = int(counts.sum())
    groups = _groups(probs[order], draws)
    mass, seen = (np.add.reduceat(one[order], groups) for one in (probs, counts))
    size = np.diff(np.append(groups, probs.size))
    low, high = (_quantile(tail, draws, mass) for tail in ((1 - BAND) / 2, (1 + BAND) / 2))
    expected = draws * mass
    return Ratios(mass / size, seen / expected, low / expected, high / expected)


def _groups(ranked: FloatArray, draws: int) -> IntArray:
    """Return where groups begin, none of which expects less than ten draws if it can be helped."""
    wanted = max(10.0, draws / _MOST_POINTS) if ranked.size > _MOST_POINTS else 0.0
    starts, held = [0], 0.0
    for place, expected in enumerate(ranked * draws):
        if held >= wanted and place > 0:
            starts.append(place)
            held = 0.0
        held += expected
    return np.array(starts, dtype=np.int64)


def _quantile(tail: float, draws: int, mass: FloatArray) -> FloatArray:
    from scipy import stats

    found: FloatArray = stats.binom.ppf(tail, draws, np.minimum(mass, 1.0))
    return found


def buckets(probs: FloatArray, counts: IntArray) -> Buckets:
    """Return observed minus expected mass by octave of rank, with exact intervals."""
    from scipy import stats

    order = np.argsort(-probs, kind="stable")
    octave = np.log2(np.arange(probs.size) + 1.0).astype(np.int64)
    starts = np.flatnonzero(np.diff(octave, prepend=-1))
    draws = int(counts.sum())
    mass, seen = (np.add.reduceat(one[order], starts) for one in (probs, counts))
    tail = (1 - BAND) / 2
    low = np.where(seen > 0, stats.beta.ppf(tail, seen, draws - seen + 1), 0.0)
    high = np.where(seen < draws, stats.beta.ppf(1 - tail, seen + 1, draws - seen), 1.0)
    return Buckets(starts + 1, seen / draws - mass, low - mass, high - mass)

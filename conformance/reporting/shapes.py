"""Names the shape of a bias, as a description: fitted to the counts after looking, never a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import (
    greedy_mixture,
    temperature,
    uniform_mixture,
)
from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.cells import RowLaw, masses, sums
from refsampler.conformance.reporting.stored_law import StoredLaw

__all__ = ["Shape", "shape_of", "shape_of_all"]

_LEAST_GAIN: Final = 20.0
"""Nats by which a shape explains the counts better than the exact law; less is not named."""

_DROP: Final = 5.41
"""Fall of the log likelihood at the ends of a 99.9 % interval of one parameter: chi2(0.999) / 2."""

_BLOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One description.

    Attributes:
        words: as "temperature looks like 1.07 (1.06 to 1.08) where 1 was asked".
        gain: nats of log likelihood over the exact law, less the price of having searched.

    """

    words: str
    gain: float


def shape_of(one: StoredLaw) -> Shape | None:
    """Return the simple shape that explains a law's counts best; None if none explains much."""
    if one.counts.sum() == 0 or one.probs.size < 2:
        return None
    return _best([*_families((one,)), *_ranks(one), *_blocks(one), *_single(one)])


def shape_of_all(laws: Sequence[StoredLaw]) -> Shape | None:
    """Return the shape with one size for all laws that explains their counts best; None likewise."""
    return _best([*_families(tuple(one for one in laws if one.counts.sum() > 0))])


def _best(found: Sequence[Shape]) -> Shape | None:
    """Return the shape of most gain; of two that are nearly alike the first."""
    best = max(found, key=lambda shape: round(shape.gain), default=None)
    return best if best is not None and best.gain >= _LEAST_GAIN else None


def _families(laws: tuple[StoredLaw, ...]) -> Iterator[Shape]:
    asked = {one.case.requests[0].params.temperature for one in laws}
    over = f", fitted to {len(laws)} laws together" if len(laws) > 1 else ""
    fit = _fit(laws, temperature, -0.7, 3.0)
    if fit is not None:
        alike = len(asked) == 1
        unit = max(asked) if alike else 1.0
        middle, low, high = (f"{unit * (1 + size):.4g}" for size in fit.sizes)
        what = f"where {unit:g} was asked" if alike else "times what was asked"
        yield Shape(f"temperature looks like {middle} ({low} to {high}) {what}{over}", fit.gain)
    for law, words in (
        (uniform_mixture, "of the draws look uniform over the kept ids"),
        (greedy_mixture, "of the draws look greedy"),
    ):
        fit = _fit(laws, law, 0.0, 0.999)
        if fit is not None:
            middle, low, high = (f"{100 * size:.2g} %" for size in fit.sizes)
            yield Shape(f"{middle} ({low} to {high}) {words}{over}", fit.gain)


@dataclass(frozen=True, slots=True)
class _Fit:
    """The likeliest size of a fault, the ends of its interval, and the gain over none."""

    sizes: tuple[float, float, float]
    gain: float


def _fit(
    laws: tuple[StoredLaw, ...],
    fault: Callable[[RowLaw, float], FloatArray],
    low: float,
    high: float,
) -> _Fit | None:
    from scipy import optimize

    def gain(size: float) -> float:
        return sum(_gain(one, fault(one.law.cells.live, size)) for one in laws)

    found = optimize.minimize_scalar(lambda size: -gain(size), bounds=(low, high), method="bounded")
    size, best = float(found.x), -float(found.fun)
    if best < _LEAST_GAIN:
        return None

    def end(limit: float) -> float:
        if gain(limit) >= best - _DROP:
            return limit
        return float(optimize.brentq(lambda at: gain(at) - best + _DROP, *sorted((limit, size))))

    return _Fit((size, end(low), end(high)), best)


def _gain(one: StoredLaw, law: FloatArray) -> float:
    """Return the log likelihood ratio of a law [live] over the exact one."""
    seen = np.flatnonzero(one.counts)
    folded = np.maximum(one.law.cells.fold(np.maximum(law, 1e-300))[seen], 1e-300)
    return float(one.counts[seen] @ np.log(folded / one.probs[seen]))


def _ranks(one: StoredLaw) -> Iterator[Shape]:
    """Yield the border of rank below which there is most clearly too much or too little."""
    order = np.argsort(-one.probs, kind="stable")
    mass = one.probs[order][::-1].cumsum()[::-1][1:]
    seen = one.counts[order][::-1].cumsum()[::-1][1:]
    gains = _two_cells(seen, mass, int(one.counts.sum()))
    at = int(gains.argmax())
    expected = float(mass[at] * one.counts.sum())
    word = "few" if seen[at] < expected else "many"
    words = f"too {word} ids below rank {at + 1}: {seen[at]:,} draws, {expected:,.0f} expected"
    yield Shape(words, float(gains[at]) - math.log(gains.size))


def _blocks(one: StoredLaw) -> Iterator[Shape]:
    """Yield the sixteenth of the vocabulary that is most clearly off."""
    single = one.probs.size - len(one.law.cells.labels)
    vocab = one.law.cells.live.vocab
    if vocab < 2 * _BLOCKS or single < 2:
        return
    block = one.law.cells.ids[:single] * _BLOCKS // vocab
    mass = masses(block, one.probs[:single], _BLOCKS)
    seen = sums(block, one.counts[:single], _BLOCKS)
    draws = int(one.counts.sum())
    gains = _two_cells(seen, mass, draws)
    at = int(gains.argmax())
    share = seen[at] / draws / max(float(mass[at]), 1e-300)
    first, last = (math.ceil(edge * vocab / _BLOCKS) for edge in (at, at + 1))
    words = f"ids {first} to {last - 1} come {share:.3g} times as often as they should"
    yield Shape(words, float(gains[at]) - math.log(_BLOCKS))


def _single(one: StoredLaw) -> Iterator[Shape]:
    """Yield the cell that is most clearly off."""
    draws = int(one.counts.sum())
    gains = _two_cells(one.counts, one.probs, draws)
    at = int(gains.argmax())
    expected = float(one.probs[at] * draws)
    words = f"{one.law.cells.describe(at)} drawn {one.counts[at]:,} times, {expected:,.0f} expected"
    yield Shape(words, float(gains[at]) - math.log(gains.size))


def _two_cells(seen: IntArray, mass: FloatArray, draws: int) -> FloatArray:
    """Return the log likelihood ratio of each event's frequency over its exact mass."""
    rate = seen / draws
    inside = np.clip(mass, 1e-300, 1 - 1e-16)
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = np.where(seen > 0, seen * np.log(rate / inside), 0.0)
        rest = np.where(seen < draws, (draws - seen) * np.log((1 - rate) / (1 - inside)), 0.0)
    found: FloatArray = hit + rest
    return found

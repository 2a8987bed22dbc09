"""`draw.tail`: the summed mass of very unlikely ids, within a relative band.

Let S be a set of ids of exact mass s, each of probability about g (the grade).  The null is
|p'(S)/s - 1| <= 5 %, given the past, at every draw.  A bet on the factor r > 1.05 is the likelihood
ratio of Bernoulli(r s) against Bernoulli(1.05 s): it grows with the indicator of S, so its mean is
largest at the upper edge of the band, where it is exactly 1; r < 0.95 uses the lower edge.  So the
supremum over the band is exactly 1, and the mixture over factors is an e-process.  It depends on
the draws through (draws in S, draws) alone: a look costs nothing.

Each grade is an e-process of its own.  Grades down to the declared floor feed the clause; finer ones
are printed.  `sea` is the row that shows a grade with the fewest draws: one likely id and a sea of
equally unlikely ones.  Draws times vocabulary, hence seconds, hardly depend on how wide the sea is
while its mass is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import Bet
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray, frozen
from refsampler.conformance.evidence.guarantees import (
    BETA,
    Direction,
    PowerError,
    draws_needed_directional,
)
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.occupancy import DistinctResult, DistinctTest
from refsampler.conformance.evidence.tolerance import RATIO_FLOOR

__all__ = [
    "BAND",
    "FACTORS",
    "GRADES",
    "TAIL_BETS",
    "Detectable",
    "GradeResult",
    "Sea",
    "TailCase",
    "TailProcess",
    "assert_tail",
    "draws_needed_tail",
    "grade_result",
    "judge_resolution",
    "sea",
    "smallest_detectable_tail",
]

BAND: Final = 0.05
"""Relative half-width of the null."""

GRADES: Final = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)

FACTORS: Final = (0.0, 0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0, 100.0, 1e4)
"""Wrong masses that are bet on, relative to the exact one."""


def _words(factor: float) -> str:
    return "tail is missing" if factor == 0 else f"tail mass x{factor:g}"


TAIL_BETS: Final = tuple(Bet(_words(factor), 1 / len(FACTORS)) for factor in FACTORS)
"""The bets of every `TailProcess`, for a `ClausePool`."""

_MOST_MASS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sea:
    """One likely id and a flat sea.

    Attributes:
        grade: probability of each id of the sea.
        ids: how many; further ids of the vocabulary are masked.
        gap: logit of the likely id minus that of a sea id.

    """

    grade: float
    ids: int
    gap: float

    @property
    def mass(self) -> float:
        """Return the summed probability of the sea."""
        return self.ids * self.grade


def sea(vocab: int, grade: float) -> Sea:
    """Return the widest sea of a vocabulary whose mass is at most 1/2.

    Raises:
        ValueError: there is no room for a sea, or the grade is no probability <= 1/2.

    """
    if vocab < 2:
        raise ValueError(f"vocab = {vocab} is refused: allowed is at least 2")
    if not 0 < grade <= _MOST_MASS:
        raise ValueError(f"grade = {grade} is refused: allowed is 0 < grade <= {_MOST_MASS}")
    ids = min(vocab - 1, round(_MOST_MASS / grade))
    return Sea(grade, ids, math.log1p(-ids * grade) - math.log(grade))


@dataclass(frozen=True, slots=True, eq=False)
class TailCase:
    """One planned row and its tail.

    Attributes:
        name: id of the case.
        grade: probability of the tail's likeliest id.
        tail: [vocab] the set S.
        core: [vocab] ids that the law is conditional on.
        hull: [vocab] ids that a right backend may keep.
        mass: exact p(S), given the core.

    """

    name: str
    grade: float
    tail: BoolArray
    core: BoolArray
    hull: BoolArray
    mass: float

    @classmethod
    def build(
        cls, name: str, logprobs: FloatArray, tail: BoolArray, *, core: BoolArray, hull: BoolArray
    ) -> TailCase:
        """Prepare the row.

        Args:
            name: id of the case.
            logprobs: [vocab] exact log probabilities up to a constant, read on the core.
            tail: [vocab] the very unlikely ids, part of the core.
            core: [vocab] ids that every right backend keeps.
            hull: [vocab] ids that a right backend may keep.

        Raises:
            ValueError: the tail is empty, all of the core, or leaves it.

        """
        if (tail & ~core).any() or not tail.any() or not (core & ~tail).any():
            raise ValueError("tail is refused: allowed is a part of the core, neither none nor all")
        log_weight = np.where(core, logprobs, -np.inf)
        weight = np.exp(log_weight - log_weight.max())
        probs = weight / weight.sum()
        mass, grade = float(probs[tail].sum()), float(probs[tail].max())
        if not 0 < mass < 1:
            raise ValueError(f"tail of mass {mass} is refused: allowed is 0 < mass < 1")
        return cls(name, grade, frozen(tail.copy()), core, hull, mass)


class TailProcess:
    """The evidence about one tail.

    Args:
        case: the planned row.
        band: relative half-width of the null.

    Attributes:
        case: the planned row.
        hits: draws in the tail.
        draws: draws in the core.
        skipped: draws in the hull outside the core.
        outside: draws that no right backend gives.

    """

    def __init__(self, case: TailCase, band: float = BAND) -> None:
        self.case = case
        self.hits = 0
        self.draws = 0
        self.skipped = 0
        self.outside = 0
        self._hit, self._miss = _log_bets(case.mass, band)

    def update(self, counts: IntArray) -> None:
        """Take one batch of new draws, as counts [vocab]."""
        core = int(counts[self.case.core].sum())
        hull = int(counts[self.case.hull].sum())
        self.add(int(counts[self.case.tail].sum()), core)
        self.skipped += hull - core
        self.outside += int(counts.sum()) - hull

    def add(self, hits: int, draws: int) -> None:
        """Take one batch of new draws of the core, of which so many fell into the tail."""
        if not 0 <= hits <= draws:
            raise ValueError(f"hits = {hits} is refused: allowed is 0 to draws = {draws}")
        self.hits += hits
        self.draws += draws

    @property
    def log_components(self) -> FloatArray:
        """Return log e of every bet of `TAIL_BETS`."""
        return self.hits * self._hit + (self.draws - self.hits) * self._miss

    @property
    def log_e(self) -> float:
        """Return log e of the mixture."""
        each = self.log_components
        return float(np.logaddexp.reduce(each)) - math.log(each.size)

    def evidence(self) -> CaseEvidence:
        """Return what the case says now."""
        each = self.log_components
        at = int(each.argmax())
        log_e, weight = float(each[at]), TAIL_BETS[at].weight
        best = Component(TAIL_BETS[at].name, log_e, log_e + math.log(weight))
        return CaseEvidence(
            case=self.case.name,
            log_e=self.log_e,
            log_components=tuple(each.tolist()),
            best=best,
            draws=self.draws,
            skipped=self.skipped,
            outside=self.outside,
        )


def _log_bets(mass: float, band: float) -> tuple[FloatArray, FloatArray]:
    """Return log e [factors] of a draw in the tail and of one outside; 0 where r s >= 1."""
    factor = np.array(FACTORS)
    edge = np.where(factor > 1, 1 + band, 1 - band) * mass
    bet = factor * mass
    live = (bet < 1) & (edge < 1) & (np.abs(factor - 1) > band)
    edge, bet = np.where(live, edge, 0.5), np.where(live, bet, 0.5)
    hit = np.log(np.maximum(bet / edge, RATIO_FLOOR))
    miss = np.log1p(-bet) - np.log1p(-edge)
    return hit, miss


# ---- guarantees


@dataclass(frozen=True, slots=True)
class Detectable:
    """Factors on the tail's mass that are sure to be seen; None where none is.

    Attributes:
        low: every factor up to it.
        high: every factor from it on.

    """

    low: float | None
    high: float | None


def draws_needed_tail(
    mass: float, factor: float, log_threshold: float, beta: float = BETA, band: float = BAND
) -> float:
    """Return N after which a mass off by the factor is seen but for beta; inf inside the band.

    Args:
        mass: exact mass of the tail: ids times grade for a `sea`.
        factor: true mass over exact mass.
        log_threshold: that the mixture must reach.
        beta: probability of missing it.
        band: relative half-width of the null.

    """
    true = factor * mass
    if not 0 <= true < 1 or abs(factor - 1) <= band:
        return math.inf
    hit, miss = _log_bets(mass, band)
    law = np.array([true, 1 - true])
    bets = (Direction(law, np.array(pair)) for pair in zip(hit, miss, strict=True))
    needed = log_threshold + math.log(len(FACTORS))
    return min(draws_needed_directional(bet, needed, beta) for bet in bets)


def smallest_detectable_tail(
    mass: float, draws: int, log_threshold: float, beta: float = BETA, band: float = BAND
) -> Detectable:
    """Return the factors nearest 1 that the draws are sure to show."""

    def seen(factor: float) -> bool:
        return draws_needed_tail(mass, factor, log_threshold, beta, band) <= draws

    largest = min(0.999 / mass, 1e6)
    return Detectable(
        low=_nearest(seen, 0.0, 1 - band) if seen(0.0) else None,
        high=_nearest(seen, largest, 1 + band) if seen(largest) else None,
    )


def _nearest(seen: Callable[[float], bool], sure: float, edge: float) -> float:
    """Return the factor next to the edge that is still seen: further away is easier."""
    near = edge
    while abs(sure - near) > max(1e-3 * max(sure, near), 1e-6):
        middle = (sure + near) / 2 if min(sure, near) < 0.1 else math.sqrt(sure * near)
        sure, near = (middle, near) if seen(middle) else (sure, middle)
    return sure


def assert_tail(
    mass: float,
    factor: float,
    draws: int,
    log_threshold: float,
    beta: float = BETA,
    band: float = BAND,
) -> None:
    """Raise PowerError unless the draws show a mass off by the factor."""
    needed = draws_needed_tail(mass, factor, log_threshold, beta, band)
    if draws < needed:
        msg = f"{draws} draws are refused: a tail of mass {mass:.3g} off by x{factor:g} needs "
        raise PowerError(msg + f"{needed:.4g}")


# ---- grades


@dataclass(frozen=True, slots=True)
class GradeResult:
    """One line of the printed grades.

    Attributes:
        grade: probability of an id.
        required: whether the declared floor asks for it.
        reached: True if the draws were enough to show a mass off by the factor and did not; False
            if it was shown wrong; None if the draws did not suffice.
        log_e: of its e-process.
        draws: taken.
        seen: what the factors nearest 1 are that these draws were sure to show.

    """

    grade: float
    required: bool
    reached: bool | None
    log_e: float
    draws: int
    seen: Detectable


def grade_result(
    process: TailProcess,
    grade: float,
    floor: float,
    log_threshold: float,
    *,
    log_e_max: float | None = None,
    factor: float = 0.5,
) -> GradeResult:
    """Return the line of one grade.

    Args:
        process: its evidence, at the end.
        grade: nominal, of `GRADES`.
        floor: declared; grades >= floor are required.
        log_threshold: at which the grade is missed.
        log_e_max: largest log e at any look, as evidence may fall again; None: as it is now.
        factor: wrong mass that a reached grade must have been able to show, with its inverse.

    """
    top = process.log_e if log_e_max is None else max(log_e_max, process.log_e)
    seen = smallest_detectable_tail(process.case.mass, process.draws, log_threshold)
    enough = (seen.low or -1.0) >= factor and (seen.high or math.inf) <= 1 / factor
    reached = False if top >= log_threshold else (True if enough else None)
    required = grade >= floor * (1 - 1e-9)
    return GradeResult(grade, required, reached, top, process.draws, seen)


def judge_resolution(counts: IntArray, alpha: float, band: float = BAND) -> DistinctResult | None:
    """`draw.resolution`: judge counts [ids] of equally unlikely ids by how many were seen.

    The number of hits is given: conditional on it the distinct count has the occupancy law, so the
    level holds whatever it turned out to be.  None with fewer than two hits.
    """
    hits = int(counts.sum())
    if hits < 2:
        return None
    test = DistinctTest(counts.size, hits, alpha, band=band)
    return test.judge(int(np.count_nonzero(counts)))

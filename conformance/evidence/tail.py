"""`draw.tail`: the summed mass of very unlikely ids, within a relative band.

Let S be a set of ids of exact mass s, each of probability about g (the grade).  The null is
|p'(S)/s - 1| <= 5 %, given the past, at every draw.  A bet on the factor r > 1.05 is the likelihood
ratio of Bernoulli(r s) against Bernoulli(1.05 s): it grows with the indicator of S, so its mean is
largest at the upper edge of the band, where it is exactly 1; r < 0.95 uses the lower edge.  So the
supremum over the band is exactly 1, and the mixture over factors is an e-process.  It depends on
the draws through (draws in S, draws) alone: a look costs nothing.

What it is sure to see is in `tail_guarantees`, the rows that show it in `sea`, and the printed grades
in `grades`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import Bet
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray, frozen
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.tolerance import RATIO_FLOOR

__all__ = [
    "BAND",
    "FACTORS",
    "TAIL_BETS",
    "TailCase",
    "TailProcess",
    "log_bets",
]

BAND: Final = 0.05
"""Relative half-width of the null."""

FACTORS: Final = (0.0, 0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0, 100.0, 1e4)
"""Wrong masses that are bet on, relative to the exact one."""


def _words(factor: float) -> str:
    return "tail is missing" if factor == 0 else f"tail mass x{factor:g}"


TAIL_BETS: Final = tuple(Bet(_words(factor), 1 / len(FACTORS)) for factor in FACTORS)
"""The bets of every `TailProcess`, for a `ClausePool`."""


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
        without: patterns of bets that bet on nothing; their weight is lost.

    """

    name: str
    grade: float
    tail: BoolArray
    core: BoolArray
    hull: BoolArray
    mass: float
    without: tuple[str, ...] = ()

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
        hit, miss = log_bets(case.mass, band)
        silent = [any(fnmatchcase(one.name, glob) for glob in case.without) for one in TAIL_BETS]
        self._hit: FloatArray = np.where(silent, 0.0, hit)
        self._miss: FloatArray = np.where(silent, 0.0, miss)

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


def log_bets(mass: float, band: float) -> tuple[FloatArray, FloatArray]:
    """Return log e [factors], one for each of `FACTORS`, of a draw in the tail and of one outside; 0 where r s >= 1."""
    factor = np.array(FACTORS)
    edge = np.where(factor > 1, 1 + band, 1 - band) * mass
    bet = factor * mass
    live = (bet < 1) & (edge < 1) & (np.abs(factor - 1) > band)
    edge, bet = np.where(live, edge, 0.5), np.where(live, bet, 0.5)
    hit = np.log(np.maximum(bet / edge, RATIO_FLOOR))
    miss = np.log1p(-bet) - np.log1p(-edge)
    return hit, miss

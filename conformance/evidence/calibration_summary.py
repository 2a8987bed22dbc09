"""What simulated runs add up to: false alarms counted and held against binomial bands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scipy.stats import binom

from refsampler.conformance.evidence.budget import RUN_CLAUSES
from refsampler.conformance.evidence.calibration import BREAKS, Break, Kind, RunResult, Simulator

__all__ = ["BAND", "LEVELS", "BrokenLine", "Calibration", "LevelLine", "calibrate"]

LEVELS: Final = (0.1, 0.03, 0.01)
BAND: Final = 1e-6
"""Chance that a process at its very level would exceed the allowed count."""

_KINDS: Final[tuple[Kind, ...]] = ("exact", "least favourable")


@dataclass(frozen=True, slots=True)
class LevelLine:
    """How often one clause's evidence ever reached 1/a.

    Attributes:
        clause: its id.
        law: what the simulated sampler draws from.
        level: a.
        runs: simulated.
        reached: how many of them reached it.
        allowed: the most that a binomial band allows at the level.

    """

    clause: str
    law: Kind
    level: float
    runs: int
    reached: int
    allowed: int


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """Runs with one clause broken.

    Attributes:
        clause: the broken one.
        fault: in words.
        runs: simulated, half on the exact law and half on the least favourable one.
        found: in how many the clause was reported FAIL.
        others: in how many any other clause was.

    """

    clause: str
    fault: str
    runs: int
    found: int
    others: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The whole audit.

    Attributes:
        runs: right or tolerated runs, of both laws together.
        rejections: runs among them with any clause reported FAIL.
        levels: per clause, law and level.
        broken: per broken clause.

    """

    runs: int
    rejections: int
    levels: tuple[LevelLine, ...]
    broken: tuple[BrokenLine, ...]

    @property
    def holds(self) -> bool:
        """Return whether nothing was reported that should not be, and all faults were."""
        return (
            self.rejections == 0
            and all(one.reached <= one.allowed for one in self.levels)
            and all(one.others == 0 and one.found == one.runs for one in self.broken)
        )


def calibrate(
    runs: int, broken_runs: int, tell: Callable[[int], None] = lambda _done: None
) -> Calibration:
    """Simulate.

    Args:
        runs: on each of the two laws.
        broken_runs: with one clause broken, shared out over the clauses.
        tell: is told after every run, with 1.

    """
    simulator = Simulator()

    def simulate(count: int, kind: Kind, broken: Break | None = None) -> list[RunResult]:
        found = []
        for number in range(count):
            found.append(simulator.run(number, kind, broken))
            tell(1)
        return found

    right = {kind: simulate(runs, kind) for kind in _KINDS}
    levels = tuple(
        LevelLine(
            one.clause,
            kind,
            level,
            runs,
            sum(result.highest[one.clause] >= -math.log(level) for result in results),
            int(binom.isf(BAND, runs, level)),
        )
        for one in RUN_CLAUSES
        for kind, results in right.items()
        for level in LEVELS
    )
    rejections = sum(bool(result.failed) for results in right.values() for result in results)
    each = broken_runs // (2 * len(BREAKS))
    broken = []
    for clause, words in BREAKS.items():
        results = [result for kind in _KINDS for result in simulate(each, kind, clause)]
        found = sum(clause in result.failed for result in results)
        others = sum(bool(result.failed - {clause}) for result in results)
        broken.append(BrokenLine(clause, words, len(results), found, others))
    return Calibration(2 * runs, rejections, levels, tuple(broken))

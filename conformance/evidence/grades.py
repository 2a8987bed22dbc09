"""Grades: how unlikely ids may be for a tail still to be right, and whether each of them is reached.

Each grade is an e-process of its own.  Grades down to the declared floor feed the clause; finer ones
are printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.evidence.occupancy import DistinctResult, DistinctTest
from refsampler.conformance.evidence.tail import BAND, TailProcess
from refsampler.conformance.evidence.tail_guarantees import Detectable, smallest_detectable_tail

__all__ = ["GRADES", "GradeResult", "grade_result", "judge_resolution"]

GRADES: Final = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)


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

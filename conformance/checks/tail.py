"""The tail of the law: `draw.tail` by summed mass and grade, `draw.resolution` by distinct ids."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed.tails import TAIL_VOCAB, tail_case
from refsampler.conformance.evidence.grades import GRADES
from refsampler.conformance.evidence.occupancy import (
    DistinctTest,
    smallest_detectable_distinct,
)
from refsampler.conformance.evidence.sea import sea
from refsampler.conformance.evidence.tail import BAND, TailCase
from refsampler.conformance.evidence.tail_guarantees import (
    Detectable,
    draws_needed_tail,
    smallest_detectable_tail,
)
from refsampler.conformance.verdict import Unplanned
from refsampler.law import target_law

__all__ = [
    "CHECKS",
    "LOOKS",
    "RESOLUTION",
    "TAIL",
    "PlannedTail",
    "plan_tails",
    "prepare_tail",
    "required_grades",
    "tail_words",
]

TAIL = ClauseId("draw.tail")
RESOLUTION = ClauseId("draw.resolution")

_FACTORS = (0.5, 0.25, 0.1, 0.02)
"""Wrong masses that a grade should show, the most ambitious first; the inverse is asked for too."""

_MOST_LOGITS = {"quick": 1.2e8, "full": 6e9}
"""What one grade may cost, draws times vocabulary: a plain kernel takes 20 to 40 ns for each.  In
the full profile the finest grade that can be had takes nearly all of it."""

LOOKS = 64
"""Evidence is looked at so often, whatever the number of draws."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedTail:
    """One grade.

    Attributes:
        check: that it belongs to.
        case: the row.
        grade: probability of each id of the sea.
        required: whether the declared floor asks for it.
        draws: planned.
        factor: a mass off by so much, or its inverse, would be seen but for 1e-6.
        tail: the row's tail.
        seen: factors nearest 1 that would be seen.
        resolution: fixed-N test of the distinct ids, at the hits that are expected.

    """

    check: Check
    case: Case
    grade: float
    required: bool
    draws: int
    factor: float
    tail: TailCase
    seen: Detectable
    resolution: DistinctTest

    @property
    def reachable(self) -> float:
        """Return the share of reachable ids that the distinct count is sure to reject."""
        return smallest_detectable_distinct(self.resolution)


def required_grades(floor: float) -> tuple[float, ...]:
    """Return the grades that a declared floor asks for."""
    return tuple(grade for grade in GRADES if grade >= floor * (1 - 1e-9))


def plan_tails(
    capabilities: Capabilities, profile: str, log_threshold: float, resolution_alpha: float
) -> tuple[tuple[PlannedTail, ...], tuple[Unplanned, ...]]:
    """Choose the draws of every grade, and say which grades were too dear.

    Required grades are always planned, if need be for a tail that is all but missing.

    Args:
        capabilities: of the backend.
        profile: quick or full.
        log_threshold: ln(1/alpha) of `draw.tail`.
        resolution_alpha: what all distinct counts together may fail a right backend with.

    """
    required = required_grades(capabilities.floor)
    wanted = [
        (grade, factor, draws)
        for grade in GRADES
        for factor, draws in (_draws(grade, profile, log_threshold, len(required)),)
        if grade in required
        or (
            profile != "quick"
            and factor == _FACTORS[0]
            and draws * TAIL_VOCAB < _MOST_LOGITS[profile]
        )
    ]
    planned = tuple(
        _planned(
            capabilities,
            *one,
            log_threshold=log_threshold,
            alpha=resolution_alpha / len(wanted),
            required=required,
        )
        for one in wanted
    )
    left = [grade for grade in GRADES if grade not in {grade for grade, _, _ in wanted}]
    return planned, tuple(
        Unplanned(TAIL, f"grade {grade:g}: {_least(grade, log_threshold):.2g} logits")
        for grade in left
    )


def _least(grade: float, log_threshold: float) -> float:
    return TAIL_VOCAB * draws_needed_tail(sea(TAIL_VOCAB, grade).mass, _FACTORS[-1], log_threshold)


def _draws(grade: float, profile: str, log_threshold: float, cases: int) -> tuple[float, int]:
    """Return the most ambitious factor that the profile can pay, and its draws.

    A required grade has to fail the clause alone: half of the evidence, a share of it.
    """
    mass = sea(TAIL_VOCAB, grade).mass
    alone = log_threshold + math.log(2 * cases)
    for factor in _FACTORS:
        # more than 1/mass times too many cannot be
        sides = (factor, min(1 / factor, 0.9 / mass))
        draws = max(draws_needed_tail(mass, one, alone) for one in sides)
        if draws * TAIL_VOCAB <= _MOST_LOGITS[profile]:
            break
    return factor, math.ceil(draws)


def _planned(
    capabilities: Capabilities,
    grade: float,
    factor: float,
    draws: int,
    *,
    log_threshold: float,
    alpha: float,
    required: tuple[float, ...],
) -> PlannedTail:
    case = tail_case(grade)
    tail = prepare_tail(case, capabilities)
    alone = log_threshold + math.log(2 * len(required))
    hits = max(2, round(draws * tail.mass))
    return PlannedTail(
        CHECKS[0],
        case,
        grade,
        grade in required,
        draws,
        factor,
        tail,
        smallest_detectable_tail(tail.mass, draws, alone),
        DistinctTest(int(tail.tail.sum()), hits, alpha, band=BAND),
    )


def prepare_tail(case: Case, capabilities: Capabilities) -> TailCase:
    """Compute the exact mass of a sea."""
    logits = case.logits.build(case.dtype.torch)
    law = target_law(logits, case.requests, capabilities.semantics, thinking=case.thinking)
    logprobs = law.logprobs[0].numpy().astype(np.float64)
    core = law.core[0].numpy()
    tail = core.copy()
    tail[int(logprobs.argmax())] = False
    return TailCase.build(case.id, logprobs, tail, core=core, hull=law.hull[0].numpy())


def tail_words(seen: Detectable) -> str:
    """Return the wrong masses that would be seen, in words."""
    words = [] if seen.low is None else [f"x{seen.low:.2g} and less"]
    words += [] if seen.high is None else [f"x{seen.high:.3g} and more"]
    return " or ".join(words) or "none"


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    return tuple(tail_case(grade) for grade in required_grades(capabilities.floor))


CHECKS: tuple[Check, ...] = (
    Check("tails", clause_ids("draw.tail", "draw.resolution"), Kind.TAIL, _cases),
)
"""One id against a flat sea of ids at each grade."""

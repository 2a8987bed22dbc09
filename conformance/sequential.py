"""What a run judges by evidence beside `draw.law`: tails, independence, and tests of one look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.independence import PlannedPairs, plan_pairs, unplanned_pairs
from refsampler.conformance.checks.steps import PlannedSteps, plan_steps
from refsampler.conformance.checks.tail import (
    RESOLUTION,
    TAIL,
    PlannedTail,
    plan_tails,
    tail_words,
)
from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.budget import FIXED_DRAWS, RUN_CLAUSES, Budget
from refsampler.conformance.evidence.guarantees import BETA
from refsampler.conformance.evidence.l1 import L1Test
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.evidence.partitions import Partition
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.evidence.tail import TAIL_BETS
from refsampler.conformance.verdict import Power, Unplanned

__all__ = [
    "L1_ALPHA",
    "MOST_CELLS",
    "RESOLUTION_ALPHA",
    "SPLIT",
    "Coarse",
    "Sequential",
    "batch_sizes",
    "coarse",
    "l1_test",
    "looks",
    "plan_sequential",
]

SPLIT = Budget(RUN_CLAUSES)
"""What each clause may fail a right backend with; the same whatever part of a run is asked for."""

RESOLUTION_ALPHA = FIXED_DRAWS / 3
L1_ALPHA = FIXED_DRAWS - RESOLUTION_ALPHA

MOST_CELLS = 64
"""Laws of more cells are looked at in buckets: each would need too many draws."""

_ROW_ELEMENTS = 2**21
_MOST_ROWS = 2**13
"""More would save nothing: metadata take longer for so many requests than a call's own costs."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequential:
    """The planned tails, pairs and steps with drafts.

    Attributes:
        tails: one a grade.
        pairs: cases of the independence clauses and of drafts, before everything else.
        unplanned: what the profile's time or the machine does not allow.

    """

    tails: tuple[PlannedTail, ...] = ()
    pairs: tuple[PlannedPairs | PlannedSteps, ...] = ()
    unplanned: tuple[Unplanned, ...] = ()
    counts: dict[ClauseId, int] = field(default_factory=dict)

    @property
    def cases(self) -> tuple[Case, ...]:
        """Return every case."""
        return (*(one.case for one in self.tails), *(one.case for one in self.pairs))

    @property
    def draws(self) -> int:
        """How many ids are drawn at most."""
        return sum(one.draws for one in self.tails) + sum(one.draws for one in self.pairs)

    @property
    def logits(self) -> int:
        """Draws times vocabulary: what takes the time."""
        tails = sum(one.draws * one.case.logits.vocab for one in self.tails)
        return tails + sum(one.draws * one.case.logits.vocab for one in self.pairs)

    def would_see(self, clause: ClauseId) -> tuple[Power, ...]:
        """Return what the planned draws show of a clause, with probability 1 - 1e-6."""
        if clause == TAIL:
            return tuple(
                Power(f"tail of grade {one.grade:g} off by {tail_words(one.seen)}", 1 - BETA)
                for one in self.tails
            )
        if clause == RESOLUTION:
            return tuple(
                Power(f"grade {one.grade:g}: {one.reachable:.0%} of the ids reachable", 1 - BETA)
                for one in self.tails
                if one.reachable > 0
            )
        paired = [one for one in self.pairs if one.clause == clause]
        return tuple(
            power
            for one in paired
            for power in ((one.seen,) if isinstance(one, PlannedPairs) else one.seen)
            if isinstance(one, PlannedPairs) or power.probability >= 1 - BETA
        )

    def pools(self) -> dict[ClauseId, ClausePool]:
        """Return the evidence of every planned clause before the first draw."""
        found = {}
        required = [one.case.id for one in self.tails if one.required]
        if required:
            threshold = SPLIT.log_threshold(TAIL)
            found[TAIL] = ClausePool(equal_weights(required), TAIL_BETS, threshold)
        for clause in dict.fromkeys(one.clause for one in self.pairs):
            cases = [one for one in self.pairs if one.clause == clause]
            bank = cases[0].bank
            weights = equal_weights(one.name for one in cases)
            found[clause] = ClausePool(weights, bank, SPLIT.log_threshold(clause))
        return found


def plan_sequential(
    capabilities: Capabilities, profile: str, owned: frozenset[ClauseId]
) -> Sequential:
    """Plan the tails and the pairs of the owned clauses."""
    tails: tuple[PlannedTail, ...] = ()
    unplanned: tuple[Unplanned, ...] = ()
    if owned & {TAIL, RESOLUTION}:
        threshold = SPLIT.log_threshold(TAIL)
        tails, unplanned = plan_tails(capabilities, profile, threshold, RESOLUTION_ALPHA)
    pairs: tuple[PlannedPairs | PlannedSteps, ...] = (
        *plan_pairs(capabilities, profile, SPLIT, owned),
        *plan_steps(capabilities, profile, SPLIT, owned),
    )
    counts = {clause: sum(one.required for one in tails) for clause in (TAIL, RESOLUTION)}
    for pair in pairs:
        counts[pair.clause] = counts.get(pair.clause, 0) + 1
    unplanned = (*unplanned, *unplanned_pairs(capabilities, profile, owned))
    return Sequential(tails, pairs, unplanned, {key: n for key, n in counts.items() if n})


@dataclass(frozen=True, slots=True, eq=False)
class Coarse:
    """The view of a law at which distances are looked at.

    Attributes:
        probs: exact law of the view.
        view: the buckets; None if these are the cells themselves.

    """

    probs: FloatArray
    view: Partition | None = None

    def fold(self, counts: IntArray) -> IntArray:
        """Return the counts of the view, of counts [cells]."""
        return counts if self.view is None else self.view.fold(counts)


def coarse(law: LawCase) -> Coarse:
    """Return the cells of a law of few, else its first coarse view."""
    if law.probs.size <= MOST_CELLS:
        return Coarse(law.probs)
    view = law.partitions[0]
    return Coarse(view.probs, view)


def l1_test(law: LawCase, draws: int, tests: int) -> L1Test:
    """Return the one look at a law's distance, charged with a share of `L1_ALPHA`."""
    return L1Test(coarse(law).probs, law.delta, draws, L1_ALPHA / tests)


def batch_sizes(draws: int, vocab: int, most_elements: int | None) -> Iterator[int]:
    """Yield the rows of each call until exactly so many draws are made."""
    elements = _ROW_ELEMENTS if most_elements is None else min(most_elements, _ROW_ELEMENTS)
    rows = max(1, min(_MOST_ROWS, elements // vocab))
    for start in range(0, draws, rows):
        yield min(rows, draws - start)


def looks(calls: int, most: int) -> int:
    """Return after how many calls to look, so that there are at most so many looks."""
    return max(1, math.ceil(calls / most))

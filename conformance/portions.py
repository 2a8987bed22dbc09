"""Portions: a plan divided among the processes of one run, so that all end at about the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from refsampler.conformance.case import Hazard
from refsampler.conformance.costs import expected_seconds
from refsampler.conformance.plan import Plan, PlannedCase

__all__ = ["Portion", "divide"]

_OWN: Final = 0


@dataclass(frozen=True, slots=True)
class Portion:
    """What one process asks of a plan.

    Attributes:
        cases: numbers of exact and near-certain cases.
        laws: numbers of laws; mixed batches are numbered after the laws.
        undivided: whether pairs of calls and tails are asked too.

    """

    cases: frozenset[int]
    laws: frozenset[int]
    undivided: bool

    def has_case(self, number: int) -> bool:
        """Whether the exact or near-certain case of this number is asked."""
        return number in self.cases

    def has_law(self, number: int) -> bool:
        """Whether the law of this number is asked."""
        return number in self.laws

    @property
    def first(self) -> bool:
        """Whether the pairs of calls are asked."""
        return self.undivided

    @property
    def last(self) -> bool:
        """Whether the tails are asked."""
        return self.undivided

    @property
    def judges(self) -> bool:
        """Whether all evidence about the laws comes together: in the run's own process."""
        return self.undivided


def divide(plan: Plan, processes: int) -> tuple[Portion, ...]:
    """Divide a plan by expected seconds, the dearest case first, each to whoever has least.

    The first process is the run's own: it also asks what is not divided, pairs of calls and tails,
    and what is asked in further processes anyway.  The same plan is always divided alike.
    """
    seconds = expected_seconds(plan)
    cases, pairs = len(plan.cases), len(plan.sequential.pairs)
    laws = len(plan.laws) + len(plan.mixed)
    before_laws = cases + pairs
    movable = [
        *(place for place, one in enumerate(plan.cases) if not _in_further_processes(one)),
        *range(before_laws, before_laws + laws),
    ]
    spent = [0.0] * processes
    spent[_OWN] = sum(seconds) - sum(seconds[place] for place in movable)
    given: list[set[int]] = [set() for _ in range(processes)]
    given[_OWN] = {*range(cases)} - {*movable}
    for place in sorted(movable, key=lambda place: (-seconds[place], place)):
        idlest = min(range(processes), key=lambda process: (spent[process], process))
        spent[idlest] += seconds[place]
        given[idlest].add(place)
    return tuple(
        Portion(
            frozenset(place for place in mine if place < cases),
            frozenset(place - before_laws for place in mine if place >= before_laws),
            process == _OWN,
        )
        for process, mine in enumerate(given)
    )


def _in_further_processes(one: PlannedCase) -> bool:
    return one.check.beside is not None or one.case.hazard is not Hazard.NONE

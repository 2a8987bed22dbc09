"""Plans for the audit: about some clauses, and of every exact case; each made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import msgspec

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance import memory
from refsampler.conformance.case import Case
from refsampler.conformance.checks import corpus, generated
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.law import prepare
from refsampler.conformance.designed.laws import MADE_FOR, law_cases
from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.cells import RowLaw
from refsampler.conformance.faults.base import Fault
from refsampler.conformance.plan import Plan, PlannedCase, make_plan, reseeded
from refsampler.conformance.sequential import Sequential

__all__ = ["Planner", "cases_of"]


class Planner:
    """Keeps plans: many faults declare the same capabilities."""

    def __init__(self) -> None:
        self._plans: dict[tuple[bytes, str, int, str, int], Plan] = {}
        self._evidence: dict[tuple[bytes, str, int], Plan] = {}

    def named(
        self, capabilities: Capabilities, profile: str, run_seed: int, clauses: Sequence[ClauseId]
    ) -> Plan:
        """Return the plan about some clauses: those of the first one first, generated cases last.

        Tails begin with the finest grade that is required, which shows most.
        """
        plans = [self._plan(capabilities, profile, run_seed, one) for one in clauses]
        found = sorted((one for plan in plans for one in plan.cases), key=_generated)
        cases = {(one.check.name, one.id): one for one in found}
        sequential = [plan.sequential for plan in plans]
        tails = next((one.tails for one in sequential if one.tails), ())
        law = next((plan for plan in plans if plan.laws), plans[0])
        return replace(
            law,
            cases=tuple(cases.values()),
            standings=tuple(one for plan in plans for one in plan.standings),
            planned={key: n for plan in plans for key, n in plan.planned.items()},
            sequential=replace(
                sequential[0],
                tails=tuple(sorted(tails, key=lambda one: (not one.required, one.grade))),
                pairs=tuple(pair for one in sequential for pair in one.pairs),
                counts={key: n for one in sequential for key, n in one.counts.items()},
            ),
        )

    def exact(self, capabilities: Capabilities, profile: str, run_seed: int) -> Plan:
        """Return the plan of every exact case, without laws, tails and pairs."""
        return self._plan(capabilities, profile, run_seed, "*")

    def left_out(self, asked: Plan, capabilities: Capabilities, fault: Fault) -> Plan:
        """Return a plan without what was made for a fault of this sort.

        The alternatives, factors of tails and couplings of pairs that bet on it bet on nothing, so
        that their weight is lost; the checks and the rows of laws that were designed for it are not
        asked, and nothing is asked from the corpus, whose cases came from faults.
        """
        from_faults = frozenset((*fault.designed, *(one.name for one in corpus.CHECKS)))
        bank = tuple(
            replace(one, fault=_nothing)
            if any(fnmatchcase(one.name, glob) for glob in fault.bank)
            else one
            for one in BANK
        )
        made = {case.id for case in _rows_for(fault)}
        laws = (
            replace(one, law=prepare(one.case, capabilities, bank))
            for one in asked.laws
            if one.case.id not in made
        )
        tails = (
            replace(one, tail=replace(one.tail, without=fault.bank))
            for one in asked.sequential.tails
            if one.check.name not in from_faults
        )
        pairs = (
            replace(one, without=fault.bank) if isinstance(one, PlannedPairs) else one
            for one in asked.sequential.pairs
            if one.check.name not in from_faults
        )
        return replace(
            asked,
            cases=tuple(one for one in asked.cases if one.check.name not in from_faults),
            laws=tuple(laws),
            # their bank is that of every run
            mixed=(),
            sequential=replace(asked.sequential, tails=tuple(tails), pairs=tuple(pairs)),
        )

    def whole(self, capabilities: Capabilities, profile: str, run_seed: int) -> Plan:
        """Return the plan of a run: every case, laws, tails and pairs."""
        about = (_encoded(capabilities), profile, memory.ELEMENTS)
        if about not in self._evidence:
            self._evidence[about] = make_plan(capabilities, profile=profile, run_seed=run_seed)
        evidence = self._evidence[about]
        if evidence.run_seed == run_seed:
            return evidence
        return reseeded(evidence, self.exact(capabilities, profile, run_seed))

    def _plan(self, capabilities: Capabilities, profile: str, run_seed: int, glob: str) -> Plan:
        key = (
            _encoded(capabilities),
            profile,
            run_seed,
            glob,
            memory.ELEMENTS,
        )
        if key not in self._plans:
            self._plans[key] = make_plan(
                capabilities, profile=profile, glob=glob, run_seed=run_seed, evidence=glob != "*"
            )
        return self._plans[key]


def _rows_for(fault: Fault) -> tuple[Case, ...]:
    """Return the rows of laws that are there for alternatives that bet on such a fault."""
    rows = law_cases()
    named = {one.name for one in BANK if any(fnmatchcase(one.name, glob) for glob in fault.bank)}
    return tuple(
        rows[place]
        for pattern, places in MADE_FOR.items()
        if any(fnmatchcase(name, pattern) for name in named)
        for place in places
    )


def _generated(case: PlannedCase) -> bool:
    return case.check in generated.CHECKS


def _nothing(row: RowLaw) -> FloatArray:
    """The right law: a bet on it neither wins nor loses."""
    return row.probs


def _encoded(capabilities: Capabilities) -> bytes:
    return msgspec.json.encode(capabilities, order="sorted")


def cases_of(plan: Plan) -> Plan:
    """Return the plan without laws, batches of many laws, tails and pairs."""
    return replace(plan, laws=(), mixed=(), sequential=Sequential())

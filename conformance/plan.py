"""Plan: what will run, what it may cost in false alarms, and what it will see, before any draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import Clause, ClauseId, load
from refsampler.conformance import memory
from refsampler.conformance.case import Case, CaseId, encode_case, id_of
from refsampler.conformance.checks import Check, Kind, all_checks
from refsampler.conformance.checks.law import prepare
from refsampler.conformance.checks.mixed import PlannedMixed, mixed_power, plan_mixed
from refsampler.conformance.checks.rows import EVERY_CASE, draw_charge
from refsampler.conformance.checks.standing import Standing, standing
from refsampler.conformance.evidence.budget import NEAR_CERTAIN, Ledger
from refsampler.conformance.evidence.guarantees import BETA
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.lawsize import LAW_SHARE, LEAST_SECONDS, SECONDS, Sizes, size_laws
from refsampler.conformance.sequential import SPLIT, Sequential, plan_sequential
from refsampler.conformance.verdict import Power, Unplanned
from refsampler.conformance.within import within

__all__ = [
    "LAW",
    "Plan",
    "PlannedCase",
    "PlannedLaw",
    "alpha",
    "make_plan",
    "reseeded",
    "sure",
    "would_see",
]

LAW = ClauseId("draw.law")


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One case of an exact or near-certain check.

    Attributes:
        check: that judges it.
        case: what is asked.
        id: of the case.
        document: the case as canonical JSON.
        draws: of all arrangements.
        charge: false alarm.

    """

    check: Check
    case: Case
    id: CaseId
    document: bytes
    draws: int
    charge: float


@dataclass(frozen=True, slots=True, eq=False)
class PlannedLaw:
    """One law case.

    Attributes:
        check: that it belongs to.
        case: of one row.
        draws: at most.
        law: exact, with everything that bets on it.
        least: draws that are made in any case.
        carried: names of the alternatives whose refutation ends it between the two.

    """

    check: Check
    case: Case
    draws: int
    law: LawCase
    least: int
    carried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that a run will do.

    Attributes:
        capabilities: of the backend.
        profile: quick or full.
        glob: which clauses were asked for.
        run_seed: feeds cases and draws.
        standings: every selected clause and whether the backend owns it.
        cases: exact and near-certain, in the order of the run.
        laws: after them.
        log_threshold: ln(1/alpha) of `draw.law`.
        charge: summed false alarm of the near-certain cases.
        would_see: per declared alternative the probability that the laws show it.
        planned: clause -> how many cases speak about it.
        checked: clauses that any check tests, on whatever backend.
        sequential: tails and independence.
        mixed: batches of which every row has another law, after the laws.
        without_mixed: why there are none, in words.
        unplanned: what the time of the laws does not allow.
        free_bytes: of the device when the plan was made; large batches depend on it.
        too_large: clause -> how many of its cases have more logits in a call than the backend takes.

    """

    capabilities: Capabilities
    profile: str
    glob: str
    run_seed: int
    standings: tuple[tuple[Clause, Standing], ...]
    cases: tuple[PlannedCase, ...]
    laws: tuple[PlannedLaw, ...]
    log_threshold: float
    charge: float
    would_see: tuple[Power, ...]
    planned: Mapping[ClauseId, int]
    checked: frozenset[ClauseId]
    sequential: Sequential = field(default_factory=Sequential)
    mixed: tuple[PlannedMixed, ...] = ()
    without_mixed: str = ""
    unplanned: tuple[Unplanned, ...] = ()
    free_bytes: int = 0
    too_large: Mapping[ClauseId, int] = field(default_factory=dict)

    @property
    def draws(self) -> int:
        """How many ids will be drawn at most."""
        laws = sum(one.draws for one in self.laws) + sum(one.draws for one in self.mixed)
        return sum(one.draws for one in self.cases) + laws + self.sequential.draws


def make_plan(
    capabilities: Capabilities,
    *,
    profile: str = "quick",
    glob: str = "*",
    run_seed: int,
    evidence: bool = True,
    time_budget: float | None = None,
    free_bytes: int | None = None,
    before_cases: Callable[[], None] = lambda: None,
) -> Plan:
    """Decide what will run.

    Args:
        capabilities: of the backend.
        profile: quick or full.
        glob: shell pattern of clause ids; a group's name selects the group.
        run_seed: feeds cases and draws.
        evidence: whether laws, tails and pairs are planned beside the exact cases.
        time_budget: of the run in seconds; the laws are sized for their share of it.
        free_bytes: of the device, which decides about large batches; None looks.
        before_cases: called when everything but the exact cases is planned.

    Raises:
        BudgetExceededError: the near-certain cases would cost more than 1e-10.

    """
    free = memory.free_bytes(capabilities.device) if free_bytes is None else free_bytes
    with memory.as_if_free(free):
        chosen = [clause for clause in load().clauses if _matches(clause, glob)]
        standings = tuple((clause, standing(clause, capabilities)) for clause in chosen)
        owned = frozenset(clause.id for clause, stands in standings if stands.status is None)
        judged = owned if evidence else frozenset[ClauseId]()
        log_threshold = SPLIT.log_threshold(LAW)
        laws, sizes = _planned_laws(capabilities, profile, judged, time_budget)
        sequential = plan_sequential(capabilities, profile, judged)
        mixed, without = plan_mixed(capabilities, profile) if LAW in judged else ((), "")
        before_cases()
        every = tuple(_planned_cases(capabilities, profile, run_seed, owned))
        cases = tuple(one for one in every if _takes(capabilities, one))
        too_large = Counter(
            clause
            for one in every
            if not _takes(capabilities, one)
            for clause in owned.intersection(one.case.clauses)
        )
        ledger = Ledger(NEAR_CERTAIN)
        for one in cases:
            ledger.charge(one.check.name, one.charge)
        ledger.seal()
        count = len(laws) + len(mixed)
        powers = sizes.powers + tuple(mixed_power(one, log_threshold, count) for one in mixed)
        return Plan(
            capabilities,
            profile,
            glob,
            run_seed,
            standings,
            cases,
            laws,
            log_threshold,
            ledger.spent,
            powers,
            {**_counted(cases, laws, mixed), **sequential.counts},
            frozenset(clause for check in all_checks() for clause in check.clauses) | {*EVERY_CASE},
            sequential,
            mixed,
            without,
            sizes.unplanned,
            free,
            too_large,
        )


def reseeded(plan: Plan, exact: Plan) -> Plan:
    """Return a plan under another run seed, on which laws, tails and pairs do not depend.

    Args:
        plan: of every clause.
        exact: of the same capabilities, clauses and profile, under that seed; of its cases.

    """
    return replace(
        plan,
        run_seed=exact.run_seed,
        cases=exact.cases,
        charge=exact.charge,
        planned={**_counted(exact.cases, plan.laws, plan.mixed), **plan.sequential.counts},
    )


def _counted(
    cases: tuple[PlannedCase, ...],
    laws: tuple[PlannedLaw, ...],
    mixed: tuple[PlannedMixed, ...],
) -> Mapping[ClauseId, int]:
    """Return clause -> how many cases speak about it; some clauses are spoken of by all."""
    counts: dict[ClauseId, int] = {}
    drawn = [*(one.case for one in laws), *(one.case for one in mixed)]
    spoken = [{*one.case.clauses, *EVERY_CASE} for one in cases]
    for clauses in [*spoken, *({*case.clauses} for case in drawn)]:
        for clause in clauses:
            counts[clause] = counts.get(clause, 0) + 1
    return counts


def _matches(clause: Clause, glob: str) -> bool:
    return fnmatchcase(clause.id, glob) or clause.group == glob


def _planned_cases(
    capabilities: Capabilities, profile: str, run_seed: int, owned: frozenset[ClauseId]
) -> Iterator[PlannedCase]:
    """Yield the cases that speak about an owned clause; the others would prove nothing."""
    for check in all_checks():
        if check.kind not in (Kind.EXACT, Kind.NEAR_CERTAIN) or not owned & {*check.clauses}:
            continue
        if profile not in check.profiles:
            continue
        for case in check.cases(capabilities, run_seed):
            if not owned & {*case.clauses}:
                continue
            arrangements = check.arrange(case)
            rows = sum(len(one.requests) for one in arrangements)
            draws = rows * case.calls
            charge = draw_charge(draws) if check.kind is Kind.NEAR_CERTAIN else 0.0
            document = encode_case(case)
            yield PlannedCase(check, case, id_of(document), document, draws, charge)


def _takes(capabilities: Capabilities, planned: PlannedCase) -> bool:
    return capabilities.max_elements is None or all(
        within(one, capabilities) for one in planned.check.arrange(planned.case)
    )


def _planned_laws(
    capabilities: Capabilities,
    profile: str,
    owned: frozenset[ClauseId],
    time_budget: float | None,
) -> tuple[tuple[PlannedLaw, ...], Sizes]:
    found = [
        (check, case, prepare(case, capabilities))
        for check in all_checks()
        if check.kind is Kind.LAW and owned & {*check.clauses}
        for case in check.cases(capabilities, 0)
    ]
    if not found:
        return (), Sizes((), (), ())
    share = math.inf if time_budget is None else LAW_SHARE * time_budget
    sizes = size_laws(
        [(case, law) for _, case, law in found],
        LAW,
        SPLIT.log_threshold(LAW),
        min(SECONDS[profile], share),
        min(LEAST_SECONDS[profile], share / len(found)),
    )
    laws = tuple(
        PlannedLaw(check, case, size.most, law, size.least, size.carried)
        for (check, case, law), size in zip(found, sizes.rows, strict=True)
    )
    return laws, sizes


def sure(plan: Plan) -> tuple[Power, ...]:
    """Return the alternatives that the laws show but for probability 1e-6."""
    return tuple(one for one in plan.would_see if one.probability >= 1 - BETA)


def would_see(plan: Plan, clause: ClauseId) -> tuple[Power, ...]:
    """Return what the evidence of a clause shows but for probability 1e-6."""
    return sure(plan) if clause == LAW else plan.sequential.would_see(clause)


def alpha(plan: Plan) -> float:
    """Return what `draw.law` may fail a right backend with."""
    return math.exp(-plan.log_threshold)

"""One fault: the suite is run on it, the checks of its clause first, and what failed is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance import memory
from refsampler.conformance.audit.catches import Catch, Watch, catches, of_evidence
from refsampler.conformance.audit.plans import Planner, cases_of
from refsampler.conformance.decisions import Decision
from refsampler.conformance.faults.base import Fault, State, missing_here
from refsampler.conformance.isolation import AskedSubject, Limits, guarded
from refsampler.conformance.plan import Plan
from refsampler.conformance.runner import Outcome, run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread

__all__ = [
    "LIMIT_S",
    "NAMED_FIRST",
    "PLANNING_S",
    "FaultResult",
    "Found",
    "audit_fault",
    "not_asked",
    "without_verdict",
]

LIMIT_S: Final = 60.0
"""Seconds that the checks of one fault may take."""
PLANNING_S: Final = 300.0
"""Until plans are made, which later faults share."""
NAMED_FIRST: Final = "full"
"""The profile in which a fault is not asked further once its own checks caught it: its exact cases
alone take minutes, and the matrix of quick shows what a whole run blames."""
_CALL_S: Final = 5.0
"""Seconds of one call of a fault that may hang."""


class Found(StrEnum):
    """How a fault ended, in the order in which a table lists them."""

    SURVIVED = "survived"
    WRONG_CLAUSE = "wrong clause"
    ERROR = "error"
    CAUGHT = "caught"
    NOT_RUN = "not run"
    OUT_OF_SCOPE = "out of scope"


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite made of one fault.

    `clauses` holds the one that is broken, then those whose name is as good.  `complete` says that
    every exact case was asked within the limit, so that no other clause was left untried.
    `revision` is the commit of the suite that was run.
    """

    id: str
    kind: str
    engine: str
    thread: str
    summary: str
    clauses: tuple[str, ...]
    found: Found
    caught: tuple[Catch, ...] = ()
    reason: str = ""
    draws: int = 0
    seconds: float = 0.0
    complete: bool = False
    revision: str = ""

    @property
    def first(self) -> Catch | None:
        """The catch of the right clause, or else of any."""
        right = [one for one in self.caught if one.clause in self.clauses]
        return next(iter(right or self.caught), None)


def not_asked(fault: Fault) -> FaultResult | None:
    """Return the result of a fault that cannot be asked about here; None if it can."""
    if fault.state is not State.READY:
        return without_verdict(fault, Found.OUT_OF_SCOPE, fault.reason)
    lacking = missing_here(fault)
    return without_verdict(fault, Found.NOT_RUN, lacking) if lacking else None


def audit_fault(
    fault: Fault,
    profile: str,
    run_seed: int,
    *,
    limit_s: float = LIMIT_S,
    named_only: bool = False,
    leave_out: bool = False,
    planner: Planner | None = None,
    tell: Callable[[FaultResult | float], None] = lambda _result: None,
) -> FaultResult:
    """Run the suite on one fault.

    The checks of its clauses come first; in the full profile nothing follows once it is caught.
    Then, while time is left, every exact case of the profile, so that the verdict is that of a whole
    run: a clause may be blamed in another's place; then, if the right one was not, laws, tails and
    pairs of any clause.  Planning is not counted: plans serve many faults.

    Args:
        fault: which.
        profile: quick or full.
        run_seed: feeds cases and draws.
        limit_s: seconds in all.
        named_only: only the checks of its clauses.
        leave_out: without the bets and the checks that were made for such a fault.
        planner: keeps plans from fault to fault; one is made if none is given.
        tell: told the seconds that may pass until it is told something else, and what is known so
            far, should the rest not come to an end.

    """
    unasked = not_asked(fault)
    if unasked is not None:
        return unasked
    kept = Planner() if planner is None else planner
    try:
        with one_thread(), _index(fault):
            asking = _Asking(fault, kept, profile, run_seed, limit_s, tell)
            return asking.left_out() if leave_out else asking.result(named_only=named_only)
    except Exception as error:  # noqa: BLE001 - a fault of ours costs one line of the table
        return without_verdict(fault, Found.ERROR, f"{type(error).__name__}: {error}")


@contextmanager
def _opened(fault: Fault, run_seed: int) -> Iterator[AskedSubject]:
    """Open the wrong subject; in a process of its own if it may hang."""
    assert fault.make is not None
    if not fault.hazardous:
        yield OpenSubject(fault.make(), run_seed)
        return
    spec = f"refsampler.conformance.faults.subjects:{fault.id}"
    with guarded(spec, run_seed, isolate=True, limits=Limits(timeout_s=_CALL_S)) as subject:
        yield subject


@contextmanager
def _index(fault: Fault) -> Iterator[None]:
    """Let the suite believe that an element index ends where this fault's does."""
    before = memory.ELEMENTS
    memory.ELEMENTS = fault.index_elements or before
    try:
        yield
    finally:
        memory.ELEMENTS = before


@dataclass(frozen=True, slots=True)
class _Asking:
    """One fault's two runs."""

    fault: Fault
    planner: Planner
    profile: str
    run_seed: int
    limit_s: float
    tell: Callable[[FaultResult | float], None]

    def result(self, *, named_only: bool) -> FaultResult:
        assert self.fault.make is not None
        capabilities, watch = self.fault.make().capabilities, Watch()
        about = (capabilities, self.profile, self.run_seed)
        named, first = self._named(capabilities, watch)
        found = self._judged(first.decisions, watch, (first,), complete=False, plan=named)
        if named_only or (self.profile == NAMED_FIRST and found.found is Found.CAUGHT):
            return found
        unfinished = "ended at its limit before every case was asked"
        self.tell(msgspec.structs.replace(found, reason=found.reason or unfinished))
        self.tell(PLANNING_S)
        exact = _after(named, self.planner.exact(*about))
        left = max(self.limit_s - first.seconds, 0.0)
        self.tell(left)
        enough = self.fault.clauses if self.profile == NAMED_FIRST else ()
        second = self._run(exact, watch, left, enough)
        decisions = (*of_evidence(first.decisions, exact), *second.decisions)
        complete = second.seconds < left
        found = self._judged(decisions, watch, (first, second), complete=complete, plan=named)
        left = max(left - second.seconds, 0.0)
        if found.found is Found.CAUGHT or not left:
            return found
        self.tell(msgspec.structs.replace(found, reason=found.reason or unfinished))
        self.tell(PLANNING_S)
        whole = self.planner.whole(*about)
        self.tell(left)
        third = self._run(whole, watch, left)
        return self._judged(
            (*of_evidence(first.decisions, exact), *third.decisions),
            watch,
            (first, second, third),
            complete=complete,
            plan=named,
        )

    def _named(self, capabilities: Capabilities, watch: Watch) -> tuple[Plan, Outcome]:
        """Ask about its clauses.

        In the full profile what takes no sequence of draws comes first; then what the clause that is
        broken by itself is asked, which may take all of the time.
        """
        clauses, until_named = self.fault.clauses, self.profile == NAMED_FIRST
        about = (capabilities, self.profile, self.run_seed)
        plans = [self.planner.named(*about, clauses)]
        if until_named:
            plans = [cases_of(plans[0]), self.planner.named(*about, clauses[:1]), *plans]
        left = self.limit_s
        for plan in plans:
            self.tell(left)
            outcome = self._run(plan, watch, left, clauses if until_named else ())
            left = max(left - outcome.seconds, 0.0)
            if until_named and watch.shows(clauses):
                break
        return plan, replace(outcome, seconds=self.limit_s - left)

    def left_out(self) -> FaultResult:
        """Ask what was not made for the fault: about its clauses, then everything.

        Either ends where it leaves no doubt about one of the fault's clauses.
        """
        assert self.fault.make is not None
        capabilities, watch = self.fault.make().capabilities, Watch()
        about = (capabilities, self.profile, self.run_seed)
        named = self.planner.named(*about, self.fault.clauses)
        outcomes, left = [], self.limit_s
        for asked in (named, self.planner.whole(*about)):
            plan = self.planner.left_out(asked, capabilities, self.fault)
            self.tell(left + PLANNING_S)
            outcomes.append(self._run(plan, watch, left, self.fault.clauses))
            left -= outcomes[-1].seconds
            if watch.shows(self.fault.clauses) or left <= 0:
                break
        decisions = outcomes[-1].decisions
        return self._judged(decisions, watch, tuple(outcomes), complete=False, plan=plan)

    def _judged(
        self,
        decisions: Sequence[Decision],
        watch: Watch,
        outcomes: tuple[Outcome, ...],
        *,
        complete: bool,
        plan: Plan,
    ) -> FaultResult:
        """Say how the fault ended."""
        caught = catches(decisions, watch)
        errors = [error for one in outcomes for error in one.errors]
        broken = {one.clause for one in caught}
        if broken & {*self.fault.clauses}:
            found = Found.CAUGHT
        elif broken:
            found = Found.WRONG_CLAUSE
        else:
            found = Found.ERROR if errors else Found.SURVIVED
        reason = errors[0] if errors else ""
        if not reason and found is not Found.CAUGHT and not plan.planned:
            reason = f"no case of {self.fault.clauses[0]} in the {self.profile} profile"
        return msgspec.structs.replace(
            without_verdict(self.fault, found, reason),
            caught=caught,
            draws=watch.draws,
            seconds=round(sum(one.seconds for one in outcomes), 3),
            complete=complete,
        )

    def _run(
        self, plan: Plan, watch: Watch, seconds: float, enough: Sequence[ClauseId] = ()
    ) -> Outcome:
        """Run a plan on a subject that was not asked before; what is known is not asked again.

        The run ends once it leaves no doubt about one of the clauses that are `enough`.
        """
        with _opened(self.fault, self.run_seed) as subject:
            return run(
                subject,
                plan,
                watch,
                time_budget=seconds,
                stop=lambda: bool(getattr(subject, "spent", False)) or watch.shows(enough),
                finished=watch.finished(),
                minimise=False,
            )


def _after(named: Plan, whole: Plan) -> Plan:
    """Return the whole plan with the cases first that were asked already.

    Conversations, which may take thousands of calls, come after cases that take a few.
    """
    asked = {(one.check.name, one.id) for one in named.cases}
    rest = [one for one in whole.cases if (one.check.name, one.id) not in asked]
    rest.sort(key=lambda one: one.check.ask is not None)
    return replace(whole, cases=(*named.cases, *rest))


def without_verdict(fault: Fault, found: Found, reason: str) -> FaultResult:
    """Return the result of a fault about which the suite said nothing."""
    return FaultResult(
        id=fault.id,
        kind=str(fault.kind),
        engine=fault.engine,
        thread=fault.thread,
        summary=fault.summary,
        clauses=tuple(fault.clauses),
        found=found,
        reason=reason,
    )

"""Decisions: from what the cases showed to one status a clause, and to an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from refsampler.clauses import Clause, ClauseId, Level, get
from refsampler.conformance.blame import Blame
from refsampler.conformance.case import Case, CaseId
from refsampler.conformance.checks import Finding
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.checks.rows import EVERY_CASE
from refsampler.conformance.checks.standing import Standing
from refsampler.conformance.evidence.pool import ClausePool
from refsampler.conformance.plan import LAW, Plan, would_see
from refsampler.conformance.verdict import Exact, ExitCode, LogE, Power, Status, Verdict

__all__ = ["Decision", "Tally", "decide", "exit_code", "headline"]

_NO_CHECK = "no check yet"
_NEVER_UNSUPPORTED = (
    "output.range",
    "greedy.argmax",
    "top-k.keep",
    "top-p.keep",
    "draw.",
    "batch.isolation",
    "independence.rows",
)

_RESTED_ON = clause_ids("independence.rows", "independence.calls")
_DRAFT_LAW, _EMITTED_LAW = clause_ids("spec.draft-law", "spec.law")
_NULLS = {
    LAW: "the exact law within the declared delta",
    ClauseId("draw.tail"): "the exact mass of the tail within 5 %",
    _EMITTED_LAW: "the exact joint law of both ids within twice the declared delta",
    _DRAFT_LAW: "drafts from the laws that are told for them",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, its clause's level, and why it is what it is.

    Attributes:
        verdict: what was decided.
        level: MUST gates, SHOULD does not.
        reason: of a status that says nothing about behaviour.
        cases: judged.
        expected: of the finding shown.
        seen: of the finding shown.
        unchecked: no check tests the clause yet.

    """

    verdict: Verdict
    level: Level
    reason: str = ""
    cases: int = 0
    expected: str = ""
    seen: str = ""
    unchecked: bool = False


@dataclass(slots=True)
class Tally:
    """What happened in a run, by clause: filled case by case, read at the end.

    Attributes:
        done: cases finished.
        made: those of them whose first clause it is.
        draws: ids drawn for them.
        seconds: spent on them.
        breaches: what cases showed, with the case.
        crashed: clauses whose cases the subject did not survive.
        errors: of the harness, in words; each names its check and case.
        failed_clauses: clauses of cases that the harness could not judge.
        cases: judged.
        all_draws: of all cases.
        figures: measured, in words; they gate nothing.
        unasked: clause -> why cases of it could not be asked of this backend, one entry a case.
        unseen: what these cases would have shown.

    """

    done: dict[ClauseId, int] = field(default_factory=dict)
    made: dict[ClauseId, int] = field(default_factory=dict)
    draws: dict[ClauseId, int] = field(default_factory=dict)
    seconds: dict[ClauseId, float] = field(default_factory=dict)
    breaches: list[tuple[Case, Finding]] = field(default_factory=list)
    crashed: set[ClauseId] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    failed_clauses: set[ClauseId] = field(default_factory=set)
    cases: int = 0
    all_draws: int = 0
    figures: dict[ClauseId, str] = field(default_factory=dict)
    unasked: dict[ClauseId, list[str]] = field(default_factory=dict)
    unseen: set[Power] = field(default_factory=set)

    def skip(self, clauses: tuple[ClauseId, ...], why: str, *unseen: Power) -> None:
        """Book a case that this backend cannot be asked; its clauses rest on the others."""
        for clause in clauses:
            self.unasked.setdefault(clause, []).append(why)
        self.unseen |= {*unseen}

    def count(self, clauses: tuple[ClauseId, ...], draws: int, seconds: float) -> None:
        """Book a case; the clauses are those for which it is finished."""
        self.cases += 1
        self.all_draws += draws
        for clause in clauses[:1]:
            self.made[clause] = self.made.get(clause, 0) + 1
        for clause in clauses:
            self.done[clause] = self.done.get(clause, 0) + 1
            self.draws[clause] = self.draws.get(clause, 0) + draws
            self.seconds[clause] = self.seconds.get(clause, 0.0) + seconds

    def figure(self, figures: tuple[tuple[ClauseId, str], ...]) -> None:
        """Add figures to those of their clauses."""
        for clause, words in figures:
            before = self.figures.get(clause)
            self.figures[clause] = words if before is None else f"{before}; {words}"

    def book(self, case: Case, findings: tuple[Finding, ...]) -> None:
        """Book what a case showed."""
        self.breaches += [(case, finding) for finding in findings]

    def in_order_of(self, cases: Iterable[CaseId]) -> None:
        """Put what cases showed in the order of a plan; what is not of these cases comes last."""
        places = {case: place for place, case in enumerate(cases)}
        last = len(places)
        self.breaches.sort(key=lambda one: places.get(one[0].id, last))

    def blamed(self) -> dict[ClauseId, list[tuple[Case, Finding]]]:
        """Return clause -> the breaches that it explains, of as few clauses as explain them all.

        A wrong id often has several explanations.  The one that explains most is taken first, and a
        further clause only for what a case shows that was made for it, so that none is blamed for
        what another one, broken elsewhere too, explains as well.  Breaches that say nothing beside a
        broken clause wait for those that do; guesses count if nothing else does.
        """
        counted = [one for one in self.breaches if one[1].given is None]
        sure = [one for one in counted if not one[1].guess]
        asked = frozenset(self.done) - {*EVERY_CASE}
        blame = Blame(asked, self.made, sure)
        blame.cover([one for one in sure if one[1].unless is None])
        blame.cover([one for one in sure if one[1].unless not in blame.found])
        if not blame.found:
            blame = Blame(frozenset(), self.made, counted)
            blame.cover(counted)
        found = {
            clause: [one for one in explained if one[1].unless not in blame.found]
            for clause, explained in blame.found.items()
        }
        for case, finding in self.breaches:
            if finding.given is not None and finding.given in found:
                found.setdefault(finding.clause, []).append((case, finding))
        return found

    @property
    def withheld(self) -> dict[ClauseId, ClauseId]:
        """Return clause -> the broken clause beside which its findings say nothing."""
        blamed = self.blamed()
        explained = {id(finding) for found in blamed.values() for _, finding in found}
        first = next(iter(blamed), None)
        return {
            one.clause: one.unless if one.unless in blamed else first
            for _, one in self.breaches
            if first is not None and one.given is None and id(one) not in explained
        }


def decide(plan: Plan, tally: Tally, pools: Mapping[ClauseId, ClausePool]) -> Iterator[Decision]:
    """Yield one decision a selected clause, then those about broken clauses not selected.

    Args:
        plan: of the run.
        tally: what its cases showed.
        pools: the evidence of the clauses that are judged by it.

    """
    blamed = tally.blamed()
    for clause, stands in plan.standings:
        yield _decision(plan, tally, pools, clause, stands, blamed.get(clause.id, []))
    selected = {clause.id for clause, _ in plan.standings}
    for broken, found in blamed.items():
        if broken not in selected:
            yield _decision(plan, tally, pools, get(broken), Standing(None), found)


def _dependent(pools: Mapping[ClauseId, ClausePool], clause: Clause) -> ClauseId | None:
    """Return a broken clause that this one rests on.

    Every test of several draws rests on their independence, and what is emitted on the laws that are
    told for the drafts.
    """
    if clause.group == "independence":
        return None
    rests = (*_RESTED_ON, *((_DRAFT_LAW,) if clause.id == _EMITTED_LAW else ()))
    return next((one for one in rests if one in pools and pools[one].failed), None)


def _decision(
    plan: Plan,
    tally: Tally,
    pools: Mapping[ClauseId, ClausePool],
    clause: Clause,
    stands: Standing,
    found: list[tuple[Case, Finding]],
) -> Decision:
    name = clause.id
    pool = pools.get(name)
    unlikely = pool is not None and pool.failed
    rested = _dependent(pools, clause)
    consequence = rested is not None and (unlikely or any(one.charge > 0 for _, one in found))
    if consequence:
        # probabilities of independent draws say nothing here; an impossible id still does
        unlikely = False
        found = [one for one in found if one[1].charge == 0]
    case, finding = min(found, key=_size, default=(None, None))
    reason = ""
    if found or unlikely:
        status = Status.FAIL
    elif consequence:
        status, reason = Status.INCONCLUSIVE, f"consequence of {rested}"
    elif name in tally.withheld:
        status, reason = Status.INCONCLUSIVE, f"consequence of {tally.withheld[name]}"
    else:
        status, reason = _unbroken(plan, tally, name, stands)
    expected, seen = ("", "") if finding is None else (finding.expected, finding.seen)
    if unlikely and pool is not None and finding is None:
        case = _worst(plan, name, pool)
        expected = _NULLS.get(name, "draws independent of each other")
        seen = pool.best.name
    certainty = (
        LogE(pool.log_e_max, pool.log_threshold)
        if pool is not None and not found
        else Exact(0.0 if finding is None else finding.charge)
    )
    verdict = Verdict(
        clause=name,
        status=status,
        expected=None,
        case=None if case is None else case.id,
        certainty=certainty,
        effect="" if not expected else f"expected {expected}; seen {seen}",
        draws=tally.draws.get(name, 0),
        would_see=tuple(one for one in would_see(plan, name) if one not in tally.unseen),
        seconds=tally.seconds.get(name, 0.0),
        replay="" if case is None else f"refsampler replay {case.id}",
    )
    done = tally.done.get(name, 0)
    return Decision(verdict, clause.level, reason, done, expected, seen, reason == _NO_CHECK)


def _unbroken(plan: Plan, tally: Tally, name: ClauseId, stands: Standing) -> tuple[Status, str]:
    """Return the status of a clause of which no breach was seen, and why."""
    unasked = tally.unasked.get(name, [])
    done, wanted = tally.done.get(name, 0), plan.planned.get(name, 0) - len(unasked)
    if stands.status is not None:
        return stands.status, stands.reason
    if name not in plan.checked:
        return Status.NOT_RUN, _NO_CHECK
    large = plan.too_large.get(name, 0)
    limit = (
        f"more logits in a call than the {plan.capabilities.max_elements} that the backend takes"
    )
    if wanted <= 0:
        # other backends are asked the large ones: a smaller limit must not look like a pass
        status = Status.INCONCLUSIVE if large else Status.NOT_RUN
        why = [f"{_cases(large)}, each with {limit}"] if large else unasked
        return status, why[0] if why else "no case applies to this backend yet"
    if done < wanted and name in tally.failed_clauses:
        return Status.ERROR, tally.errors[0]
    if done < wanted:
        what = "its cases crashed" if name in tally.crashed else "not all cases ran"
        return Status.INCONCLUSIVE, f"{what}: {done} of {wanted}"
    left = [f"{_cases(len(unasked))} not run: {unasked[0]}"] if unasked else []
    left += [f"{_cases(large)} not run: {limit}"] if large else []
    dear = [f"not run: {one.words}" for one in plan.sequential.unplanned if one.clause == name]
    return Status.PASS, "; ".join(filter(None, (tally.figures.get(name, ""), *left, *dear)))


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"


def _size(entry: tuple[Case, Finding]) -> tuple[int, int]:
    case, _ = entry
    return (len(case.requests) * case.calls, case.logits.vocab)


def _worst(plan: Plan, clause: ClauseId, pool: ClausePool) -> Case | None:
    """Return the case that the strongest bet is about, or the first of the clause."""
    laws = [*(one.case for one in plan.laws), *(one.case for one in plan.mixed)]
    planned = (*laws, *plan.sequential.cases)
    cases = [case for case in planned if clause in case.clauses]
    named = [case for case in cases if pool.best.name.startswith(case.id)]
    return next(iter(named or cases), None)


def exit_code(decisions: Sequence[Decision], errors: Sequence[str]) -> int:
    """Return what the run says to a CI job (evidence rule 15)."""
    statuses = [
        (one.verdict.clause, one.verdict.status) for one in decisions if one.level is Level.MUST
    ]
    if any(status is Status.FAIL for _, status in statuses):
        return ExitCode.DOES_NOT
    if errors or any(status is Status.ERROR for _, status in statuses):
        return ExitCode.HARNESS
    needed = any(
        status is Status.UNSUPPORTED and clause.startswith(_NEVER_UNSUPPORTED)
        for clause, status in statuses
    )
    if needed or any(status is Status.INCONCLUSIVE for _, status in statuses):
        return ExitCode.INCONCLUSIVE
    if not any(status is Status.PASS for _, status in statuses):
        return ExitCode.NOTHING_RAN
    return ExitCode.CONFORMS


def headline(decisions: Sequence[Decision], code: int) -> str:
    """Return the run in one line: what was owned and how it went, and what was not tested."""
    words = {
        ExitCode.CONFORMS: "conforms",
        ExitCode.DOES_NOT: "does not conform",
        ExitCode.INCONCLUSIVE: "inconclusive",
        ExitCode.HARNESS: "the harness failed",
        ExitCode.NOTHING_RAN: "nothing ran",
    }[code]
    counts = {status: sum(one.verdict.status is status for one in decisions) for status in Status}
    unchecked = sum(
        one.level is Level.MUST and one.verdict.status is Status.NOT_RUN and one.unchecked
        for one in decisions
    )
    owned = sum(
        one.verdict.status not in (Status.INHERITED, Status.UNSUPPORTED) for one in decisions
    )
    shown = ", ".join(
        f"{count} {str(status).replace('_', ' ')}" for status, count in counts.items() if count
    )
    return f"{words}: {owned} clauses owned; {shown}; {unchecked} owned MUSTs have no check yet"

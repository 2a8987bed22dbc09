"""Runner: takes a plan, asks the subject case by case, and decides every clause.

Each record is on disk before the next case starts.  Nothing flows back: what a case showed never
changes which cases follow, except that the laws stop once `draw.law` has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from refsampler.clauses import Clause, ClauseId, Level, get
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.checks import Arrangement, Check, Finding, Trial
from refsampler.conformance.checks.attribution import Seen, attribute
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.generated import strategy_for
from refsampler.conformance.checks.rows import EVERY_CASE, judge_rows
from refsampler.conformance.checks.standing import Standing, owned_clauses
from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.law import LawProcess
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.plan import LAW, Plan, PlannedCase, PlannedLaw, sure
from refsampler.conformance.records import CaseRecord, FindingRecord, LawRecord, ReportWriter
from refsampler.conformance.strategies import shrink
from refsampler.conformance.subject import OpenSubject, SubjectError
from refsampler.conformance.verdict import Exact, ExitCode, LogE, Status, Verdict

__all__ = ["Decision", "Outcome", "exit_code", "judge_case", "run"]

_ROW_ELEMENTS = 2**21
_MOST_ROWS = 2**15
_NEVER_UNSUPPORTED = (
    "output.range",
    "greedy.argmax",
    "top-k.keep",
    "top-p.keep",
    "draw.",
    "batch.isolation",
    "independence.rows",
)


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

    """

    verdict: Verdict
    level: Level
    reason: str = ""
    cases: int = 0
    expected: str = ""
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        decisions: one a selected clause, and one a broken clause that was not selected.
        cases: judged.
        draws: taken.
        seconds: spent.
        errors: of the harness, in words.

    """

    decisions: tuple[Decision, ...]
    cases: int
    draws: int
    seconds: float
    errors: tuple[str, ...]


@dataclass(slots=True)
class _Ledger:
    """What happened so far, by clause."""

    done: dict[ClauseId, int] = field(default_factory=dict)
    draws: dict[ClauseId, int] = field(default_factory=dict)
    found: dict[ClauseId, list[tuple[Case, Finding]]] = field(default_factory=dict)
    crashed: set[ClauseId] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    cases: int = 0
    all_draws: int = 0

    def count(self, clauses: tuple[ClauseId, ...], draws: int) -> None:
        """Book a finished case."""
        self.cases += 1
        self.all_draws += draws
        for clause in clauses:
            self.done[clause] = self.done.get(clause, 0) + 1
            self.draws[clause] = self.draws.get(clause, 0) + draws

    def book(self, case: Case, findings: tuple[Finding, ...]) -> None:
        """Book what a case showed."""
        for finding in findings:
            self.found.setdefault(finding.clause, []).append((case, finding))


def run(
    subject: OpenSubject,
    plan: Plan,
    writer: ReportWriter,
    *,
    time_budget: float | None = None,
    progress: Callable[[int, int], None] = lambda _done, _planned: None,
) -> Outcome:
    """Run a plan.

    Args:
        subject: the backend.
        plan: made for its capabilities.
        writer: takes every record.
        time_budget: seconds after which no new case starts; None is no limit.
        progress: told how many cases of how many are done.

    """
    started = time.monotonic()
    deadline = None if time_budget is None else started + time_budget
    ledger = _Ledger()
    planned = len(plan.cases) + len(plan.laws)
    for number, one in enumerate(plan.cases):
        if _late(deadline):
            break
        _run_case(subject, one, writer, ledger)
        progress(number + 1, planned)
    pool = ClausePool(
        equal_weights(one.case.id for one in plan.laws), BANK, plan.log_threshold
    )
    for number, law in enumerate(plan.laws):
        if _late(deadline) or pool.failed:
            break
        _run_law(subject, law, writer, ledger, pool, deadline)
        progress(len(plan.cases) + number + 1, planned)
    _shrink_generated(subject, plan, writer, ledger)
    seconds = time.monotonic() - started
    decisions = tuple(_decide(plan, ledger, pool))
    return Outcome(decisions, ledger.cases, ledger.all_draws, seconds, tuple(ledger.errors))


def judge_case(
    subject: OpenSubject, check: Check, case: Case
) -> tuple[tuple[Finding, ...], int]:
    """Draw a case in all its arrangements and judge it; also the number of draws.

    A crash of the subject is a finding about `output.returns`.
    """
    semantics = subject.capabilities.semantics
    arrangements = []
    draws = 0
    for place, one in enumerate(check.arrange(case)):
        expected = Expected.of(one, semantics)
        try:
            drawn = tuple(subject.sample(one, call, place) for call in range(one.calls))
        except SubjectError as error:
            where = f"arrangement {place + 1}, " if place else ""
            return (Finding(ClauseId("output.returns"), "a result", f"{where}{error}"),), draws
        draws += sum(len(draw.ids) for draw in drawn)
        arrangements.append(Arrangement(one, expected, drawn))
    trial = Trial(subject.capabilities, tuple(arrangements), check.kind)
    found = judge_rows(trial)
    if check.judge is not None:
        found = (*found, *check.judge(trial))
    first: dict[ClauseId, Finding] = {}
    for finding in found:
        first.setdefault(finding.clause, finding)
    return tuple(first.values()), draws


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _run_case(
    subject: OpenSubject, one: PlannedCase, writer: ReportWriter, ledger: _Ledger
) -> None:
    started = time.monotonic()
    clauses = tuple(dict.fromkeys((*one.case.clauses, *EVERY_CASE)))
    try:
        findings, draws = judge_case(subject, one.check, one.case)
    except Exception as error:  # noqa: BLE001 - a fault of ours costs the case, not the run
        ledger.errors.append(f"{one.check.name} {one.case.id}: {type(error).__name__}: {error}")
        return
    crashed = any(finding.clause == "output.returns" for finding in findings)
    writer.write(
        _case_record(one.check, one.case, findings, draws, time.monotonic() - started)
    )
    ledger.book(one.case, findings)
    if crashed:
        ledger.crashed |= {*one.case.clauses}
    ledger.count((ClauseId("output.returns"),) if crashed else clauses, draws)


def _case_record(
    check: Check,
    case: Case,
    findings: tuple[Finding, ...],
    draws: int,
    seconds: float,
    shrunk_from: str | None = None,
) -> CaseRecord:
    return CaseRecord(
        check=check.name,
        id=case.id,
        case=msgspec.Raw(encode_case(case)),
        clauses=case.clauses,
        draws=draws,
        seconds=round(seconds, 6),
        findings=tuple(
            FindingRecord(one.clause, one.expected, one.seen, one.charge, one.row, one.call)
            for one in findings
        ),
        shrunk_from=shrunk_from,
    )


def _run_law(
    subject: OpenSubject,
    one: PlannedLaw,
    writer: ReportWriter,
    ledger: _Ledger,
    pool: ClausePool,
    deadline: float | None,
) -> None:
    """Draw batch by batch and look after each; stop at a failure, or when time is up."""
    started = time.monotonic()
    vocab = one.case.logits.vocab
    rows = max(1, min(_MOST_ROWS, _ROW_ELEMENTS // vocab, one.draws))
    process = LawProcess(one.law)
    counts = np.zeros(vocab, dtype=np.int64)
    complete, drawn, call = True, 0, 0
    findings: tuple[Finding, ...] = ()
    while drawn < one.draws and not findings and not pool.failed:
        if _late(deadline):
            complete = False
            break
        try:
            ids = subject.sample_many(one.case, rows, call)
        except SubjectError as error:
            findings = (Finding(ClauseId("output.returns"), "a result", str(error), call=call),)
            break
        batch, findings = _counted(subject, one.case, ids, vocab, call)
        counts = counts + batch
        process.update(batch)
        pool.update(process.evidence())
        drawn, call = drawn + len(ids), call + 1
    writer.write(
        LawRecord(
            check=one.check.name,
            id=one.case.id,
            case=msgspec.Raw(encode_case(one.case)),
            draws=drawn,
            outside=process.outside,
            counts=tuple((int(token), int(counts[token])) for token in np.flatnonzero(counts)),
            log_e=process.log_e,
            seconds=round(time.monotonic() - started, 6),
        )
    )
    if findings:
        writer.write(_case_record(one.check, one.case, findings, drawn, 0.0))
        ledger.book(one.case, findings)
    ledger.count(one.case.clauses if complete and not findings else (), drawn)


def _counted(
    subject: OpenSubject, case: Case, ids: np.ndarray, vocab: int, call: int
) -> tuple[np.ndarray, tuple[Finding, ...]]:
    """Count ids, and report those that no right backend gives."""
    inside = (ids >= 0) & (ids < vocab)
    counts = np.bincount(ids[inside], minlength=vocab)
    if not inside.all():
        seen = f"id {ids[~inside][0]}"
        found = Finding(ClauseId("output.range"), f"ids from 0 to {vocab - 1}", seen, call=call)
        return counts, (found,)
    law = Expected.of(case, subject.capabilities.semantics).row(0)
    seen_ids = Seen(counts, near_certain=False)
    wrong = seen_ids.impossible(law)
    if not len(wrong):
        return counts, ()
    owned = owned_clauses(subject.capabilities)
    clause = attribute(case, 0, seen_ids, subject.capabilities.semantics, owned)
    expected = f"one of {int(law.allowed.sum())} kept ids"
    seen = f"id {wrong[0]} in {counts[wrong[0]]} of {len(ids)} draws"
    clause = clause if clause not in (None, LAW) else ClauseId("draw.support")
    assert clause is not None
    return counts, (Finding(clause, expected, seen, call=call),)


def _shrink_generated(
    subject: OpenSubject, plan: Plan, writer: ReportWriter, ledger: _Ledger
) -> None:
    """Look for a smaller case of each clause that only generated batches broke."""
    generated = {one.case.id: one for one in plan.cases if one.check.name == "generated-batches"}
    for clause, found in ledger.found.items():
        if any(case.id not in generated for case, _ in found):
            continue
        check = generated[found[0][0].id].check
        clauses = found[0][0].clauses
        seen: dict[str, tuple[Finding, ...]] = {}

        def fails(case: Case, clause: ClauseId = clause, check: Check = check) -> bool:
            try:
                seen[case.id] = judge_case(subject, check, replace(case, clauses=clauses))[0]
            except Exception:  # noqa: BLE001 - shrinking never creates or changes a verdict
                return False
            return any(one.clause == clause for one in seen[case.id])

        smallest = shrink(
            strategy_for(subject.capabilities), fails, plan.run_seed, len(generated)
        )
        if smallest is not None and smallest.id in seen:
            case = replace(smallest, clauses=clauses)
            findings = tuple(one for one in seen[smallest.id] if one.clause == clause)
            writer.write(_case_record(check, case, findings, 0, 0.0, found[0][0].id))
            found.append((case, findings[0]))


def _decide(plan: Plan, ledger: _Ledger, pool: ClausePool) -> Iterator[Decision]:
    """Yield one decision a selected clause, then those about broken clauses not selected."""
    planned, checked = plan.planned(), plan.checked()
    for clause, stands in plan.standings:
        yield _decision(plan, ledger, pool, clause, stands, planned, checked)
    selected = {clause.id for clause, _ in plan.standings}
    for broken in ledger.found:
        if broken not in selected:
            stands = Standing(None)
            yield _decision(plan, ledger, pool, get(broken), stands, planned, checked)


def _decision(
    plan: Plan,
    ledger: _Ledger,
    pool: ClausePool,
    clause: Clause,
    stands: Standing,
    planned: dict[ClauseId, int],
    checked: frozenset[ClauseId],
) -> Decision:
    name = clause.id
    found = ledger.found.get(name, [])
    law = name == LAW
    done, wanted = ledger.done.get(name, 0), planned.get(name, 0)
    case, finding = min(found, key=_size, default=(None, None))
    reason = ""
    if found or (law and pool.failed):
        status = Status.FAIL
    elif stands.status is not None:
        status, reason = stands.status, stands.reason
    elif name not in checked:
        status, reason = Status.NOT_RUN, "no check yet"
    elif not wanted:
        status, reason = Status.NOT_RUN, "no case applies to this backend yet"
    elif done < wanted and any(name in error for error in ledger.errors):
        status, reason = Status.ERROR, ledger.errors[0]
    elif done < wanted:
        status = Status.INCONCLUSIVE
        what = "its cases crashed" if name in ledger.crashed else "not all cases ran"
        reason = f"{what}: {done} of {wanted}"
    else:
        status = Status.PASS
    expected, seen = ("", "") if finding is None else (finding.expected, finding.seen)
    if law and pool.failed and finding is None:
        case = _worst(plan, pool)
        expected = "the exact law within the declared delta"
        seen = pool.best.name
    certainty = (
        LogE(pool.log_e_max, pool.log_threshold)
        if law and not found
        else Exact(0.0 if finding is None else finding.charge)
    )
    verdict = Verdict(
        clause=name,
        status=status,
        expected=None,
        case=None if case is None else case.id,
        certainty=certainty,
        effect="" if not expected else f"expected {expected}; seen {seen}",
        draws=ledger.draws.get(name, 0),
        would_see=sure(plan) if law else (),
        seconds=0.0,
        replay="" if case is None else f"refsampler replay {case.id}",
    )
    return Decision(verdict, clause.level, reason, done, expected, seen)


def _size(entry: tuple[Case, Finding]) -> tuple[int, int]:
    case, _ = entry
    return (len(case.requests) * case.calls, case.logits.vocab)


def _worst(plan: Plan, pool: ClausePool) -> Case | None:
    """Return the law case that the strongest bet is about."""
    name = pool.best.name.partition(":")[0]
    cases = {one.case.id: one.case for one in plan.laws}
    return cases.get(name, plan.laws[0].case if plan.laws else None)


def exit_code(outcome: Outcome) -> int:
    """Return what the run says to a CI job (evidence rule 15)."""
    statuses = [
        (one.verdict.clause, one.verdict.status)
        for one in outcome.decisions
        if one.level is Level.MUST
    ]
    if any(status is Status.FAIL for _, status in statuses):
        return ExitCode.DOES_NOT
    if outcome.errors or any(status is Status.ERROR for _, status in statuses):
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

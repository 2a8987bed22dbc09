"""Runner: takes a plan, asks the subject case by case, and decides every clause.

Each record is on disk before the next case starts.  Nothing flows back: what a case showed never
changes which cases follow, except that the laws stop once `draw.law` has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from refsampler.backends.process import SubjectDidNotOpen, WorkerFault
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, CaseId, encode_case
from refsampler.conformance.checks import Arrangement, Check, Finding, Trial
from refsampler.conformance.checks.attribution import Seen, attribute
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.generated import strategy_for
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.checks.rows import EVERY_CASE, judge_rows
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.decisions import Decision, Tally, decide
from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.law import LawProcess
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.finished import NOTHING, Finished, checkpoint
from refsampler.conformance.isolation import AskedSubject, ask_check
from refsampler.conformance.lawrun import distance_words, judge_distance, run_pairs, run_tails
from refsampler.conformance.mixedrun import run_mixed
from refsampler.conformance.plan import LAW, Plan, PlannedCase, PlannedLaw
from refsampler.conformance.records import CaseRecord, FindingRecord, LawRecord, ReportWriter
from refsampler.conformance.sequential import MOST_CELLS, batch_sizes
from refsampler.conformance.shards import EVERYTHING, NONE, Share
from refsampler.conformance.strategies import shrink
from refsampler.conformance.subject import SubjectError

__all__ = ["Judged", "Outcome", "judge_case", "run"]

_SHRINK_SECONDS = 15.0


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


def run(
    subject: AskedSubject,
    plan: Plan,
    writer: ReportWriter,
    *,
    time_budget: float | None = None,
    progress: Callable[[int, int], None] = lambda _done, _planned: None,
    stop: Callable[[], bool] = lambda: False,
    finished: Finished = NOTHING,
    share: Share = EVERYTHING,
) -> Outcome:
    """Run a plan.

    Args:
        subject: the backend.
        plan: made for its capabilities.
        writer: takes every record.
        time_budget: seconds after which no new case starts; None is no limit.
        progress: told how many cases of how many are done.
        stop: asked before each case whether to end here; what is left is INCONCLUSIVE.
        finished: cases that were asked before.
        share: which of the others are asked here.

    """
    started = time.monotonic()
    deadline = None if time_budget is None else started + time_budget
    tally = Tally()
    sequential = plan.sequential
    laws = [*(one.case for one in plan.laws), *(one.case for one in plan.mixed)]
    planned = len(plan.cases) + len(laws) + len(sequential.pairs) + len(sequential.tails)

    def ended() -> bool:
        return _late(deadline) or stop()

    for number, one in enumerate(plan.cases):
        if ended():
            break
        if not finished.book_case(one, writer, tally) and share.has(number):
            _run_case(subject, one, writer, tally)
        progress(number + 1, planned)
    pools = sequential.pools()
    if share.first:
        run_pairs(subject, sequential, writer, tally, pools, ended)
    pool = ClausePool(equal_weights(one.id for one in laws), BANK, plan.log_threshold)
    pools[LAW] = pool
    before = len(plan.cases) + len(sequential.pairs)

    def law_done(number: int) -> None:
        progress(before + number, planned)

    asking = _Asking(subject, writer, tally, deadline, ended, finished, share)
    _run_laws(plan, asking, pool, law_done)
    _run_mixed(plan, asking, pool, law_done)
    if share.last:
        run_tails(subject, sequential, writer, tally, pools, ended)
    if share != NONE and not ended():
        _shrink_generated(subject, plan, writer, tally)
    seconds = time.monotonic() - started
    decisions = tuple(decide(plan, tally, pools))
    return Outcome(decisions, tally.cases, tally.all_draws, seconds, tuple(tally.errors))


@dataclass(frozen=True, slots=True)
class _Asking:
    """What a run carries from case to case."""

    subject: AskedSubject
    writer: ReportWriter
    tally: Tally
    deadline: float | None
    ended: Callable[[], bool]
    finished: Finished
    share: Share


def _run_laws(
    plan: Plan, asking: _Asking, pool: ClausePool, progress: Callable[[int], None]
) -> None:
    """Run every law, until their clause has failed."""
    uppers: list[float] = []
    tests = sum(one.law.probs.size <= MOST_CELLS for one in plan.laws)
    writer, tally = asking.writer, asking.tally
    for number, law in enumerate(plan.laws):
        if asking.ended() or pool.failed:
            break
        known = asking.finished.book_law(law, writer, tally, pool)
        upper = known.tv_upper if isinstance(known, LawRecord) else None
        if known is None and asking.share.has(number):
            upper = _run_law(asking.subject, law, writer, tally, pool, asking.deadline, tests)
        uppers += [] if upper is None else [upper]
        progress(number + 1)
    tally.figures[LAW] = distance_words(uppers)


def _run_mixed(
    plan: Plan, asking: _Asking, pool: ClausePool, progress: Callable[[int], None]
) -> None:
    """Run the batches of many laws, unless their clause has failed."""
    writer, tally = asking.writer, asking.tally
    for number, one in enumerate(plan.mixed, start=len(plan.laws)):
        if asking.ended() or pool.failed:
            break
        known = asking.finished.book_law(one, writer, tally, pool)
        if known is None and asking.share.has(number):

            def record(found: tuple[Finding, ...], one: PlannedMixed = one) -> None:
                writer.write(_case_record(one.check, one.case, found, 0, 0.0))

            run_mixed(asking.subject, one, writer, tally, pool, asking.ended, record)
        progress(number + 1)
    if plan.mixed:
        rows = f"{plan.mixed[0].case.calls} calls of {len(plan.mixed[0].core)} rows of mixed laws"
        tally.figures[LAW] = "; ".join(filter(None, (tally.figures[LAW], rows)))


@dataclass(frozen=True, slots=True)
class Judged:
    """What a case showed.

    Attributes:
        findings: at most one a clause and set of explanations.
        draws: ids drawn.
        crashed: the subject raised, so the case says nothing about its own clauses.
        figures: clause and a measured figure in words.

    """

    findings: tuple[Finding, ...]
    draws: int
    crashed: bool = False
    figures: tuple[tuple[ClauseId, str], ...] = ()


def judge_case(
    subject: AskedSubject, check: Check, case: Case, case_id: CaseId | None = None
) -> Judged:
    """Draw a case in all its arrangements and judge it.

    A crash of the subject is a finding about `output.returns`; on rows without a law an error that
    names them is as good as an id.
    """
    if check.ask is not None:
        return _asked(subject, check, case)
    semantics = subject.capabilities.semantics
    key = case.id if case_id is None else case_id
    arrangements = []
    draws = 0
    for place, one in enumerate(check.arrange(case)):
        expected = Expected.of(one, semantics)
        try:
            drawn = tuple(subject.sample(one, call, f"{key}/{place}") for call in range(one.calls))
        except SubjectError as error:
            lawless = not all(law.valid for law in expected.distinct)
            if lawless and _refuses_by_name(error):
                continue
            where = f"arrangement {place + 1}, " if place else ""
            found = (_crash(case, f"{where}{error}", lawless=lawless),)
            return Judged(found, draws, crashed=True)
        draws += sum(len(draw.ids) for draw in drawn)
        arrangements.append(Arrangement(one, expected, drawn))
    trial = Trial(subject.capabilities, tuple(arrangements), check.kind)
    findings = judge_rows(trial)
    if check.judge is not None and len(arrangements) == len(check.arrange(case)):
        findings = (*findings, *check.judge(trial))
    first: dict[tuple[ClauseId, ...], Finding] = {}
    for finding in findings:
        first.setdefault((finding.clause, *finding.candidates), finding)
    return Judged(tuple(first.values()), draws)


def _asked(subject: AskedSubject, check: Check, case: Case) -> Judged:
    """Hold a check's own conversation, and judge it."""
    try:
        asked = ask_check(subject, check, case)
    except SubjectError as error:
        return Judged((_crash(case, str(error), lawless=False),), 0, crashed=True)
    first = {(one.clause, *one.candidates): one for one in asked.findings[::-1]}
    return Judged(tuple(first.values()), asked.draws, figures=asked.figures)


def _refuses_by_name(error: SubjectError) -> bool:
    """Whether the backend said which input it refuses (clause `nonfinite.contained`)."""
    named = any(word in str(error) for word in ("logits", "row"))
    return named and error.refused


def _crash(case: Case, words: str, *, lawless: bool) -> Finding:
    """Return the finding of a call that raised; rows without a law have a clause of their own."""
    if not lawless:
        return Finding(ClauseId("output.returns"), "a result", words)
    own = "mask.empty" if "mask.empty" in case.clauses else "nonfinite.contained"
    expected = "an id in range, or an error that names the rows"
    candidates = clause_ids(own, "output.returns")
    return Finding(candidates[0], expected, words, candidates=candidates)


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _run_case(subject: AskedSubject, one: PlannedCase, writer: ReportWriter, tally: Tally) -> None:
    started = time.monotonic()
    clauses = tuple(dict.fromkeys((*one.case.clauses, *EVERY_CASE)))
    try:
        judged = judge_case(subject, one.check, one.case, one.id)
    except Exception as error:  # noqa: BLE001 - a fault of ours costs the case, not the run
        tally.errors.append(f"{one.check.name} {one.id}: {type(error).__name__}: {error}")
        tally.failed_clauses |= {*clauses}
        return
    seconds = time.monotonic() - started
    draws = judged.draws
    record = _case_record(one.check, one.case, judged.findings, draws, seconds, planned=one)
    writer.write(msgspec.structs.replace(record, crashed=judged.crashed, figures=judged.figures))
    tally.book(one.case, judged.findings)
    tally.figures.update(judged.figures)
    if judged.crashed:
        tally.crashed |= {*clauses} - {"output.returns"}
        clauses = (ClauseId("output.returns"),)
    tally.count(clauses, judged.draws, seconds)


def _case_record(
    check: Check,
    case: Case,
    findings: tuple[Finding, ...],
    draws: int,
    seconds: float,
    *,
    shrunk_from: CaseId | None = None,
    planned: PlannedCase | None = None,
) -> CaseRecord:
    encoded = encode_case(case) if planned is None else planned.document
    return CaseRecord(
        check=check.name,
        id=case.id if planned is None else planned.id,
        case=msgspec.Raw(encoded),
        clauses=case.clauses,
        draws=draws,
        seconds=round(seconds, 6),
        findings=tuple(_finding_record(one) for one in findings),
        shrunk_from=shrunk_from,
    )


def _finding_record(one: Finding) -> FindingRecord:
    return FindingRecord(
        one.clause, one.expected, one.seen, one.charge, one.row, one.call, one.candidates, one.given
    )


def _run_law(
    subject: AskedSubject,
    one: PlannedLaw,
    writer: ReportWriter,
    tally: Tally,
    pool: ClausePool,
    deadline: float | None,
    tests: int,
) -> float | None:
    """Draw batch by batch and look after each; stop at a failure, or when time is up.

    Returns:
        an upper bound on the total variation distance, if the law has few cells.

    """
    started = time.monotonic()
    vocab = one.case.logits.vocab
    sizes = batch_sizes(one.draws, vocab, subject.capabilities.max_elements)
    process = LawProcess(one.law)
    counts = np.zeros(vocab, dtype=np.int64)
    complete, drawn, call = True, 0, 0
    findings: tuple[Finding, ...] = ()
    while drawn < one.draws and not findings and not pool.failed:
        if _late(deadline):
            complete = False
            break
        try:
            ids = subject.sample_many(one.case, next(sizes), call)
        except SubjectError as error:
            findings = (Finding(ClauseId("output.returns"), "a result", str(error), call=call),)
            break
        except (SubjectDidNotOpen, WorkerFault) as error:
            tally.errors.append(f"{one.check.name} {one.case.id}: {type(error).__name__}: {error}")
            tally.failed_clauses |= {*one.case.clauses}
            complete = False
            break
        batch, findings = _counted(subject, one.case, ids, vocab, call)
        counts = counts + batch
        process.update(batch)
        pool.update(process.evidence())
        drawn, call = drawn + len(ids), call + 1
    upper, wrong = judge_distance(one, process, tests)
    findings = (*findings, *wrong)
    if findings:
        writer.write(_case_record(one.check, one.case, findings, drawn, 0.0))
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
            tv_upper=upper,
            checkpoint=checkpoint(process.evidence() if drawn else None, pool)
            if complete
            else None,
        )
    )
    if findings:
        tally.book(one.case, findings)
    finished = complete and not findings
    tally.count(one.case.clauses if finished else (), drawn, time.monotonic() - started)
    return upper


def _counted(
    subject: AskedSubject, case: Case, ids: np.ndarray, vocab: int, call: int
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
    clauses = attribute(case, 0, seen_ids, subject.capabilities.semantics, owned).clauses
    clauses = tuple(one for one in clauses if one != LAW) or (ClauseId("draw.support"),)
    expected = f"one of {int(law.allowed.sum())} kept ids"
    seen = f"id {wrong[0]} in {counts[wrong[0]]} of {len(ids)} draws"
    return counts, (Finding(clauses[0], expected, seen, call=call, candidates=clauses),)


def _shrink_generated(
    subject: AskedSubject, plan: Plan, writer: ReportWriter, tally: Tally
) -> None:
    """Look for a smaller case of each clause that only generated batches broke."""
    generated = {one.id: one for one in plan.cases if one.check.name == "generated-batches"}
    deadline = time.monotonic() + _SHRINK_SECONDS
    for clause, found in tally.blamed().items():
        if any(case.id not in generated for case, _ in found):
            continue
        first = found[0][0]
        check = generated[first.id].check
        search = _Search(subject, check, first.clauses, clause)
        strategy = strategy_for(subject.capabilities)
        smallest = shrink(strategy, search.fails, plan.run_seed, len(generated), deadline)
        if smallest is not None:
            case = replace(smallest, clauses=first.clauses)
            findings = search.seen[smallest.id]
            writer.write(_case_record(check, case, findings, 0, 0.0, shrunk_from=first.id))
            tally.book(case, tuple(replace(one, candidates=(clause,)) for one in findings[:1]))


@dataclass(frozen=True, slots=True)
class _Search:
    """Asks whether smaller cases break the clause too."""

    subject: AskedSubject
    check: Check
    clauses: tuple[ClauseId, ...]
    clause: ClauseId
    seen: dict[str, tuple[Finding, ...]] = field(default_factory=dict)

    def fails(self, case: Case) -> bool:
        """Judge a candidate; nothing that goes wrong here changes a verdict."""
        try:
            judged = judge_case(self.subject, self.check, replace(case, clauses=self.clauses))
        except Exception:  # noqa: BLE001 - a candidate that cannot be judged is no smaller case
            return False
        self.seen[case.id] = tuple(
            replace(one, clause=self.clause)
            for one in judged.findings
            if self.clause in (one.clause, *one.candidates)
        )
        return bool(self.seen[case.id])

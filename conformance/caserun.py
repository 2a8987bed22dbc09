"""Runs the exact and near-certain cases of a plan: ask, judge, record."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from refsampler.backends.process import SubjectEnded
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, CaseId, encode_case
from refsampler.conformance.checks import Arrangement, Check, Finding, Trial
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.checks.controls import without_surroundings
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.rows import EVERY_CASE, judge_rows
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.checks.twins import of_its_own
from refsampler.conformance.decisions import Tally
from refsampler.conformance.findings import finding_record
from refsampler.conformance.isolation import AskedSubject, ask_check
from refsampler.conformance.plan import PlannedCase
from refsampler.conformance.records import CaseRecord, ReportWriter
from refsampler.conformance.subject import Draw, SubjectError

__all__ = ["Judged", "case_record", "judge_case", "run_case"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a case showed.

    Attributes:
        findings: at most one a clause and set of explanations.
        draws: ids drawn.
        crashed: the subject raised, so the case says nothing about its own clauses.
        figures: clause and a measured figure in words.
        unasked: why the subject could not be asked; empty if it was.
        ids: drawn, where evidence judges them, as the check packs them.

    """

    findings: tuple[Finding, ...]
    draws: int
    crashed: bool = False
    figures: tuple[tuple[ClauseId, str], ...] = ()
    unasked: str = ""
    ids: bytes = b""


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
    owned = owned_clauses(subject.capabilities)

    def again(one: Case, call: int) -> Draw:
        return subject.sample(one, call, f"{key}/again")

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
            found = _crash(case, error, where, lawless=lawless)
            if not isinstance(error, SubjectEnded):
                found = (*found, *of_its_own(case, found, again, owned))
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

    cleared = (
        without_surroundings(subject.capabilities, arrangements[one.arrangement].case, one, again)
        for one in first.values()
    )
    return Judged((*cleared, *of_its_own(case, findings, again, owned)), draws)


def _asked(subject: AskedSubject, check: Check, case: Case) -> Judged:
    """Hold a check's own conversation, and judge it."""
    try:
        asked = ask_check(subject, check, case)
    except SubjectError as error:
        return Judged(_crash(case, error, "", lawless=False), 0, crashed=True)
    first = {(one.clause, one.candidates, one.guess): one for one in asked.findings[::-1]}
    found = tuple(first.values())
    return Judged(found, asked.draws, figures=asked.figures, unasked=asked.unasked, ids=asked.ids)


def _refuses_by_name(error: SubjectError) -> bool:
    """Whether the backend said which input it refuses (clause `nonfinite.contained`)."""
    named = any(word in str(error) for word in ("logits", "row"))
    return named and error.refused


def _crash(case: Case, error: SubjectError, where: str, *, lawless: bool) -> tuple[Finding, ...]:
    """Return the findings of a call that raised; rows without a law have a clause of their own.

    Of those an error breaks one clause, whichever explains more; a hang or a dead process is
    neither an id nor an error, and no return: it breaks both.
    """
    words = f"{where}{error}"
    returns = ClauseId("output.returns")
    if not lawless:
        return (Finding(returns, "a result", words),)
    lawless_ones = clause_ids("mask.empty", "nonfinite.contained")
    own = tuple(one for one in lawless_ones if one in case.clauses) or lawless_ones[1:]
    expected = "an id in range, or an error that names the rows"
    if isinstance(error, SubjectEnded):
        return (
            Finding(own[0], expected, words),
            Finding(returns, "a result or an error", words),
        )
    candidates = (*own, returns)
    return (Finding(candidates[0], expected, words, candidates=candidates),)


def run_case(subject: AskedSubject, one: PlannedCase, writer: ReportWriter, tally: Tally) -> None:
    """Ask a case, judge it, record it."""
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
    record = case_record(one.check, one.case, judged.findings, draws, seconds, planned=one)
    record = msgspec.structs.replace(record, crashed=judged.crashed, figures=judged.figures)
    writer.write(msgspec.structs.replace(record, unasked=judged.unasked))
    if judged.unasked:
        tally.skip(clauses, judged.unasked)
        return
    tally.book(one.case, judged.findings)
    tally.figures.update(judged.figures)
    if judged.crashed:
        tally.crashed |= {*clauses} - {"output.returns"}
        clauses = (ClauseId("output.returns"),)
    tally.count(clauses, judged.draws, seconds)


def case_record(
    check: Check,
    case: Case,
    findings: tuple[Finding, ...],
    draws: int,
    seconds: float,
    *,
    shrunk_from: CaseId | None = None,
    planned: PlannedCase | None = None,
) -> CaseRecord:
    """Return the record of a case and of what it showed."""
    encoded = encode_case(case) if planned is None else planned.document
    return CaseRecord(
        check=check.name,
        id=case.id if planned is None else planned.id,
        case=msgspec.Raw(encoded),
        clauses=case.clauses,
        draws=draws,
        seconds=round(seconds, 6),
        findings=tuple(finding_record(one) for one in findings),
        shrunk_from=shrunk_from,
    )

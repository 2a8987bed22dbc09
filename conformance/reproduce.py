"""Reproducers: for every failure a minimal case, its replay, and a script that shows it again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, decode_case, encode_case
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import Check, Finding, all_checks
from refsampler.conformance.decisions import Decision
from refsampler.conformance.evidence.law import LawProcess
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.law_script import law_script
from refsampler.conformance.minimise import minimise
from refsampler.conformance.plan import LAW, Plan, PlannedLaw
from refsampler.conformance.records import (
    CaseRecord,
    FindingRecord,
    LawRecord,
    ReportWriter,
    read_report,
)
from refsampler.conformance.repro_script import Shown, script
from refsampler.conformance.verdict import Status

__all__ = ["FOLDER", "Reproducer", "reproduce"]

FOLDER: Final = "repro"
"""Folder of the scripts, inside the report's."""

_CLAUSE_SECONDS: Final = 4.0
_ALL_SECONDS: Final = 15.0
_ENOUGH: Final = math.log(1e6)
"""Log e-value that a law has to reach on fresh seeds alone before it is shown (rules of shrinking)."""
_FRESH_CALLS: Final = 2**40
"""Number of the first call whose seed the run did not use."""

_ENDED: Final = ("the process died", "no answer within", "out of memory", "unreadable answer")


@dataclass(frozen=True, slots=True)
class Reproducer:
    """A failure that can be shown again.

    Attributes:
        clause: that is broken.
        case: its id.
        script: where the script lies; None if a conversation or a pairing of calls shows it, which
            only `refsampler replay` holds again.

    """

    clause: ClauseId
    case: str
    script: Path | None


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failure as the report has it."""

    check: Check
    case: Case
    finding: FindingRecord


def reproduce(
    subject: GuardedSubject,
    plan: Plan,
    report: Path,
    writer: ReportWriter,
    decisions: Sequence[Decision],
    *,
    deadline: float = math.inf,
) -> tuple[tuple[Decision, ...], tuple[Reproducer, ...]]:
    """Look for minimal cases and write the scripts; no verdict changes.

    Args:
        subject: as in the run.
        plan: of the run.
        report: the JSONL so far.
        writer: of that report; takes the minimal cases.
        decisions: of the run.
        deadline: of the monotonic clock; after it cases are shown as they were found.

    Returns:
        the decisions, pointing to the minimal cases, and what can be shown again.

    """
    folder = report.parent / FOLDER
    for old in folder.glob("*.py"):
        old.unlink()
    ends = min(deadline, time.monotonic() + _ALL_SECONDS)
    failed = [one for one in decisions if one.verdict.status is Status.FAIL]
    records = _failing_records(report) if failed else ()
    loudest = _loudest_law(report, plan) if failed else None
    mixed = {one.case.id for one in plan.mixed}
    shown = list(decisions)
    made = []
    for place, decision in enumerate(decisions):
        if decision not in failed:
            continue
        clause = decision.verdict.clause
        found = _find(records, decision)
        if found is not None:
            clause_ends = min(ends, time.monotonic() + _CLAUSE_SECONDS)
            smaller = _smaller(subject, clause, found, clause_ends)
            if smaller is not None:
                writer.write(_record(smaller, found.case.id))
                shown[place] = _pointing(decision, smaller)
                found = smaller
            text = _script(subject, plan, clause, found)
            path = None if text is None else _written(folder, clause, found.case.id, text)
            made.append(Reproducer(clause, found.case.id, path))
        elif loudest is not None and clause == LAW and decision.verdict.case not in mixed:
            draws = _law_draws(subject, loudest, min(ends, time.monotonic() + 2 * _CLAUSE_SECONDS))
            text = law_script(loudest.case, subject.spec, plan.capabilities, plan.run_seed, draws)
            name = loudest.case.id
            made.append(Reproducer(clause, name, _written(folder, clause, name, text)))
            replay = f"refsampler replay {name}"
            shown[place] = replace(
                decision, verdict=replace(decision.verdict, case=name, replay=replay)
            )
        elif decision.verdict.case is not None:
            made.append(Reproducer(clause, decision.verdict.case, None))
    return tuple(shown), tuple(made)


def _failing_records(report: Path) -> tuple[CaseRecord, ...]:
    found = (one for one in read_report(report) if isinstance(one, CaseRecord))
    return tuple(one for one in found if one.findings)


def _loudest_law(report: Path, plan: Plan) -> PlannedLaw | None:
    """Return the law case that says most against the backend for each logit drawn."""
    said = {
        one.id: one.log_e / (one.draws or 1)
        for one in read_report(report)
        if isinstance(one, LawRecord)
    }
    drawn = [one for one in plan.laws if one.case.id in said]
    return max(drawn, key=lambda one: said[one.case.id] / one.case.logits.vocab, default=None)


def _find(records: Sequence[CaseRecord], decision: Decision) -> _Failed | None:
    """Return the record behind a decision's case, the last one if several have its id."""
    checks = {one.name: one for one in all_checks()}
    for record in reversed(records):
        if record.id != decision.verdict.case or record.check not in checks:
            continue
        for finding in record.findings:
            if decision.verdict.clause in (finding.clause, *finding.candidates):
                return _Failed(checks[record.check], decode_case(bytes(record.case)), finding)
    return None


def _smaller(
    subject: GuardedSubject, clause: ClauseId, found: _Failed, deadline: float
) -> _Failed | None:
    """Return a smaller failure; None where asking again would cost a process each time."""
    ended = found.finding.seen.startswith(_ENDED) or subject.spent
    if ended or found.check.ask is not None:
        return None
    search = _Search(subject, clause, found)
    smallest = minimise(found.case, search.fails, search.fails_again, deadline=deadline)
    if smallest is None:
        return None
    finding = next(iter(search.findings(smallest, smallest.id)), None)
    return None if finding is None else replace(found, case=smallest, finding=finding)


@dataclass(frozen=True, slots=True)
class _Search:
    """Asks whether candidates break the clause too."""

    subject: GuardedSubject
    clause: ClauseId
    found: _Failed

    def findings(self, case: Case, key: str) -> Iterator[FindingRecord]:
        """Yield what a case shows about the clause; nothing if it cannot be judged or ends it all."""
        try:
            judged = judge_case(self.subject, self.found.check, case, key)
        except Exception:  # noqa: BLE001 - a candidate that cannot be judged is no smaller case
            return
        for one in judged.findings:
            if self.clause in (one.clause, *one.candidates):
                yield _finding_record(replace(one, clause=self.clause, candidates=(self.clause,)))

    def fails(self, case: Case) -> bool:
        """Whether a candidate breaks the clause in the same way: by an error, or without one."""
        found = next(self.findings(case, case.id), None)
        return found is not None and found.expected.split()[:2] == self._expected

    def fails_again(self, case: Case) -> bool:
        """Whether it does so on seeds that were not used before."""
        return next(self.findings(case, f"{case.id}/again"), None) is not None

    @property
    def _expected(self) -> list[str]:
        return self.found.finding.expected.split()[:2]


def _finding_record(one: Finding) -> FindingRecord:
    return FindingRecord(
        one.clause, one.expected, one.seen, one.charge, one.row, one.call, one.candidates, one.given
    )


def _record(found: _Failed, original: str) -> CaseRecord:
    return CaseRecord(
        check=found.check.name,
        id=found.case.id,
        case=msgspec.Raw(encode_case(found.case)),
        clauses=found.case.clauses,
        draws=0,
        seconds=0.0,
        findings=(found.finding,),
        shrunk_from=original,
    )


def _pointing(decision: Decision, found: _Failed) -> Decision:
    """Return the decision with the minimal case in place of the one that decided it."""
    expected, seen = found.finding.expected, found.finding.seen
    verdict = replace(
        decision.verdict,
        case=found.case.id,
        effect=f"expected {expected}; seen {seen}",
        replay=f"refsampler replay {found.case.id}",
    )
    return replace(decision, verdict=verdict, expected=expected, seen=seen)


def _script(subject: GuardedSubject, plan: Plan, clause: ClauseId, found: _Failed) -> str | None:
    """Return the script of the arrangement that fails; None if no single batch is asked."""
    if found.check.ask is not None or found.case.steps:
        return None
    arrangements = found.check.arrange(found.case)
    place = _failing_place(arrangements, found)
    shown = Shown(
        str(clause),
        arrangements[place],
        f"{found.case.id}/{place}",
        found.finding.expected,
        found.finding.seen,
        judged=found.check.judge is None,
    )
    return script(shown, subject.spec, plan.capabilities, plan.run_seed)


def _failing_place(arrangements: Sequence[Case], found: _Failed) -> int:
    """Return which arrangement the words of the finding name; the first without such words."""
    words = found.finding.seen
    if words.startswith("arrangement "):
        return min(int(words.split()[1].strip(",")) - 1, len(arrangements) - 1)
    return 0


def _law_draws(subject: GuardedSubject, law: PlannedLaw, deadline: float) -> int:
    """Return how many draws on fresh seeds reach an e-value of 1e6; the planned ones at most."""
    vocab = law.case.logits.vocab
    rows = max(1, min(2**13, 2**20 // vocab, law.draws))
    process, call = LawProcess(law.law), _FRESH_CALLS
    while process.log_e < _ENOUGH and process.draws < law.draws and time.monotonic() < deadline:
        try:
            ids = subject.sample_many(law.case, rows, call)
        except Exception:  # noqa: BLE001 - what cannot be drawn is shown with the planned draws
            return law.draws
        process.update(np.bincount(ids[(ids >= 0) & (ids < vocab)], minlength=vocab))
        call += 1
    return max(rows, process.draws) if process.log_e >= _ENOUGH else law.draws


def _written(folder: Path, clause: ClauseId, case: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{clause}-{case}.py"
    path.write_text(text, encoding="utf-8")
    return path

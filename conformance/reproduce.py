"""Reproducers: for every failure a minimal case, its replay, and a script that shows it again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, decode_case
from refsampler.conformance.caserun import case_record, judge_case
from refsampler.conformance.checks import Check, Kind, all_checks
from refsampler.conformance.decisions import Decision
from refsampler.conformance.findings import finding_of, finding_record
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.minimise import minimise
from refsampler.conformance.plan import Plan
from refsampler.conformance.records import CaseRecord, FindingRecord, ReportWriter, read_report
from refsampler.conformance.scripts.adapter import head
from refsampler.conformance.scripts.conversation import conversation_body, writing
from refsampler.conformance.scripts.drafted import about_drafts, drafted_script
from refsampler.conformance.scripts.evidence import evident
from refsampler.conformance.scripts.expressions import one_line
from refsampler.conformance.scripts.rows import RESULTS, Shown, row_script
from refsampler.conformance.verdict import Status

__all__ = ["FOLDER", "Reproducer", "reproduce"]

FOLDER: Final = "repro"
"""Folder of the scripts, inside the report's."""

_CLAUSE_SECONDS: Final = 4.0
_ALL_SECONDS: Final = 15.0
_ENDED: Final = ("the process died", "no answer within", "out of memory", "unreadable answer")
_BY_EVIDENCE: Final = (Kind.LAW, Kind.TAIL, Kind.PAIRS)
"""Kinds of checks whose cases are drawn thousands of times: one batch shows nothing again."""


@dataclass(frozen=True, slots=True)
class Reproducer:
    """A failure that can be shown again.

    Attributes:
        clause: that is broken.
        case: its id.
        script: where the script lies; None if the conversation that shows it cannot be written down,
            so that only `refsampler replay` holds it again.

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
    failed = any(one.verdict.status is Status.FAIL for one in decisions)
    records = _failing_records(report) if failed else ()
    shown, made = list(decisions), []
    for place, decision in enumerate(decisions):
        if decision.verdict.status is not Status.FAIL or decision.verdict.case is None:
            continue
        clause_ends = min(ends, time.monotonic() + _CLAUSE_SECONDS)
        again = _Again(subject, plan, report, writer, clause_ends)
        found = _find(records, decision)
        if found is not None and found.check.kind not in _BY_EVIDENCE:
            shown[place], case, text = again.of_case(decision, found)
        else:
            shown[place], case, text = again.of_evidence(decision)
        clause = decision.verdict.clause
        path = None if text is None else _written(folder, clause, case, text)
        made.append(Reproducer(clause, case, path))
    return tuple(shown), tuple(made)


@dataclass(frozen=True, slots=True)
class _Again:
    """What showing one failure again takes."""

    subject: GuardedSubject
    plan: Plan
    report: Path
    writer: ReportWriter
    deadline: float

    def of_case(self, decision: Decision, found: _Failed) -> tuple[Decision, str, str | None]:
        """Return the decision about the smallest case found, its id and its script."""
        clause = decision.verdict.clause
        smaller = _smaller(self.subject, clause, found, self.deadline)
        if smaller is not None:
            finding = finding_of(smaller.finding)
            record = case_record(
                smaller.check, smaller.case, (finding,), 0, 0.0, shrunk_from=found.case.id
            )
            self.writer.write(record)
            decision, found = _pointing(decision, smaller), smaller
        return decision, found.case.id, _script(self.subject, self.plan, clause, found)

    def of_evidence(self, decision: Decision) -> tuple[Decision, str, str | None]:
        """Return the decision about the case whose draws show it best, its id and its script."""
        verdict = decision.verdict
        assert verdict.case is not None
        found = evident(
            self.subject, self.plan, self.report, verdict.clause, verdict.case, self.deadline
        )
        if found is None:
            return decision, verdict.case, None
        replay = f"refsampler replay {found.case}"
        verdict = replace(verdict, case=found.case, replay=replay)
        return replace(decision, verdict=verdict), found.case, found.script


def _failing_records(report: Path) -> tuple[CaseRecord, ...]:
    found = (one for one in read_report(report) if isinstance(one, CaseRecord))
    return tuple(one for one in found if one.findings)


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
    if ended or (found.check.ask is not None and not found.case.steps):
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
                yield finding_record(replace(one, clause=self.clause, candidates=(self.clause,)))

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
    """Return the script of the arrangement that fails, or of the whole conversation."""
    spec, ask = subject.spec, found.check.ask
    if about_drafts(found.check):
        return drafted_script(
            found.check,
            found.case,
            spec,
            plan.capabilities,
            plan.run_seed,
            clause=clause,
            expected=found.finding.expected,
            seen=found.finding.seen,
        )
    plain = ask is None and found.check.judge is None
    body = "" if plain else _conversation(subject, found)
    if not body and ask is None:
        arrangements = found.check.arrange(found.case)
        place = _failing_place(arrangements, found)
        expected, seen = found.finding.expected, found.finding.seen
        shown = Shown(
            str(clause),
            arrangements[place],
            f"{found.case.id}/{place}",
            expected,
            seen,
            judged=plain,
        )
        return row_script(shown, spec, plan.capabilities, plan.run_seed)
    if not body:
        return None
    words = one_line(found.finding.expected), one_line(found.finding.seen)
    beginning = head(
        spec,
        title=f"{clause} is broken by {spec}: the calls that show it.",
        words=f"\n\nexpected  {words[0]}\nseen      {words[1]}",
        replay=f"refsampler replay {found.case.id}",
    )
    raises = found.finding.expected in RESULTS
    return beginning + conversation_body(body, *words, raises=raises)


def _conversation(subject: GuardedSubject, found: _Failed) -> str:
    """Hold the conversation once more; empty if it cannot be written down."""
    if found.finding.seen.startswith(_ENDED) or subject.spent:
        return ""
    try:
        return subject.ask(writing(found.check), found.case).script
    except Exception:  # noqa: BLE001 - what cannot be asked again has no script
        return ""


def _failing_place(arrangements: Sequence[Case], found: _Failed) -> int:
    """Return which arrangement the words of the finding name; the first without such words."""
    words = found.finding.seen
    if words.startswith("arrangement "):
        return min(int(words.split()[1].strip(",")) - 1, len(arrangements) - 1)
    return 0


def _written(folder: Path, clause: ClauseId, case: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{clause}-{case}.py"
    path.write_text(text, encoding="utf-8")
    return path

"""Runs the batches of which every row has another law: draw, look after each call, record."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from refsampler.backends.process import SubjectDidNotOpen, WorkerFault
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.checks import Finding
from refsampler.conformance.checks.attribution import Seen, attribute
from refsampler.conformance.checks.controls import lone_row, without_surroundings
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.decisions import Tally
from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.evidence.pool import ClausePool
from refsampler.conformance.finished import checkpoint
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.records import MixedRecord, ReportWriter
from refsampler.conformance.subject import Draw, SubjectError

__all__ = ["run_mixed"]

_ISOLATION: Final = ClauseId("batch.isolation")
_EXPLAINED: Final = 8
"""Calls of a batch whose first impossible id is explained; more would only say the same again."""


def run_mixed(
    subject: AskedSubject,
    one: PlannedMixed,
    writer: ReportWriter,
    tally: Tally,
    pool: ClausePool,
    late: Callable[[], bool],
    record: Callable[[tuple[Finding, ...]], None],
) -> None:
    """Draw call by call until the clause fails; impossible ids are findings, and drawing goes on.

    Args:
        subject: the backend.
        one: the batch.
        writer: takes its record.
        tally: books it.
        pool: of `draw.law`.
        late: whether time is up.
        record: takes the findings, before the batch is recorded as finished.

    """
    started, case, process = time.monotonic(), one.case, one.process()
    drawn: list[IntArray] = []
    findings: tuple[Finding, ...] = ()
    complete = True
    for call in range(case.calls):
        if pool.failed:
            break
        if late():
            complete = False
            break
        try:
            ids = subject.sample(case, call, f"{case.id}/mixed").ids
        except SubjectError as error:
            crash = Finding(ClauseId("output.returns"), "a result", str(error), call=call)
            findings = (*findings, crash)
            break
        except (SubjectDidNotOpen, WorkerFault) as error:
            tally.errors.append(f"{one.check.name} {case.id}: {type(error).__name__}: {error}")
            tally.failed_clauses |= {*case.clauses}
            complete = False
            break
        malformed = _malformed(one, ids, call)
        if malformed:
            findings = (*findings, *malformed)
            break
        drawn.append(ids)
        process.update(one.batch(ids))
        pool.update(process.evidence(BANK))
        if len(findings) < _EXPLAINED:
            findings = (*findings, *_impossible(subject, one, ids, call))
    evidence, draws = process.evidence(BANK), sum(len(ids) for ids in drawn)
    seconds = time.monotonic() - started
    if findings:
        record(findings)
    writer.write(
        MixedRecord(
            check=one.check.name,
            id=case.id,
            case=msgspec.Raw(encode_case(case)),
            rows=len(case.requests),
            calls=len(drawn),
            draws=draws,
            skipped=process.skipped,
            outside=process.outside,
            log_e=evidence.log_e,
            best=evidence.best.name,
            ids=zlib.compress(np.array(drawn).astype("<i4").tobytes()),
            seconds=round(seconds, 6),
            checkpoint=checkpoint(evidence if drawn else None, pool) if complete else None,
        )
    )
    tally.book(case, findings)
    tally.count(case.clauses if complete and not findings else (), draws, seconds)


def _malformed(one: PlannedMixed, ids: IntArray, call: int) -> tuple[Finding, ...]:
    """Return that a call did not give one id of the vocabulary for each row."""
    rows, vocab = one.core.shape
    if len(ids) != rows:
        found = Finding(ClauseId("output.form"), f"{rows} ids", f"{len(ids)}", call=call)
        return (found,)
    out = np.flatnonzero((ids < 0) | (ids >= vocab))
    if not out.size:
        return ()
    expected, seen = f"ids from 0 to {vocab - 1}", f"id {ids[out[0]]}"
    return (Finding(ClauseId("output.range"), expected, seen, row=int(out[0]), call=call),)


def _impossible(
    subject: AskedSubject, one: PlannedMixed, ids: IntArray, call: int
) -> tuple[Finding, ...]:
    """Return the first id of a call that no right backend gives: a filter, or another row's."""
    wrong = np.flatnonzero(~one.hull[np.arange(len(ids)), ids])
    if not wrong.size:
        return ()
    row, semantics = int(wrong[0]), subject.capabilities.semantics
    seen = Seen(np.bincount(ids[row : row + 1], minlength=one.hull.shape[1]), near_certain=False)
    # by itself: whatever another row could have lent it is named by batch.isolation
    lone = lone_row(one.case, row)
    explained = attribute(lone, 0, seen, semantics, owned_clauses(subject.capabilities))
    clauses = tuple(name for name in explained.clauses if name != _ISOLATION)
    candidates = (*clauses, _ISOLATION)
    expected = f"one of {int(one.hull[row].sum())} kept ids"
    words = f"id {ids[row]}, and in {len(wrong)} of {len(ids)} rows such ids"
    found = Finding(candidates[0], expected, words, row=row, call=call, candidates=candidates)

    def sample(lone: Case, again: int) -> Draw:
        return subject.sample(lone, again, f"{one.case.id}/alone")

    return (without_surroundings(subject.capabilities, one.case, found, sample),)

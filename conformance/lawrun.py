"""Runs the laws of one row: draw, look after each batch, record."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from refsampler.backends.process import SubjectDidNotOpen, WorkerFault
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.caserun import case_record
from refsampler.conformance.checks import Finding
from refsampler.conformance.checks.attribution import Seen, attribute
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.decisions import Tally
from refsampler.conformance.evidence.law import LawProcess
from refsampler.conformance.evidence.pool import ClausePool
from refsampler.conformance.finished import checkpoint
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.plan import LAW, PlannedLaw
from refsampler.conformance.records import LawRecord, ReportWriter
from refsampler.conformance.sequential import MOST_CELLS, batch_sizes, l1_test
from refsampler.conformance.subject import SubjectError

__all__ = ["distance_words", "run_law"]


def run_law(
    subject: AskedSubject,
    one: PlannedLaw,
    writer: ReportWriter,
    tally: Tally,
    pool: ClausePool,
    late: Callable[[], bool],
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
        if late():
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
    upper, wrong = _judge_distance(one, process, tests)
    findings = (*findings, *wrong)
    if findings:
        writer.write(case_record(one.check, one.case, findings, drawn, 0.0))
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


def _judge_distance(
    one: PlannedLaw, process: LawProcess, tests: int
) -> tuple[float | None, tuple[Finding, ...]]:
    """Take the one look at a law of few cells: an upper bound on its distance, and a finding.

    Args:
        one: the law.
        process: with all draws in.
        tests: how many laws share the false alarm.

    """
    test = l1_test(one.law, one.draws, tests)
    result = None if test is None else test.judge(process.counts, process.skipped + process.outside)
    if test is None or result is None:
        return None, ()
    if not result.failed:
        return result.upper, ()
    expected = f"frequencies within TV {result.threshold:.2g} of the exact law"
    found = Finding(LAW, expected, f"TV {result.observed:.2g}", test.alpha)
    return result.upper, (found,)


def distance_words(uppers: list[float]) -> str:
    """Return the bound that holds for all laws of few cells, in words."""
    if not uppers:
        return ""
    return f"TV at most {max(uppers):.2g} on {len(uppers)} rows of at most {MOST_CELLS} ids"

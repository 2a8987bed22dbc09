"""Runs the tails, the independence cases and the steps of a plan: draw, look, record, decide at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from refsampler.backends.process import SubjectDidNotOpen, WorkerFault
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.caserun import case_record
from refsampler.conformance.checks import Check, Finding
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.tail import (
    LOOKS,
    RESOLUTION,
    TAIL,
    PlannedTail,
    tail_words,
)
from refsampler.conformance.decisions import Tally
from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.evidence.grades import judge_resolution
from refsampler.conformance.evidence.occupancy import DistinctResult
from refsampler.conformance.evidence.pool import ClausePool
from refsampler.conformance.evidence.tail import TailProcess
from refsampler.conformance.isolation import AskedSubject, ask_check
from refsampler.conformance.records import PairsRecord, ReportWriter, TailRecord
from refsampler.conformance.sequential import (
    Sequential,
    batch_sizes,
    looks,
)
from refsampler.conformance.subject import SubjectError

__all__ = ["Pools", "run_pairs", "run_tails"]

Pools = Mapping[ClauseId, ClausePool]
_Late = Callable[[], bool]

_RETURNS = ClauseId("output.returns")


def run_pairs(
    subject: AskedSubject,
    planned: Sequential,
    writer: ReportWriter,
    tally: Tally,
    pools: Pools,
    late: _Late,
) -> None:
    """Run every independence case and every step with drafts; each is a second or so, and is not interrupted."""
    for one in planned.pairs:
        if late():
            return
        started = time.monotonic()
        process = one.process()
        try:
            asked = ask_check(subject, one.check, one.case)
        except SubjectError as error:
            found = Finding(_RETURNS, "a result", str(error))
            _show(one.check, one.case, (found,), writer, tally)
            tally.crashed.add(one.clause)
            continue
        except (SubjectDidNotOpen, WorkerFault) as error:
            _ours(tally, one.check, one.case, error)
            continue
        if asked.unasked:
            powers = (one.seen,) if isinstance(one, PlannedPairs) else one.seen
            tally.skip((one.clause,), asked.unasked, *powers)
            continue
        if asked.findings:
            _show(one.check, one.case, asked.findings, writer, tally)
            tally.count((), asked.draws, time.monotonic() - started)
            continue
        tally.figure(asked.figures)
        for call in one.calls_of(asked):
            process.update(call)
        evidence = process.evidence()
        pools[one.clause].update(evidence)
        seconds = time.monotonic() - started
        writer.write(
            PairsRecord(
                check=one.check.name,
                id=one.case.id,
                case=msgspec.Raw(encode_case(one.case)),
                clause=one.clause,
                pairing=str(one.pairing),
                rows=one.rows,
                calls=one.calls,
                pairs=evidence.draws,
                skipped=evidence.skipped,
                log_e=evidence.log_e,
                best=evidence.best.name,
                ids=asked.ids,
                seconds=round(seconds, 6),
            )
        )
        tally.count((one.clause,), one.draws, seconds)


def _show(
    check: Check, case: Case, found: tuple[Finding, ...], writer: ReportWriter, tally: Tally
) -> None:
    """Record and book what a case showed beside its evidence."""
    if found:
        writer.write(case_record(check, case, found, 0, 0.0))
    tally.book(case, found)


def _ours(tally: Tally, check: Check, case: Case, error: Exception) -> None:
    """Book an error that is not the subject's."""
    tally.errors.append(f"{check.name} {case.id}: {type(error).__name__}: {error}")
    tally.failed_clauses |= {*case.clauses}


def run_tails(
    subject: AskedSubject,
    planned: Sequential,
    writer: ReportWriter,
    tally: Tally,
    pools: Pools,
    late: _Late,
) -> None:
    """Run every grade, the coarsest first; a failed clause ends them, as finer ones cost more."""
    words = []
    for one in planned.tails:
        if late() or pools[TAIL].failed:
            break
        said = _run_tail(subject, one, writer, tally, pools[TAIL], late)
        words += [said] if said else []
    if words:
        tally.figures[TAIL] = "; ".join(words)


def _run_tail(
    subject: AskedSubject,
    one: PlannedTail,
    writer: ReportWriter,
    tally: Tally,
    pool: ClausePool,
    late: _Late,
) -> str:
    """Draw one grade to its planned number of draws; return its line, empty if it was cut short."""
    started = time.monotonic()
    vocab, process = one.case.logits.vocab, TailProcess(one.tail)
    counts = np.zeros(vocab, dtype=np.int64)
    sizes = tuple(batch_sizes(one.draws, vocab, subject.capabilities.max_elements))
    step, drawn, top = looks(len(sizes), LOOKS), 0, 0.0
    findings: tuple[Finding, ...] = ()
    checkpoints = []
    for call, rows in enumerate(sizes):
        try:
            ids = subject.sample_many(one.case, rows, call)
        except SubjectError as error:
            findings = (Finding(_RETURNS, "a result", str(error), call=call),)
            break
        except (SubjectDidNotOpen, WorkerFault) as error:
            _ours(tally, one.check, one.case, error)
            break
        batch, findings = _counted(ids, vocab, call)
        counts, drawn = counts + batch, drawn + rows
        process.update(batch)
        if findings:
            break
        if (call + 1) % step == 0 or drawn == one.draws:
            checkpoints.append((drawn, process.log_e))
            top = max(top, process.log_e)
            if one.required:
                pool.update(process.evidence())
            if _missed(one, pool, top) or late():
                break
    complete = drawn == one.draws and not findings
    missed = _missed(one, pool, top)
    distinct = _distinct(one, counts) if complete else None
    if distinct is not None and distinct.failed and one.required:
        expected = f"about {distinct.expected:.0f} distinct ids of {one.resolution.ids}"
        seen = f"{distinct.distinct} in {process.hits} draws of the tail"
        charge = one.resolution.alpha
        findings = (*findings, Finding(RESOLUTION, expected, seen, charge))
    seconds = time.monotonic() - started
    writer.write(
        TailRecord(
            check=one.check.name,
            id=one.case.id,
            case=msgspec.Raw(encode_case(one.case)),
            grade=one.grade,
            required=one.required,
            reached=False if missed else (True if complete else None),
            draws=drawn,
            hits=process.hits,
            skipped=process.skipped,
            outside=process.outside,
            distinct=None if distinct is None else distinct.distinct,
            expected_distinct=None if distinct is None else round(distinct.expected, 3),
            counts=tuple((int(token), int(counts[token])) for token in np.flatnonzero(counts)),
            log_e=tuple(checkpoints),
            seen=tail_words(one.seen),
            seconds=round(seconds, 6),
        )
    )
    _show(one.check, one.case, findings, writer, tally)
    done = (TAIL,) * (complete or missed) + (RESOLUTION,) * (distinct is not None)
    tally.count(done if one.required else (), drawn, seconds)
    if missed:
        return f"grade {one.grade:g} missed: {process.evidence().best.name}"
    return f"grade {one.grade:g}: {tail_words(one.seen)} would show" if complete else ""


def _missed(one: PlannedTail, pool: ClausePool, top: float) -> bool:
    """Whether the grade is shown wrong: one that gates, when the clause is."""
    return pool.failed if one.required else top >= pool.log_threshold


def _distinct(one: PlannedTail, counts: IntArray) -> DistinctResult | None:
    return judge_resolution(counts[one.tail.tail], one.resolution.alpha)


def _counted(ids: IntArray, vocab: int, call: int) -> tuple[IntArray, tuple[Finding, ...]]:
    """Count ids; no id of the vocabulary is outside the support of a sea."""
    inside = (ids >= 0) & (ids < vocab)
    counts = np.bincount(ids[inside], minlength=vocab)
    if inside.all():
        return counts, ()
    expected, seen = f"ids from 0 to {vocab - 1}", f"id {ids[~inside][0]}"
    return counts, (Finding(ClauseId("output.range"), expected, seen, call=call),)

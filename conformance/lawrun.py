"""Runs the laws of one row: draw, look after each batch, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from refsampler.backends.process import SubjectDidNotOpen, WorkerFault
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.caserun import case_record
from refsampler.conformance.checks import Finding
from refsampler.conformance.checks.attribution import Seen, attribute
from refsampler.conformance.checks.expected import Expected, RowExpected
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.decisions import Tally
from refsampler.conformance.evidence.acceptance import Action, Look, decide
from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.evidence.law import LawProcess
from refsampler.conformance.evidence.pool import ClausePool
from refsampler.conformance.finished import checkpoint
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.plan import LAW, PlannedLaw
from refsampler.conformance.records import LawRecord, ReportWriter
from refsampler.conformance.sequential import MOST_CELLS, batch_sizes, coarse, l1_test, looks
from refsampler.conformance.subject import SubjectError

__all__ = ["law_words", "run_law"]

_WIDE: Final = 4096
_LOOKS: Final = 64
"""Evidence is looked at so often, whatever the number of draws."""


def run_law(
    subject: AskedSubject,
    one: PlannedLaw,
    writer: ReportWriter,
    tally: Tally,
    pool: ClausePool,
    late: Callable[[], bool],
    tests: int,
) -> LawRecord:
    """Draw batch by batch; end at a failure, at an early acceptance, at the most draws or when late.

    Acceptance looks at the draws of this row alone, so that a shard or a resumed run ends it where
    a whole run does.

    Args:
        subject: the backend.
        one: the law.
        writer: takes its record.
        tally: books it.
        pool: of `draw.law`.
        late: whether time is up.
        tests: how many laws share the one look at distances.

    """
    started = time.monotonic()
    vocab, most = one.case.logits.vocab, subject.capabilities.max_elements
    expected = Expected.of(one.case, subject.capabilities.semantics).row(0)
    sizes = [*batch_sizes(one.least, vocab, most)]
    sizes += batch_sizes(one.draws - one.least, vocab, most)
    step = looks(len(sizes), _LOOKS)
    process = LawProcess(one.law)
    counts = np.zeros(vocab, dtype=np.int64)
    complete, drawn = True, 0
    findings: tuple[Finding, ...] = ()
    upper: float | None = None
    action = Action.GO_ON
    path: list[tuple[int, float]] = []
    for call, rows in enumerate(sizes):
        if late():
            complete = False
            break
        try:
            ids = subject.sample_many(one.case, rows, call)
        except SubjectError as error:
            findings = (Finding(ClauseId("output.returns"), "a result", str(error), call=call),)
            break
        except (SubjectDidNotOpen, WorkerFault) as error:
            tally.errors.append(f"{one.check.name} {one.case.id}: {type(error).__name__}: {error}")
            tally.failed_clauses |= {*one.case.clauses}
            complete = False
            break
        batch, findings = _counted(subject, one.case, expected, ids, call)
        counts, drawn = counts + batch, drawn + len(ids)
        process.update(batch)
        if drawn == one.least:
            upper, wrong = _judge_distance(one, process, tests)
            findings = (*findings, *wrong)
        if findings or (call + 1) % step == 0 or drawn in (one.least, one.draws):
            action = _look(one, process, pool, drawn, path)
        if findings or action is not Action.GO_ON:
            break
    if findings:
        writer.write(case_record(one.check, one.case, findings, drawn, 0.0))
    record = LawRecord(
        check=one.check.name,
        id=one.case.id,
        case=msgspec.Raw(encode_case(one.case)),
        draws=drawn,
        outside=process.outside,
        counts=tuple((int(token), int(counts[token])) for token in np.flatnonzero(counts)),
        log_e=process.log_e,
        seconds=round(time.monotonic() - started, 6),
        tv_upper=upper,
        planned=one.draws,
        refuted=one.carried if action is Action.ACCEPT_EARLY and not findings else (),
        checkpoint=checkpoint(process.evidence() if drawn else None, pool) if complete else None,
        path=tuple(path),
    )
    writer.write(record)
    if findings:
        tally.book(one.case, findings)
    finished = complete and not findings
    tally.count(one.case.clauses if finished else (), drawn, time.monotonic() - started)
    return record


def _look(
    one: PlannedLaw,
    process: LawProcess,
    pool: ClausePool,
    drawn: int,
    path: list[tuple[int, float]],
) -> Action:
    """Tell the pool, and the path, what the law says by now, and return what follows."""
    evidence = process.evidence()
    pool.update(evidence)
    path.append((drawn, round(evidence.log_e, 4)))
    bank = one.law.alternatives
    return decide(
        Look(pool.log_e, process.log_components, drawn),
        bank,
        pool.log_threshold,
        least_draws=one.least,
        most_draws=one.draws,
        awaited=np.array([alternative.name in one.carried for alternative in bank]),
    ).action


def _counted(
    subject: AskedSubject, case: Case, law: RowExpected, ids: IntArray, call: int
) -> tuple[IntArray, tuple[Finding, ...]]:
    """Count ids, and report those that no right backend gives."""
    vocab = case.logits.vocab
    inside = (ids >= 0) & (ids < vocab)
    counts = np.bincount(ids[inside], minlength=vocab)
    if not inside.all():
        seen = f"id {ids[~inside][0]}"
        found = Finding(ClauseId("output.range"), f"ids from 0 to {vocab - 1}", seen, call=call)
        return counts, (found,)
    seen_ids = Seen(counts, near_certain=False)
    wrong = seen_ids.impossible(law)
    if not len(wrong):
        return counts, ()
    owned = owned_clauses(subject.capabilities)
    clauses = attribute(case, 0, seen_ids, subject.capabilities.semantics, owned).clauses
    clauses = clauses or (ClauseId("draw.support"),)
    expected = f"one of {int(law.allowed.sum())} kept ids"
    seen = f"id {wrong[0]} in {counts[wrong[0]]} of {len(ids)} draws"
    return counts, (Finding(clauses[0], expected, seen, call=call, candidates=clauses),)


def _judge_distance(
    one: PlannedLaw, process: LawProcess, tests: int
) -> tuple[float | None, tuple[Finding, ...]]:
    """Take the one look at the distance of a law: an upper bound, and a finding.

    Args:
        one: the law.
        process: with its least draws in.
        tests: how many laws share the false alarm.

    """
    test = l1_test(one.law, one.least, tests)
    counts = coarse(one.law).fold(process.counts)
    result = test.judge(counts, process.skipped + process.outside)
    if result is None or not result.failed:
        return None if result is None else result.upper, ()
    expected = f"frequencies within TV {result.threshold:.2g} of the exact law"
    found = Finding(LAW, expected, f"TV {result.observed:.2g}", test.alpha)
    return result.upper, (found,)


def law_words(drawn: Sequence[tuple[PlannedLaw, LawRecord]]) -> str:
    """Return in words which distances hold for all laws, and what was accepted early."""
    uppers: dict[str, list[float]] = {}
    for one, record in drawn:
        if record.tv_upper is not None:
            uppers.setdefault(_kind(one), []).append(record.tv_upper)
    words = [f"TV at most {max(each):.2g} on {len(each)} {kind}" for kind, each in uppers.items()]
    early = [record for _, record in drawn if record.refuted]
    if early:
        draws, most = (sum(getattr(one, name) for one in early) for name in ("draws", "planned"))
        words.append(f"{len(early)} laws accepted early, after {draws:,} of {most:,} draws")
    return "; ".join(words)


def _kind(one: PlannedLaw) -> str:
    if one.case.logits.vocab > _WIDE:
        return f"rows of V > {_WIDE}"
    few = one.law.probs.size <= MOST_CELLS
    return f"rows of at most {MOST_CELLS} ids" if few else "rows in 16 buckets each"

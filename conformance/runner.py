"""Runner: takes a plan, asks the subject case by case, and decides every clause.

Each record is on disk before the next case starts.  Nothing flows back: what a case showed never
changes which cases follow, except that the laws stop once `draw.law` has failed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from refsampler.clauses import ClauseId
from refsampler.conformance.caserun import case_record, run_case
from refsampler.conformance.checks import Finding
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.decisions import Decision, Tally, decide
from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.finished import NOTHING, Finished
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.lawrun import law_words, run_law
from refsampler.conformance.mixedrun import run_mixed
from refsampler.conformance.plan import LAW, Plan, PlannedLaw
from refsampler.conformance.records import LawRecord, ReportWriter
from refsampler.conformance.sequentialrun import run_pairs, run_tails
from refsampler.conformance.shards import EVERYTHING, NONE, Part
from refsampler.conformance.shrinking import shrink_generated

__all__ = ["Beside", "Outcome", "run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        decisions: one a selected clause, and one a broken clause that was not selected.
        cases: judged.
        draws: taken.
        seconds: spent.
        errors: of the harness, in words.
        unjudged: clauses of the cases that they are about.

    """

    decisions: tuple[Decision, ...]
    cases: int
    draws: int
    seconds: float
    errors: tuple[str, ...]
    unjudged: frozenset[ClauseId] = frozenset()


@dataclass(frozen=True, slots=True)
class Beside:
    """What other processes did of the same plan while this one asked its own part.

    Attributes:
        finished: cases that they asked.
        errors: of the harness there, in words.
        unjudged: clauses of the cases that they are about.

    """

    finished: Finished = NOTHING
    errors: tuple[str, ...] = ()
    unjudged: frozenset[ClauseId] = frozenset()


def run(
    subject: AskedSubject,
    plan: Plan,
    writer: ReportWriter,
    *,
    time_budget: float | None = None,
    progress: Callable[[int, int], None] = lambda _done, _planned: None,
    stop: Callable[[], bool] = lambda: False,
    finished: Finished = NOTHING,
    share: Part = EVERYTHING,
    beside: Callable[[], Beside] = Beside,
    minimise: bool = True,
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
        beside: waits for the processes that ask the rest meanwhile, and returns what they did.
        minimise: whether a smaller case is looked for where only generated ones broke a clause.

    """
    started = time.monotonic()
    deadline = None if time_budget is None else started + time_budget
    tally = Tally()
    sequential = plan.sequential
    laws = [*(one.case for one in plan.laws), *(one.case for one in plan.mixed)]
    planned = len(plan.cases) + len(laws) + len(sequential.pairs) + len(sequential.tails)

    def ended() -> bool:
        return (deadline is not None and time.monotonic() >= deadline) or stop()

    for number, one in enumerate(plan.cases):
        # what is known counts, however little time is left
        if not finished.book_case(one, writer, tally) and share.has_case(number) and not ended():
            run_case(subject, one, writer, tally)
        progress(number + 1, planned)
    pools = sequential.pools()
    if share.first:
        run_pairs(subject, sequential, writer, tally, pools, ended)
    threshold = plan.log_threshold if share.judges else math.inf
    pool = ClausePool(equal_weights(one.id for one in laws), BANK, threshold)
    pools[LAW] = pool
    before = len(plan.cases) + len(sequential.pairs)

    def law_done(number: int) -> None:
        progress(before + number, planned)

    asking = _Asking(subject, writer, tally, ended, finished, share)
    drawn = _run_laws(plan, asking, pool, law_done)
    _run_mixed(plan, asking, pool, law_done)
    if share.last:
        run_tails(subject, sequential, writer, tally, pools, ended)
    elif share == NONE:
        finished.book_shown(sequential, writer, tally)
    drawn += _book_beside(plan, asking, pool, beside())
    tally.figures[LAW] = _law_figures(plan, drawn)
    if minimise and share != NONE and not ended():
        shrink_generated(subject, plan, writer, tally)
    seconds = time.monotonic() - started
    decisions = tuple(decide(plan, tally, pools))
    return Outcome(
        decisions,
        tally.cases,
        tally.all_draws,
        seconds,
        tuple(tally.errors),
        frozenset(tally.failed_clauses),
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    """What a run carries from case to case."""

    subject: AskedSubject
    writer: ReportWriter
    tally: Tally
    ended: Callable[[], bool]
    finished: Finished
    share: Part


_Drawn = list[tuple[PlannedLaw, LawRecord]]


def _run_laws(
    plan: Plan, asking: _Asking, pool: ClausePool, progress: Callable[[int], None]
) -> _Drawn:
    """Run every law, until their clause has failed; return their records."""
    drawn: _Drawn = []
    writer, tally = asking.writer, asking.tally
    for number, law in enumerate(plan.laws):
        if asking.ended() or pool.failed:
            break
        known = asking.finished.book_law(law, writer, tally, pool)
        if known is None and asking.share.has_law(number):
            tests = len(plan.laws)
            known = run_law(asking.subject, law, writer, tally, pool, asking.ended, tests)
        drawn += [(law, known)] if isinstance(known, LawRecord) else []
        progress(number + 1)
    return drawn


def _book_beside(plan: Plan, asking: _Asking, pool: ClausePool, did: Beside) -> _Drawn:
    """Book what other processes asked, as if it came after all that was asked here."""
    writer, tally, known = asking.writer, asking.tally, asking.finished
    tally.errors += did.errors
    tally.failed_clauses |= did.unjudged
    for one in plan.cases:
        if (one.check.name, one.id) not in known.cases:
            did.finished.book_case(one, writer, tally)
    if did.finished.cases:
        tally.in_order_of(one.id for one in plan.cases)
    laws = [law for law in plan.laws if law.case.id not in known.laws]
    booked = [(law, did.finished.book_law(law, writer, tally, pool)) for law in laws]
    for mixed in plan.mixed:
        if mixed.case.id not in known.laws:
            did.finished.book_law(mixed, writer, tally, pool)
    return [(law, record) for law, record in booked if isinstance(record, LawRecord)]


def _run_mixed(
    plan: Plan, asking: _Asking, pool: ClausePool, progress: Callable[[int], None]
) -> None:
    """Run the batches of many laws, unless their clause has failed."""
    writer, tally = asking.writer, asking.tally
    for number, one in enumerate(plan.mixed, start=len(plan.laws)):
        if asking.ended() or pool.failed:
            break
        known = asking.finished.book_law(one, writer, tally, pool)
        if known is None and asking.share.has_law(number):

            def record(found: tuple[Finding, ...], one: PlannedMixed = one) -> None:
                writer.write(case_record(one.check, one.case, found, 0, 0.0))

            run_mixed(asking.subject, one, writer, tally, pool, asking.ended, record)
        progress(number + 1)


def _law_figures(plan: Plan, drawn: _Drawn) -> str:
    """Return what the laws showed, in words; they stand in the order of the plan."""
    places = {law.case.id: place for place, law in enumerate(plan.laws)}
    words = law_words(sorted(drawn, key=lambda one: places[one[0].case.id]))
    mixed = [f"{one.case.calls} calls of {len(one.core)} rows of mixed laws" for one in plan.mixed]
    return "; ".join(filter(None, (words, *mixed[:1])))

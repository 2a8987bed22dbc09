"""How `check` asks: the processes of a run, its report, and what can be shown again."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from refsampler.conformance.commands import Format
from refsampler.conformance.commands.progress import progress
from refsampler.conformance.expectations import (
    Expectation,
    apply_expectations,
    expected_exit_code,
    expected_headline,
)
from refsampler.conformance.finished import NOTHING
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.jobs import Opening, forget_parts, workers
from refsampler.conformance.plan import Plan
from refsampler.conformance.portions import divide
from refsampler.conformance.records import Header, ReportWriter
from refsampler.conformance.reporting.records import footer_record, verdict_record
from refsampler.conformance.reproduce import Reproducer, reproduce
from refsampler.conformance.resume import Resumed, finish, set_aside
from refsampler.conformance.runner import Outcome, run
from refsampler.conformance.shards import Share

__all__ = ["Ended", "Wanted", "ask"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked, and where it is written.

    Attributes:
        subject: the backend.
        plan: of the run.
        header: of its report.
        report: the file.
        opening: how further processes open the backend.
        share: of the plan.
        stopped: the killed run that goes on, None without.
        known: failures that are expected.

    """

    subject: GuardedSubject
    plan: Plan
    header: Header
    report: Path
    opening: Opening
    share: Share
    stopped: Resumed | None
    known: Sequence[Expectation]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run found, its exit status and headline, and the failures that can be shown again."""

    outcome: Outcome
    code: int
    line: str
    made_again: Sequence[Reproducer]


def ask(asked: Wanted, form: Format, time_budget: float | None) -> Ended:
    """Run, decide and write the report."""
    subject, made, report = asked.subject, asked.plan, asked.report
    report.parent.mkdir(parents=True, exist_ok=True)
    set_aside(report, keep=asked.stopped is not None)
    if asked.stopped is None:
        forget_parts(report)
    deadline = time.monotonic() + (math.inf if time_budget is None else time_budget)
    jobs = asked.header.jobs
    own, *others = divide(made, jobs) if jobs > 1 else (asked.share,)
    with (
        workers(made, others, asked.opening, report, deadline) as at_work,
        ReportWriter(report.open("wb")) as writer,
    ):
        writer.write(asked.header)
        subject.expect(_processes(made.profile, made.glob))
        with progress(form, made, time_budget) as tell:
            outcome = run(
                subject,
                made,
                writer,
                time_budget=time_budget,
                progress=tell,
                stop=lambda: subject.spent,
                finished=NOTHING if asked.stopped is None else asked.stopped.finished,
                share=own,
                beside=at_work.wait,
            )
        name = made.capabilities.name
        decisions = apply_expectations(outcome.decisions, asked.known, name)
        shown, made_again = reproduce(subject, made, report, writer, decisions, deadline=deadline)
        outcome = replace(outcome, decisions=shown)
        code = expected_exit_code(outcome.decisions, outcome.errors)
        line = expected_headline(outcome.decisions, code)
        for decision in outcome.decisions:
            writer.write(verdict_record(decision))
        writer.write(footer_record(outcome, code, line))
    finish(report)
    forget_parts(report)
    return Ended(outcome, code, line, made_again)


def _processes(profile: str, glob: str) -> int:
    """Return how many a run asks side by side; those of a whole run start while it is planned."""
    if glob != "*":
        return 0
    return 2 if profile == "quick" else 3

"""``refsampler check``: ask a backend and say what it did."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.opening import isolation_options, limits_of, opened
from refsampler.conformance.commands.options import (
    expectations_option,
    glob_option,
    known_failures,
    logits_option,
    planned,
    profile_option,
    run_seed_of,
    seed_option,
    time_budget_option,
    with_logits,
)
from refsampler.conformance.commands.progress import progress
from refsampler.conformance.commands.verdict_table import markdown, plan_lines, show
from refsampler.conformance.expectations import (
    Expectation,
    apply_expectations,
    expected_exit_code,
    expected_headline,
    stale_entries,
    updated_document,
)
from refsampler.conformance.finished import NOTHING
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.jobs import Opening, default_jobs, forget_parts, workers
from refsampler.conformance.plan import Plan
from refsampler.conformance.portions import divide
from refsampler.conformance.recorded import add_folder
from refsampler.conformance.records import Header, ReportWriter
from refsampler.conformance.reporting.junit import write_junit
from refsampler.conformance.reporting.records import (
    footer_record,
    header_record,
    verdict_record,
)
from refsampler.conformance.reproduce import Reproducer, reproduce
from refsampler.conformance.resume import (
    CannotResume,
    Resumed,
    check_plan,
    finish,
    set_aside,
    stopped_run,
)
from refsampler.conformance.runner import Outcome, run
from refsampler.conformance.shards import EVERYTHING, Share
from refsampler.conformance.threads import one_thread

__all__ = ["check"]

_RUNS = Path("reports") / "runs"
_REPORT = "report.jsonl"


@click.command()
@click.argument("backend")
@profile_option
@glob_option
@seed_option
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Folder of the report.")
@time_budget_option
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the killed run whose report lies there; its seed, profile and clauses hold.",
)
@click.option(
    "--shard",
    callback=lambda _ctx, _param, text: _share(text),
    help="i/n: ask only the i-th of n parts of the plan; every part needs the same --seed, and"
    " `refsampler merge` judges them together. By itself a part is INCONCLUSIVE.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Processes that ask at once, each a part of the cases; every verdict is as with one. The"
    " default is 2 on two cores if the run takes long and the backend is on the CPU.",
)
@logits_option
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@expectations_option
@click.option(
    "--update-expectations",
    is_flag=True,
    help="Rewrite that file: entries that pass go, unexpected failures come with an empty reason.",
)
@isolation_options
@format_option
def check(
    backend: str,
    profile: str,
    glob: str,
    seed: int | None,
    folder: Path | None,
    time_budget: float | None,
    resume: bool,
    shard: Share,
    jobs: int | None,
    logits: Path | None,
    junit: Path | None,
    expectations_file: Path | None,
    update_expectations: bool,
    isolate: bool | None,
    timeout_s: float,
    memory_gib: float,
    form: Format,
) -> None:
    """Test BACKEND against the contract.

    Exit status: 0 conforms or matches expectations, 1 does not, 2 usage, 3 inconclusive, 4 could
    not be opened or harness error, 5 nothing ran.
    """
    known = known_failures(expectations_file, update=update_expectations)
    if logits is not None:
        add_folder(logits)
    stopped = _stopped(folder, resume=resume)
    if stopped is not None:
        profile, glob, seed = (
            stopped.header.profile,
            stopped.header.clauses,
            stopped.header.run_seed,
        )
    _refuse_shard_without(seed, shard, jobs)
    run_seed = run_seed_of(seed)
    opening = Opening(backend, run_seed, isolate, limits_of(timeout_s, memory_gib))
    with one_thread(), opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
        sized_for = time_budget if stopped is None else stopped.header.time_budget
        free = None if stopped is None else stopped.header.free_bytes
        sized = planned(subject.capabilities, profile, glob, run_seed, sized_for, free)
        made = with_logits(sized, logits)
        jobs = _jobs_of(jobs, made, shard, stopped)
        header = header_record(made, backend, time_budget, shard, jobs)
        header = header if stopped is None else _same_header(stopped, made, backend, header)
        if form == "pretty":
            beside = f"; {jobs} processes at once" if jobs > 1 else ""
            click.echo("\n".join([*plan_lines(made), f"asked {subject.where}{beside}"]))
        where = _RUNS / made.capabilities.name if folder is None else folder
        asked = _Run(subject, made, header, where / _REPORT, opening, shard, stopped, known)
        ended = _ask(asked, form, time_budget)
    page = markdown(ended.outcome.decisions, f"{made.capabilities.name}: verdicts", ended.line)
    (where / "verdicts.md").write_text(page, encoding="utf-8")
    if junit is not None:
        write_junit(junit, backend, ended.outcome.decisions, ended.outcome.errors)
    _print(form, ended, page, where)
    for stale in stale_entries(ended.outcome.decisions, known, made.capabilities.name):
        click.echo(f"stale expectation of {stale.entry.clause}: {stale.why}", err=True)
    if update_expectations and expectations_file is not None:
        _update(expectations_file, ended.outcome, made.capabilities.name)
    sys.exit(ended.code)


@dataclass(frozen=True, slots=True)
class _Run:
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
class _Ended:
    """What a run found, its exit status and headline, and the failures that can be shown again."""

    outcome: Outcome
    code: int
    line: str
    made_again: Sequence[Reproducer]


def _ask(asked: _Run, form: Format, time_budget: float | None) -> _Ended:
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
    return _Ended(outcome, code, line, made_again)


def _refuse_shard_without(seed: int | None, shard: Share, jobs: int | None) -> None:
    if shard != EVERYTHING and seed is None:
        raise click.UsageError("--shard needs --seed: the parts of a plan share one run seed")
    if shard != EVERYTHING and jobs not in (None, 1):
        raise click.UsageError(f"--jobs = {jobs} is refused: allowed is 1 with --shard")


def _jobs_of(jobs: int | None, made: Plan, shard: Share, stopped: Resumed | None) -> int:
    """Return how many processes ask: those of the killed run, those wished for, or the default."""
    if stopped is not None:
        return stopped.header.jobs
    if jobs is not None:
        return jobs
    return default_jobs(made) if shard == EVERYTHING else 1


def _print_scripts(made_again: Sequence[Reproducer]) -> None:
    for one in made_again:
        if one.script is not None:
            click.echo(f"{one.clause} shown again: python {shlex.quote(str(one.script))}")


def _update(path: Path, outcome: Outcome, name: str) -> None:
    before = path.read_text("utf-8") if path.exists() else ""
    path.write_text(updated_document(before, outcome.decisions, name), "utf-8")


def _share(text: str | None) -> Share:
    try:
        return EVERYTHING if text is None else Share.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _processes(profile: str, glob: str) -> int:
    """Return how many a run asks side by side; those of a whole run start while it is planned."""
    if glob != "*":
        return 0
    return 2 if profile == "quick" else 3


def _stopped(folder: Path | None, *, resume: bool) -> Resumed | None:
    """Read the killed run, or end the command with status 2."""
    if not resume:
        return None
    if folder is None:
        raise click.UsageError("--resume needs --report DIR, the folder of the killed run")
    try:
        return stopped_run(folder / _REPORT)
    except CannotResume as error:
        raise click.BadParameter(str(error), param_hint="--resume") from error


def _same_header(stopped: Resumed, made: Plan, backend: str, header: Header) -> Header:
    """Return the killed run's header, or end the command with status 2."""
    try:
        check_plan(stopped.header, made, backend)
    except CannotResume as error:
        raise click.BadParameter(str(error), param_hint="--resume") from error
    if stopped.header.shard != header.shard:
        raise click.BadParameter("the killed run was another shard", param_hint="--resume")
    return stopped.header


def _print(form: Format, ended: _Ended, page: str, where: Path) -> None:
    outcome, line = ended.outcome, ended.line
    if form == "json":
        records = [verdict_record(one) for one in outcome.decisions]
        click.echo(msgspec.json.encode({"headline": line, "verdicts": records}))
        return
    if form == "markdown":
        click.echo(page, nl=False)
        return
    show(outcome.decisions, line)
    for error in outcome.errors[:3]:
        click.echo(f"harness error: {error}", err=True)
    if len(outcome.errors) > 3:
        click.echo(f"harness errors: {len(outcome.errors)} in all", err=True)
    click.echo(f"{outcome.draws:,} draws in {outcome.seconds:.1f} s; report in {where}")
    _print_scripts(ended.made_again)

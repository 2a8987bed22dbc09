"""``refsampler check``: ask a backend and say what it did."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from refsampler.conformance.ahead import batches_ahead
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.asking import Ended, Wanted, ask
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
from refsampler.conformance.commands.verdict_table import markdown, plan_lines, show
from refsampler.conformance.expectations import (
    stale_entries,
    updated_document,
)
from refsampler.conformance.jobs import Opening, default_jobs
from refsampler.conformance.plan import Plan
from refsampler.conformance.recorded import add_folder
from refsampler.conformance.records import Header
from refsampler.conformance.reporting.github import tell_github
from refsampler.conformance.reporting.junit import write_junit
from refsampler.conformance.reporting.records import (
    Checked,
    header_record,
    verdict_record,
)
from refsampler.conformance.reproduce import Reproducer
from refsampler.conformance.resume import (
    CannotResume,
    Resumed,
    check_plan,
    stopped_run,
)
from refsampler.conformance.runner import Outcome
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
        with batches_ahead(subject.capabilities, run_seed, worth=glob == "*") as drawn:
            sized = planned(
                subject.capabilities, profile, glob, run_seed, sized_for, free, before_cases=drawn
            )
        made = with_logits(sized, logits)
        jobs = _jobs_of(jobs, made, shard, stopped)
        header = header_record(made, backend, time_budget, shard, jobs)
        header = header if stopped is None else _same_header(stopped, made, backend, header)
        if form == "pretty":
            beside = f"; {jobs} processes at once" if jobs > 1 else ""
            click.echo("\n".join([*plan_lines(made), f"asked {subject.where}{beside}"]))
        where = _RUNS / made.capabilities.name if folder is None else folder
        asked = Wanted(subject, made, header, where / _REPORT, opening, shard, stopped, known)
        ended = ask(asked, form, time_budget)
    page = markdown(ended.outcome.decisions, f"{made.capabilities.name}: verdicts", ended.line)
    (where / "verdicts.md").write_text(page, encoding="utf-8")
    if junit is not None:
        write_junit(junit, backend, ended.outcome.decisions, ended.outcome.errors)
    _print(form, ended, page, where)
    for told in tell_github(os.environ, page, ended.outcome.decisions, ended.code):
        click.echo(told, err=form != "pretty")
    for stale in stale_entries(ended.outcome.decisions, known, made.capabilities.name):
        click.echo(f"stale expectation of {stale.entry.clause}: {stale.why}", err=True)
    if update_expectations and expectations_file is not None:
        _update(expectations_file, ended.outcome, made.capabilities.name)
    sys.exit(ended.code)


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


def _print(form: Format, ended: Ended, page: str, where: Path) -> None:
    outcome, line = ended.outcome, ended.line
    if form == "json":
        records = tuple(verdict_record(one) for one in outcome.decisions)
        click.echo(msgspec.json.encode(Checked(line, records)))
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
    click.echo(f"as a page: refsampler report {shlex.quote(str(where))}")
    _print_scripts(ended.made_again)

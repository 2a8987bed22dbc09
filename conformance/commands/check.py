"""``refsampler smoke``, ``plan`` and ``check``: ask a backend and say what it did."""

from __future__ import annotations

import math
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import select
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.law import PROFILES
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.opening import isolation_options, opened
from refsampler.conformance.commands.progress import progress
from refsampler.conformance.commands.verdict_table import markdown, plan_lines, show
from refsampler.conformance.costs import left_out, total_seconds
from refsampler.conformance.expectations import (
    Expectation,
    ExpectationsError,
    apply_expectations,
    expected_exit_code,
    expected_headline,
    read_expectations,
    stale_entries,
    updated_document,
)
from refsampler.conformance.extend import with_recorded
from refsampler.conformance.finished import NOTHING
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.recorded import RecordingError, add_folder
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
from refsampler.conformance.verdict import ExitCode

__all__ = ["check", "plan", "smoke"]

_SMOKE = (
    ("shape and dtype of ids", ("layouts",), "output.form"),
    ("ids inside the vocabulary", ("layouts",), "output.range"),
    ("one-hot logits", ("relabelled-rows",), "relabel.equivariance"),
    ("same seed, same ids", ("seeds-again",), "seed.reproducible"),
)
_RUNS = Path("reports") / "runs"
_REPORT = "report.jsonl"

_profile = click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="quick", show_default=True
)
_glob = click.option("--clause", "glob", default="*", help="Only clauses that match, as top-p.*")
_seed = click.option("--seed", type=click.IntRange(0), help="Run seed; fresh and printed without.")


_time_budget = click.option(
    "--time-budget",
    type=click.FloatRange(min=0),
    help="Seconds after which no new case starts; what was not reached is INCONCLUSIVE.",
)


def _run_seed(seed: int | None) -> int:
    return secrets.randbits(31) if seed is None else seed


def _planned(capabilities: Capabilities, profile: str, glob: str, run_seed: int) -> Plan:
    if not select(glob):
        raise click.BadParameter(f"no clause matches {glob!r}", param_hint="--clause")
    return make_plan(capabilities, profile=profile, glob=glob, run_seed=run_seed)


@click.command()
@click.argument("backend")
@_seed
@isolation_options
def smoke(
    backend: str, seed: int | None, isolate: bool | None, timeout_s: float, memory_gib: float
) -> None:
    """Ask BACKEND the four questions that a first version gets wrong, in seconds."""
    run_seed = _run_seed(seed)
    checks = {one.name: one for one in all_checks()}
    failed = False
    with one_thread(), opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
        capabilities = subject.capabilities
        click.echo(f"{capabilities.name} {capabilities.version} on {capabilities.device}")
        for words, names, clause in _SMOKE:
            cases = [
                (checks[name], case)
                for name in names
                for case in checks[name].cases(capabilities, run_seed)
            ]
            found = next(
                (
                    finding
                    for one, case in cases
                    for finding in judge_case(subject, one, case).findings
                    if finding.clause in (clause, "output.returns")
                ),
                None,
            )
            failed = failed or found is not None
            answer = "not declared" if not cases else "ok"
            if found is not None:
                answer = f"FAIL: expected {found.expected}; seen {found.seen}"
            click.echo(f"  {words:<28}{answer}")
    declared = sorted(str(one) for one in (*capabilities.features, *capabilities.folds))
    click.echo(f"  declares: {' '.join(declared)}")
    if failed:
        click.echo("smoke failed")
        sys.exit(ExitCode.DOES_NOT)
    click.echo(f"smoke passed. Next: refsampler check {backend}")


@click.command()
@click.argument("backend")
@_profile
@_glob
@_seed
@_time_budget
@isolation_options
def plan(
    backend: str,
    profile: str,
    glob: str,
    seed: int | None,
    time_budget: float | None,
    isolate: bool | None,
    timeout_s: float,
    memory_gib: float,
) -> None:
    """Say what a check of BACKEND runs, what it may cost and what it will see, before any draw."""
    run_seed = _run_seed(seed)
    with opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
        capabilities = subject.capabilities
    started = time.monotonic()
    made = _planned(capabilities, profile, glob, run_seed)
    for line in plan_lines(made, time.monotonic() - started):
        click.echo(line)
    click.echo(f"expected seconds, at the speed of the native sampler: {total_seconds(made):.0f}")
    if time_budget is not None:
        late = ", ".join(left_out(made, time_budget)) or "nothing"
        click.echo(f"not finished within {time_budget:g} s, hence INCONCLUSIVE: {late}")
    counts: dict[str, tuple[int, int]] = {}
    planned = [(one.check, one.draws) for one in made.cases]
    planned += [(one.check, one.draws) for one in made.laws]
    for one, drawn in planned:
        name = f"{one.name} ({one.kind})"
        before = counts.get(name, (0, 0))
        counts[name] = (before[0] + 1, before[1] + drawn)
    for name, (cases, draws) in counts.items():
        click.echo(f"  {name:<34}{cases:>5} cases {draws:>12,} draws")
    for power in made.would_see:
        click.echo(f"  {power.bias:<34}seen with probability {power.probability:.6g}")


@click.command()
@click.argument("backend")
@_profile
@_glob
@_seed
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Folder of the report.")
@_time_budget
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
    "--logits",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="safetensors file of recorded logits, tensors [rows, vocab]: each row becomes a case.",
)
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@click.option(
    "--expectations",
    "expectations_file",
    type=click.Path(path_type=Path),
    help="TOML file of known failures, [[expect]] clause, status = 'fail', reason, and as you like"
    " backend (a shell pattern) and issue. Expected failures leave the exit status at 0; stale"
    " entries are reported.",
)
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
    known = _expectations(expectations_file, update=update_expectations)
    if logits is not None:
        add_folder(logits)
    stopped = _stopped(folder, resume=resume)
    if stopped is not None:
        profile, glob, seed = (
            stopped.header.profile,
            stopped.header.clauses,
            stopped.header.run_seed,
        )
    if shard.count > 1 and seed is None:
        raise click.UsageError("--shard needs --seed: the parts of a plan share one run seed")
    run_seed = _run_seed(seed)
    with one_thread(), opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
        made = _with_logits(_planned(subject.capabilities, profile, glob, run_seed), logits)
        header = header_record(made, backend, time_budget, shard)
        header = header if stopped is None else _same_header(stopped, made, backend, header)
        if form == "pretty":
            click.echo("\n".join([*plan_lines(made), f"asked {subject.where}"]))
        where = _RUNS / made.capabilities.name if folder is None else folder
        where.mkdir(parents=True, exist_ok=True)
        set_aside(where / _REPORT, keep=stopped is not None)
        with ReportWriter((where / _REPORT).open("wb")) as writer:
            writer.write(header)
            started = time.monotonic()
            with progress(form, made, time_budget) as tell:
                outcome = run(
                    subject,
                    made,
                    writer,
                    time_budget=time_budget,
                    progress=tell,
                    stop=lambda: subject.spent,
                    finished=NOTHING if stopped is None else stopped.finished,
                    share=shard,
                )
            name = made.capabilities.name
            outcome = replace(outcome, decisions=apply_expectations(outcome.decisions, known, name))
            deadline = started + (math.inf if time_budget is None else time_budget)
            shown, made_again = reproduce(
                subject, made, where / _REPORT, writer, outcome.decisions, deadline=deadline
            )
            outcome = replace(outcome, decisions=shown)
            code = expected_exit_code(outcome.decisions, outcome.errors)
            line = expected_headline(outcome.decisions, code)
            for decision in outcome.decisions:
                writer.write(verdict_record(decision))
            writer.write(footer_record(outcome, code, line))
    finish(where / _REPORT)
    page = markdown(outcome.decisions, f"{name}: verdicts", line)
    (where / "verdicts.md").write_text(page, encoding="utf-8")
    if junit is not None:
        write_junit(junit, backend, outcome.decisions, outcome.errors)
    _print(form, outcome, page, line, where)
    if form == "pretty":
        _print_scripts(made_again)
    for stale in stale_entries(outcome.decisions, known, name):
        click.echo(f"stale expectation of {stale.entry.clause}: {stale.why}", err=True)
    if update_expectations and expectations_file is not None:
        _update(expectations_file, outcome, name)
    sys.exit(code)


def _print_scripts(made_again: Sequence[Reproducer]) -> None:
    for one in made_again:
        if one.script is not None:
            click.echo(f"{one.clause} shown again: python {shlex.quote(str(one.script))}")


def _update(path: Path, outcome: Outcome, name: str) -> None:
    before = path.read_text("utf-8") if path.exists() else ""
    path.write_text(updated_document(before, outcome.decisions, name), "utf-8")


def _with_logits(made: Plan, logits: Path | None) -> Plan:
    """Add the recorded cases, or end the command with status 2."""
    try:
        return made if logits is None else with_recorded(made, logits)
    except RecordingError as error:
        raise click.BadParameter(str(error), param_hint="--logits") from error


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


def _shared_seed(seed: int | None, shard: Share) -> int:
    if shard.count > 1 and seed is None:
        raise click.UsageError("--shard needs --seed: the parts of a plan share one run seed")
    return _run_seed(seed)


def _same_header(stopped: Resumed, made: Plan, backend: str, header: Header) -> Header:
    """Return the killed run's header, or end the command with status 2."""
    try:
        check_plan(stopped.header, made, backend)
    except CannotResume as error:
        raise click.BadParameter(str(error), param_hint="--resume") from error
    if stopped.header.shard != header.shard:
        raise click.BadParameter("the killed run was another shard", param_hint="--resume")
    return stopped.header


def _expectations(path: Path | None, *, update: bool) -> tuple[Expectation, ...]:
    """Read the file, or end the command with status 2; a file to be updated need not exist."""
    if path is None:
        if update:
            raise click.UsageError("--update-expectations needs --expectations FILE")
        return ()
    if update and not path.exists():
        return ()
    try:
        return read_expectations(path)
    except (ExpectationsError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--expectations") from error


def _print(form: Format, outcome: Outcome, page: str, line: str, where: Path) -> None:
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

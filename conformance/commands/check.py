"""``refsampler smoke``, ``plan``, ``check`` and ``replay``: ask a backend and say what it did."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from refsampler.backends.protocol import Subject
from refsampler.backends.registry import BackendBroken, BackendNotFound, resolve
from refsampler.clauses import select
from refsampler.conformance.case import decode_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.law import PROFILES
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.verdict_table import markdown, plan_lines, show
from refsampler.conformance.decisions import exit_code, headline
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.records import (
    CaseRecord,
    Header,
    LawRecord,
    ReportWriter,
    read_report,
)
from refsampler.conformance.reporting.junit import write_junit
from refsampler.conformance.reporting.records import (
    footer_record,
    header_record,
    verdict_record,
)
from refsampler.conformance.runner import Outcome, judge_case, run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode

__all__ = ["check", "plan", "replay", "smoke"]

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


def _open(spec: str) -> Subject:
    """Return the backend, or end the command with status 4."""
    try:
        return resolve(spec)
    except (BackendNotFound, BackendBroken) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(ExitCode.HARNESS)


def _planned(subject: Subject, profile: str, glob: str, seed: int | None) -> Plan:
    if not select(glob):
        raise click.BadParameter(f"no clause matches {glob!r}", param_hint="--clause")
    run_seed = secrets.randbits(31) if seed is None else seed
    return make_plan(subject.capabilities, profile=profile, glob=glob, run_seed=run_seed)


@click.command()
@click.argument("backend")
@_seed
def smoke(backend: str, seed: int | None) -> None:
    """Ask BACKEND the four questions that a first version gets wrong, in seconds."""
    subject = _open(backend)
    capabilities = subject.capabilities
    click.echo(f"{capabilities.name} {capabilities.version} on {capabilities.device}")
    opened = OpenSubject(subject, secrets.randbits(31) if seed is None else seed)
    checks = {one.name: one for one in all_checks()}
    failed = False
    with one_thread():
        for words, names, clause in _SMOKE:
            cases = [
                (checks[name], case)
                for name in names
                for case in checks[name].cases(capabilities, opened.run_seed)
            ]
            found = next(
                (
                    finding
                    for one, case in cases
                    for finding in judge_case(opened, one, case).findings
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
def plan(backend: str, profile: str, glob: str, seed: int | None) -> None:
    """Say what a check of BACKEND runs, what it may cost and what it will see, before any draw."""
    subject = _open(backend)
    started = time.monotonic()
    made = _planned(subject, profile, glob, seed)
    for line in plan_lines(made, time.monotonic() - started):
        click.echo(line)
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
@click.option("--time-budget", type=click.FloatRange(min=0), help="Seconds; no new case after it.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML to this file.")
@format_option
def check(
    backend: str,
    profile: str,
    glob: str,
    seed: int | None,
    folder: Path | None,
    time_budget: float | None,
    junit: Path | None,
    form: Format,
) -> None:
    """Test BACKEND against the contract.

    Exit status: 0 conforms, 1 does not, 2 usage, 3 inconclusive, 4 could not be opened or harness
    error, 5 nothing ran.
    """
    subject = _open(backend)
    with one_thread():
        made = _planned(subject, profile, glob, seed)
        if form == "pretty":
            for line in plan_lines(made):
                click.echo(line)
        where = _RUNS / subject.capabilities.name if folder is None else folder
        where.mkdir(parents=True, exist_ok=True)
        with ReportWriter((where / _REPORT).open("wb")) as writer:
            writer.write(header_record(made, backend, time_budget))
            with _progress(form) as progress:
                outcome = run(
                    OpenSubject(subject, made.run_seed),
                    made,
                    writer,
                    time_budget=time_budget,
                    progress=progress,
                )
            code = exit_code(outcome.decisions, outcome.errors)
            line = headline(outcome.decisions, code)
            for decision in outcome.decisions:
                writer.write(verdict_record(decision))
            writer.write(footer_record(outcome, code, line))
    page = markdown(outcome.decisions, f"{subject.capabilities.name}: verdicts", line)
    (where / "verdicts.md").write_text(page, encoding="utf-8")
    if junit is not None:
        write_junit(junit, backend, outcome.decisions, outcome.errors)
    _print(form, outcome, page, line, where)
    sys.exit(code)


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


@contextmanager
def _progress(form: Format) -> Iterator[Any]:
    """Show a bar on a terminal, nothing elsewhere."""
    if form != "pretty" or not sys.stderr.isatty():
        yield lambda _done, _planned: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cases")
        yield lambda done, planned: bar.update(task, completed=done, total=planned)


@click.command()
@click.argument("case")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Folder of the report.")
@click.option("--backend", help="Another backend than the report's; needed for a case file.")
@click.option("--check", "name", help="Check that judges a case file.", default="generated-batches")
@_seed
def replay(
    case: str, folder: Path | None, backend: str | None, name: str, seed: int | None
) -> None:
    """Run CASE again: an id out of the latest report, or a file with a case."""
    spec, found, run_seed = backend, None, seed or 0
    if Path(case).is_file():
        found = decode_case(Path(case).read_bytes())
    else:
        for report in _reports(folder):
            header, record = _find(report, case)
            if header is not None and record is not None:
                spec, name = backend or header.spec, record.check
                run_seed = header.run_seed if seed is None else seed
                found = decode_case(bytes(record.case))
                break
    if found is None:
        raise click.BadParameter(f"no report has a case {case!r}", param_hint="CASE")
    if spec is None:
        raise click.BadParameter("a case file needs --backend", param_hint="--backend")
    checks = {one.name: one for one in all_checks()}
    if name not in checks:
        raise click.BadParameter(f"no check is called {name!r}", param_hint="--check")
    subject = OpenSubject(_open(spec), run_seed)
    with one_thread():
        judged = judge_case(subject, checks[name], found)
    click.echo(f"case {found.id} of {name} on {spec}, run seed {run_seed}: {judged.draws} draws")
    for finding in judged.findings:
        click.echo(f"FAIL {finding.clause}")
        click.echo(f"  expected  {finding.expected}")
        click.echo(f"  seen      {finding.seen}")
    if not judged.findings:
        click.echo("nothing wrong was seen")
    sys.exit(ExitCode.DOES_NOT if judged.findings else ExitCode.CONFORMS)


def _reports(folder: Path | None) -> list[Path]:
    """Return report files, the latest first."""
    found = _RUNS.glob(f"*/{_REPORT}") if folder is None else folder.glob(_REPORT)
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _find(report: Path, case: str) -> tuple[Header | None, CaseRecord | LawRecord | None]:
    header = None
    for record in read_report(report):
        if isinstance(record, Header):
            header = record
        if isinstance(record, CaseRecord | LawRecord) and record.id.startswith(case):
            return header, record
    return header, None

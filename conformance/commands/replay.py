"""``refsampler replay``: run one case of a report again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from refsampler.conformance.case import Case, decode_case
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import Finding, Kind, all_checks
from refsampler.conformance.commands.opening import isolation_options, opened
from refsampler.conformance.commands.verdict_table import failure_lines
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.plan import LAW, make_plan
from refsampler.conformance.recorded import add_folder
from refsampler.conformance.records import (
    CaseRecord,
    Header,
    LawRecord,
    MixedRecord,
    ReportWriter,
    read_report,
)
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import Sequential
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode, Status

__all__ = ["replay"]

_RUNS = Path("reports") / "runs"
_REPORT = "report.jsonl"


@click.command()
@click.argument("case")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Folder of the report.")
@click.option("--backend", help="Another backend than the report's; needed for a case file.")
@click.option("--check", "name", help="Check that judges a case file.", default="generated-batches")
@click.option("--seed", type=click.IntRange(0), help="Run seed; the report's without.")
@click.option(
    "--logits",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file of a case of recorded logits.",
)
@isolation_options
def replay(
    case: str,
    folder: Path | None,
    backend: str | None,
    name: str,
    seed: int | None,
    logits: Path | None,
    isolate: bool | None,
    timeout_s: float,
    memory_gib: float,
) -> None:
    """Run CASE again: an id out of the latest report, or a file with a case."""
    if logits is not None:
        add_folder(logits)
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
    with one_thread(), opened(spec, run_seed, isolate, timeout_s, memory_gib) as subject:
        if checks[name].kind in (Kind.LAW, Kind.MIXED):
            sys.exit(_replay_law(subject, found, run_seed))
        judged = judge_case(subject, checks[name], found)
    click.echo(f"case {found.id} of {name} on {spec}, run seed {run_seed}: {judged.draws} draws")
    click.echo("\n".join(_finding_lines(judged.findings)))
    sys.exit(ExitCode.DOES_NOT if judged.findings else ExitCode.CONFORMS)


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"FAIL {finding.clause}"
        yield f"  expected  {finding.expected}"
        yield f"  seen      {finding.seen}"
    if not findings:
        yield "nothing wrong was seen"


def _replay_law(subject: GuardedSubject, case: Case, run_seed: int) -> int:
    """Draw the law again, as often as a quick run does, and return the exit status."""
    made = make_plan(subject.capabilities, glob=LAW, run_seed=run_seed)
    laws = tuple(one for one in made.laws if one.case.id == case.id)
    mixed = tuple(one for one in made.mixed if one.case.id == case.id)
    if not (laws or mixed):
        raise click.BadParameter(f"no law is planned of case {case.id}", param_hint="CASE")
    parts = replace(made, cases=(), laws=laws, mixed=mixed)
    alone = replace(parts, sequential=Sequential(), planned={LAW: 1})
    outcome = run(subject, alone, ReportWriter(None))
    click.echo(f"law {case.id} on {subject.spec}, run seed {run_seed}: {outcome.draws:,} draws")
    for decision in outcome.decisions:
        for line in failure_lines(decision):
            click.echo(line)
    failed = any(one.verdict.status is Status.FAIL for one in outcome.decisions)
    if not failed:
        click.echo("nothing wrong was seen")
    return ExitCode.DOES_NOT if failed else ExitCode.CONFORMS


def _reports(folder: Path | None) -> list[Path]:
    """Return report files, the latest first."""
    found = _RUNS.glob(f"*/{_REPORT}") if folder is None else folder.glob(_REPORT)
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _find(
    report: Path, case: str
) -> tuple[Header | None, CaseRecord | LawRecord | MixedRecord | None]:
    header = None
    for record in read_report(report):
        if isinstance(record, Header):
            header = record
        if isinstance(record, CaseRecord | LawRecord | MixedRecord) and record.id.startswith(case):
            return header, record
    return header, None

"""``refsampler replay``: run one case of a report again."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from refsampler.conformance.case import Case, decode_case
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import Check, Finding, Kind, all_checks
from refsampler.conformance.commands.opening import isolation_options, opened
from refsampler.conformance.commands.verdict_table import failure_lines
from refsampler.conformance.decisions import Decision, exit_code
from refsampler.conformance.extend import plan_of, with_recorded
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.plan import make_plan
from refsampler.conformance.recorded import add_folder
from refsampler.conformance.records import (
    CaseRecord,
    Header,
    LawRecord,
    MixedRecord,
    PairsRecord,
    ReportWriter,
    TailRecord,
    read_report,
)
from refsampler.conformance.runner import run
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode, LogE, Status

__all__ = ["Recorded", "recorded", "replay"]

_RUNS = Path("reports") / "runs"
_REPORT = "report.jsonl"
_BY_EVIDENCE = (Kind.LAW, Kind.MIXED, Kind.TAIL, Kind.PAIRS)

Recorded = CaseRecord | LawRecord | MixedRecord | TailRecord | PairsRecord


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
    spec, found, run_seed, profile = backend, None, seed or 0, "quick"
    if Path(case).is_file():
        found = decode_case(Path(case).read_bytes())
    else:
        header, record = recorded(folder, case)
        if header is not None and record is not None:
            spec, name = backend or header.spec, record.check
            run_seed = header.run_seed if seed is None else seed
            found, profile = decode_case(bytes(record.case)), header.profile
    if found is None:
        raise click.BadParameter(f"no report has a case {case!r}", param_hint="CASE")
    if spec is None:
        raise click.BadParameter("a case file needs --backend", param_hint="--backend")
    checks = {one.name: one for one in all_checks()}
    if name not in checks:
        raise click.BadParameter(f"no check is called {name!r}", param_hint="--check")
    with one_thread(), opened(spec, run_seed, isolate, timeout_s, memory_gib) as subject:
        if checks[name].kind in _BY_EVIDENCE:
            sys.exit(_draw_again(subject, checks[name], found, run_seed, profile, logits))
        judged = judge_case(subject, checks[name], found)
    click.echo(f"case {found.id} of {name} on {spec}, run seed {run_seed}: {judged.draws} draws")
    if judged.unasked and not judged.findings:
        click.echo(f"not run: {judged.unasked}")
        sys.exit(ExitCode.NOTHING_RAN)
    click.echo("\n".join(_finding_lines(judged.findings)))
    sys.exit(ExitCode.DOES_NOT if judged.findings else ExitCode.CONFORMS)


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        others = [one for one in finding.candidates if one != finding.clause]
        yield f"FAIL {finding.clause}" + (f", or else {', '.join(others)}" if others else "")
        yield f"  expected  {finding.expected}"
        yield f"  seen      {finding.seen}"
    if not findings:
        yield "nothing wrong was seen"


def _draw_again(
    subject: GuardedSubject,
    check: Check,
    case: Case,
    run_seed: int,
    profile: str,
    logits: Path | None,
) -> int:
    """Draw a case that evidence judges as often as the run did, and return the exit status."""
    glob = next(iter(case.clauses), "*")
    made = make_plan(subject.capabilities, profile=profile, glob=glob, run_seed=run_seed)
    alone = plan_of(made if logits is None else with_recorded(made, logits), check, case)
    if alone is None:
        raise click.BadParameter(f"no draws are planned of case {case.id}", param_hint="CASE")
    outcome = run(subject, alone, ReportWriter(None))
    about = f"case {case.id} of {check.name} on {subject.spec}, run seed {run_seed}"
    click.echo(f"{about}: {outcome.draws:,} draws")
    for decision in outcome.decisions:
        click.echo("\n".join([*failure_lines(decision), *_evidence_lines(decision)]))
    for error in outcome.errors:
        click.echo(f"harness error: {error}", err=True)
    return exit_code(outcome.decisions, outcome.errors)


def _evidence_lines(decision: Decision) -> Iterator[str]:
    """Say what the draws show of a clause that they do not break."""
    verdict = decision.verdict
    if verdict.status is Status.FAIL:
        return
    evidence = ""
    if isinstance(verdict.certainty, LogE):
        reached, needed = verdict.certainty.log_e, verdict.certainty.log_threshold
        tens = math.log(10)
        evidence = f": e-value 10^{reached / tens:.1f}, 10^{needed / tens:.1f} needed"
    yield f"{verdict.clause}: nothing wrong was seen{evidence}"
    if decision.reason:
        yield f"  {decision.reason}"


def recorded(folder: Path | None, case: str) -> tuple[Header | None, Recorded | None]:
    """Return a case of the latest report that has it, with the header of that report.

    Args:
        folder: of the report; None looks at all of `reports/runs`.
        case: its id, or how that begins.

    """
    for report in _reports(folder):
        header, record = _find(report, case)
        if header is not None and record is not None:
            return header, record
    return None, None


def _reports(folder: Path | None) -> list[Path]:
    """Return report files, the latest first."""
    found = _RUNS.glob(f"*/{_REPORT}") if folder is None else folder.glob(_REPORT)
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _find(report: Path, case: str) -> tuple[Header | None, Recorded | None]:
    header, pairs = None, None
    for record in read_report(report):
        if isinstance(record, Header):
            header = record
        if isinstance(record, Recorded) and record.id.startswith(case):
            if not isinstance(record, PairsRecord):
                return header, record
            # two pairings may ask one case of other rows: the one that says most is meant
            pairs = record if pairs is None or record.log_e > pairs.log_e else pairs
    return header, pairs

"""``refsampler merge``: judge the shards of one plan as one run."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from refsampler.conformance.commands.options import (
    expectations_option,
    known_failures,
    logits_option,
)
from refsampler.conformance.commands.verdict_table import markdown, show
from refsampler.conformance.expectations import (
    apply_expectations,
    expected_exit_code,
    expected_headline,
    stale_entries,
)
from refsampler.conformance.merge import CannotMerge, judge_shards, read_shards
from refsampler.conformance.recorded import RecordingError, add_folder
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.reporting.github import tell_github
from refsampler.conformance.reporting.records import footer_record, verdict_record

__all__ = ["merge"]

_REPORT = "report.jsonl"


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the merged report.",
)
@logits_option
@expectations_option
def merge(
    folders: tuple[Path, ...], folder: Path, logits: Path | None, expectations_file: Path | None
) -> None:
    """Judge the shards in FOLDERS as one run; each holds the report of `check --shard i/n`.

    Only shards of one plan are merged: same backend, seed, profile and clauses, every shard once.  A
    missing or unfinished shard leaves its clauses INCONCLUSIVE.  The backend is not needed.  Exit
    status as of `check`, and so is what GitHub Actions is told.
    """
    if logits is not None:
        add_folder(logits)
    known = known_failures(expectations_file, update=False)
    try:
        shards = read_shards([one / _REPORT for one in folders], logits)
    except RecordingError as error:
        raise click.BadParameter(str(error), param_hint="--logits") from error
    except (CannotMerge, OSError, msgspec.DecodeError) as error:
        raise click.BadParameter(str(error), param_hint="FOLDERS") from error
    folder.mkdir(parents=True, exist_ok=True)
    with ReportWriter((folder / _REPORT).open("wb")) as writer:
        writer.write(msgspec.structs.replace(shards.header, shard=None))
        outcome = judge_shards(shards, writer)
        name = shards.plan.capabilities.name
        outcome = replace(outcome, decisions=apply_expectations(outcome.decisions, known, name))
        code = expected_exit_code(outcome.decisions, outcome.errors)
        line = expected_headline(outcome.decisions, code)
        for decision in outcome.decisions:
            writer.write(verdict_record(decision))
        writer.write(footer_record(outcome, code, line))
    page = markdown(outcome.decisions, f"{shards.header.backend}: verdicts", line)
    (folder / "verdicts.md").write_text(page, encoding="utf-8")
    show(outcome.decisions, line)
    for told in tell_github(os.environ, page, outcome.decisions, code):
        click.echo(told)
    for stale in stale_entries(outcome.decisions, known, name):
        click.echo(f"stale expectation of {stale.entry.clause}: {stale.why}", err=True)
    if shards.missing:
        click.echo(f"shards without a report: {', '.join(map(str, shards.missing))}", err=True)
    sys.exit(code)

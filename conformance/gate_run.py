"""One run of a gate: from a backend's name to its results and its report."""

from __future__ import annotations

import traceback
from pathlib import Path

from refsampler.backends.protocol import Subject
from refsampler.backends.registry import BackendBroken, BackendNotFound, resolve
from refsampler.conformance.commands.verdict_table import markdown
from refsampler.conformance.decisions import exit_code, headline
from refsampler.conformance.gate import REPORTS, Wanted
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.reporting.records import (
    footer_record,
    header_record,
    verdict_record,
)
from refsampler.conformance.reporting.results import clause_results
from refsampler.conformance.results import RunResult
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread

__all__ = ["run_backend"]


def run_backend(wanted: Wanted, profile: str, run_seed: int, folder: Path) -> RunResult:
    """Plan, run and report; whatever goes wrong is a result too.

    Args:
        wanted: what to run.
        profile: quick or full.
        run_seed: feeds cases and draws.
        folder: of the report.

    """
    try:
        subject = resolve(wanted.backend) if wanted.subject is None else wanted.subject
        with one_thread():
            return _run(wanted, subject, profile, run_seed, folder)
    except (BackendNotFound, BackendBroken) as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001 - every test of the run says that the harness broke
        failure = f"harness error: {error}\n{''.join(traceback.format_exception(error))}"
    return RunResult(backend=wanted.backend, run_seed=run_seed, failure=failure)


def _run(wanted: Wanted, subject: Subject, profile: str, run_seed: int, folder: Path) -> RunResult:
    plan = make_plan(subject.capabilities, profile=profile, glob=wanted.glob, run_seed=run_seed)
    folder.mkdir(parents=True, exist_ok=True)
    with ReportWriter((folder / "report.jsonl").open("wb")) as writer:
        writer.write(header_record(plan, wanted.backend, None))
        outcome = run(OpenSubject(subject, run_seed), plan, writer)
        code = exit_code(outcome.decisions, outcome.errors)
        line = headline(outcome.decisions, code)
        for decision in outcome.decisions:
            writer.write(verdict_record(decision))
        writer.write(footer_record(outcome, code, line))
    page = markdown(outcome.decisions, f"{subject.capabilities.name}: verdicts", line)
    (folder / "verdicts.md").write_text(page, encoding="utf-8")
    options = "" if wanted.named else " --backend MODULE:ATTRIBUTE"
    options += "" if folder.parent == REPORTS else f" --report {folder}"
    results = clause_results(outcome.decisions, len(plan.standings), options)
    return RunResult(
        backend=wanted.backend,
        run_seed=run_seed,
        headline=line,
        report=str(folder),
        clauses=results if wanted.glob != "*" else results[:-1],
    )

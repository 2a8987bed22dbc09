"""One run of a gate: from a backend's name to its results and its report."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from refsampler.backends.registry import BackendBroken, BackendNotFound
from refsampler.clauses import ClauseId
from refsampler.conformance.commands.verdict_table import markdown
from refsampler.conformance.expectations import (
    Expectation,
    apply_expectations,
    expected_exit_code,
    expected_headline,
    stale_entries,
)
from refsampler.conformance.gate import REPORTS, Wanted
from refsampler.conformance.isolation import AskedSubject, GuardedSubject, guarded
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.reporting.records import (
    footer_record,
    header_record,
    verdict_record,
)
from refsampler.conformance.reporting.results import clause_results
from refsampler.conformance.reproduce import reproduce
from refsampler.conformance.results import RunResult
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread

__all__ = ["run_backend"]


def run_backend(
    wanted: Wanted,
    profile: str,
    run_seed: int,
    folder: Path,
    *,
    in_process: bool = False,
    known: Sequence[Expectation] = (),
) -> RunResult:
    """Plan, run and report; whatever goes wrong is a result too.

    Args:
        wanted: what to run.
        profile: quick or full.
        run_seed: feeds cases and draws.
        folder: of the report.
        in_process: a named backend is asked here whatever it is.
        known: failures that are expected.

    """
    try:
        with one_thread(), _opened(wanted, run_seed, in_process=in_process) as subject:
            return _run(wanted, subject, profile, run_seed, folder, known)
    except (BackendNotFound, BackendBroken) as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001 - every test of the run says that the harness broke
        failure = f"harness error: {error}\n{''.join(traceback.format_exception(error))}"
    return RunResult(backend=wanted.backend, run_seed=run_seed, failure=failure)


@contextmanager
def _opened(wanted: Wanted, run_seed: int, *, in_process: bool) -> Iterator[AskedSubject]:
    """Open what is to be asked: an object that was handed over here, a name as `check` does."""
    if wanted.subject is not None and not wanted.named:
        yield OpenSubject(wanted.subject, run_seed)
        return
    isolate = False if in_process or wanted.subject is not None else None
    with guarded(wanted.backend, run_seed, isolate=isolate) as subject:
        yield subject


def _run(
    wanted: Wanted,
    subject: AskedSubject,
    profile: str,
    run_seed: int,
    folder: Path,
    known: Sequence[Expectation],
) -> RunResult:
    name = subject.capabilities.name
    scripts: dict[ClauseId, str] = {}
    plan = make_plan(subject.capabilities, profile=profile, glob=wanted.glob, run_seed=run_seed)
    folder.mkdir(parents=True, exist_ok=True)
    with ReportWriter((folder / "report.jsonl").open("wb")) as writer:
        writer.write(header_record(plan, wanted.backend, None))
        outcome = run(subject, plan, writer, stop=lambda: getattr(subject, "spent", False))
        decisions = apply_expectations(outcome.decisions, known, name)
        outcome = replace(outcome, decisions=decisions)
        if isinstance(subject, GuardedSubject):
            report = folder / "report.jsonl"
            decisions, made_again = reproduce(subject, plan, report, writer, decisions)
            scripts = {one.clause: str(one.script) for one in made_again if one.script is not None}
            outcome = replace(outcome, decisions=decisions)
        code = expected_exit_code(decisions, outcome.errors)
        line = expected_headline(decisions, code)
        for decision in decisions:
            writer.write(verdict_record(decision))
        writer.write(footer_record(outcome, code, line))
    (folder / "verdicts.md").write_text(markdown(decisions, f"{name}: verdicts", line), "utf-8")
    options = "" if wanted.named else " --backend MODULE:ATTRIBUTE"
    options += "" if folder.parent == REPORTS else f" --report {folder}"
    stale = {one.entry.clause: one.why for one in stale_entries(decisions, known, name)}
    results = tuple(
        msgspec.structs.replace(one, stale=stale.get(one.clause, ""))
        for one in clause_results(decisions, len(plan.standings), options, scripts)
    )
    return RunResult(
        backend=wanted.backend,
        run_seed=run_seed,
        headline=line,
        report=str(folder),
        clauses=results if wanted.glob != "*" else results[:-1],
    )

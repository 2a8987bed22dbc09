"""Jobs: further processes of one run, each of which asks a portion of the plan on a core of its own.

They are forked once the plan is made: it holds exact laws of many megabytes, which each would have to
work out anew otherwise.  Nothing of torch's runs in several threads by then, and each opens the
backend for itself.  Records go to a file a process, beside the report; the run's own process books
them when it has asked its own portion, and decides alone.  No verdict depends on who asked what: every
case has seeds of its own, and the laws of another process count as if they had come last.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from refsampler.clauses import ClauseId
from refsampler.conformance.costs import total_seconds
from refsampler.conformance.finished import gather
from refsampler.conformance.isolation import Limits, guarded
from refsampler.conformance.plan import Plan
from refsampler.conformance.portions import Portion
from refsampler.conformance.records import PartRecord, Record, ReportWriter
from refsampler.conformance.resume import finish, records_so_far, set_aside
from refsampler.conformance.runner import Beside, run

__all__ = ["Opening", "Workers", "default_jobs", "forget_parts", "workers"]

_WORTH_SECONDS: Final = 20.0
_MOST: Final = 2


@dataclass(frozen=True, slots=True)
class Opening:
    """How a process opens the backend.

    Attributes:
        spec: of the backend.
        run_seed: feeds the default generator of every call.
        isolate: whether everything is asked in a child; None is what suits the backend.
        limits: of a call in the child.

    """

    spec: str
    run_seed: int
    isolate: bool | None
    limits: Limits


def default_jobs(plan: Plan) -> int:
    """Return how many processes a run is worth: two on two cores, if it takes long and uses no GPU."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    worth = plan.capabilities.device == "cpu" and total_seconds(plan) >= _WORTH_SECONDS
    return min(_MOST, cores) if worth else 1


def forget_parts(report: Path) -> None:
    """Remove the files of other processes."""
    for path in report.parent.glob(f"{report.name}.part*"):
        path.unlink()


class Workers:
    """The other processes of a run.

    Args:
        processes: with the file that each writes.

    """

    def __init__(self, processes: Sequence[tuple[BaseProcess, Path]]) -> None:
        self._processes = tuple(processes)

    def wait(self) -> Beside:
        """Wait until all have ended, and return what they did; one that died did less."""
        records: list[Record] = []
        errors: list[str] = []
        unjudged: frozenset[ClauseId] = frozenset()
        for process, path in self._processes:
            process.join()
            found = records_so_far(path)
            ends = [one for one in found if isinstance(one, PartRecord)]
            records += found
            if ends:
                errors += ends[-1].errors
                unjudged |= {ClauseId(clause) for clause in ends[-1].unjudged}
            else:
                errors.append(f"a process of this run ended early, status {process.exitcode}")
        return Beside(gather(records, latched=False), tuple(errors), unjudged)

    def end(self) -> None:
        """End those that still run."""
        for process, _ in self._processes:
            process.terminate()
            process.join()


@contextmanager
def workers(
    plan: Plan, portions: Sequence[Portion], opening: Opening, report: Path, deadline: float
) -> Iterator[Workers]:
    """Start one process a portion, and end them at the end.

    Args:
        plan: of the run.
        portions: of the other processes.
        opening: of the backend.
        report: of the run; each process goes on in its file beside it.
        deadline: of the monotonic clock, after which no new case starts.

    """
    context = multiprocessing.get_context("fork")
    started = []
    for number, portion in enumerate(portions, start=2):
        path = report.with_name(f"{report.name}.part{number}")
        arguments = (plan, portion, opening, path, deadline, os.getpid())
        process = context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # Python counts the idle threads of numpy's linear algebra, which survives a fork
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        started.append((process, path))
    at_work = Workers(started)
    try:
        yield at_work
    finally:
        at_work.end()


def _work(
    plan: Plan,
    portion: Portion,
    opening: Opening,
    path: Path,
    deadline: float,
    parent: int,
) -> None:
    """Ask a portion of a plan; what an earlier process finished is not asked again."""
    finished = gather(records_so_far(path))
    set_aside(path, keep=True)
    with ReportWriter(path.open("wb")) as writer:
        try:
            with guarded(
                opening.spec, opening.run_seed, isolate=opening.isolate, limits=opening.limits
            ) as subject:
                outcome = run(
                    subject,
                    plan,
                    writer,
                    time_budget=max(0.0, deadline - time.monotonic()),
                    stop=lambda: subject.spent or os.getppid() != parent,
                    finished=finished,
                    share=portion,
                    minimise=False,
                )
        except Exception as error:  # noqa: BLE001 - the run's own process tells of it
            text = "".join(traceback.format_exception(error))
            writer.write(PartRecord(errors=(f"harness error: {error}\n{text}",)))
            return
        writer.write(PartRecord(errors=outcome.errors, unjudged=tuple(sorted(outcome.unjudged))))
    finish(path)

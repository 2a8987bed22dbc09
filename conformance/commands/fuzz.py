"""``refsampler fuzz``: batches and lifecycles that nobody designed, until something breaks or time is up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from refsampler.conformance.collector import sparing_what_exists
from refsampler.conformance.commands.fuzz_shards import fuzz_shards, machines_at
from refsampler.conformance.commands.opening import isolation_options, limits_of, opened
from refsampler.conformance.commands.options import run_seed_of, seed_option
from refsampler.conformance.fuzz.found import Found, FoundBook
from refsampler.conformance.fuzz.law import LOG_THRESHOLD, LawEvidence
from refsampler.conformance.fuzz.loop import Progress
from refsampler.conformance.fuzz.loop import fuzz as run_fuzz
from refsampler.conformance.fuzz.report import footer, header, line, verdicts
from refsampler.conformance.fuzz.shard import REPORT, Shard
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode

__all__ = ["exit_code", "fuzz"]

_RUNS: Final = Path("reports") / "runs"
_EVERY_S: Final = {True: 0.5, False: 10.0}
"""Seconds from one line of progress to the next, on a terminal and elsewhere."""


@click.command()
@click.argument("backend")
@seed_option
@click.option(
    "--time-budget", type=click.FloatRange(min=0), help="Seconds; without it until interrupted."
)
@click.option("--until-failure", is_flag=True, help="Stop at the first clause that is broken.")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Folder of the report.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes, each with a shard of its own and a report of it; one that dies stops no other."
    " 1 without; with --ray one for each CPU of the cluster, or GPU for a backend on CUDA.",
)
@click.option(
    "--ray",
    "address",
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
    help="The same shards on a Ray cluster that is there: at $RAY_ADDRESS, or the one started last"
    " here, without ADDRESS. Worker processes and nodes may die, this driver and the head may not.",
)
@isolation_options
def fuzz(
    backend: str,
    seed: int | None,
    time_budget: float | None,
    until_failure: bool,
    folder: Path | None,
    workers: int | None,
    address: str | None,
    isolate: bool | None,
    timeout_s: float,
    memory_gib: float,
) -> None:
    """Fuzz BACKEND: unlike rows, pairs of features that meet, the same rows in other surroundings.

    Every finding is on disk at once, then made smaller, and `refsampler replay ID` shows it again.
    False alarms are bounded by 1e-9 however long the run: supports, seeds and logprobs are compared
    exactly, what is nearly certain is asked until its share of that bound is spent, and the law is
    judged by e-values that are valid at any time.

    Exit status: 0 nothing was found, 1 a clause is broken, 2 usage, 4 could not be opened or harness
    error, 5 nothing ran.
    """
    run_seed = run_seed_of(seed)
    if address is not None or (workers or 1) > 1:
        with machines_at(address) as machines:
            with opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject:
                first = header(subject.capabilities, backend, run_seed, time_budget)
                where = _folder(subject, run_seed) if folder is None else folder
            limits = limits_of(timeout_s, memory_gib)
            count = workers or machines.room(first.device)
            run = Shard(0, count, where, backend, run_seed, time_budget, isolate, limits)
            sys.exit(fuzz_shards(run, first, machines, until_failure=until_failure))
    with (
        one_thread(),
        sparing_what_exists(),
        opened(backend, run_seed, isolate, timeout_s, memory_gib) as subject,
    ):
        where = _folder(subject, run_seed) if folder is None else folder
        where.mkdir(parents=True, exist_ok=True)
        click.echo(f"fuzzing {backend} with run seed {run_seed}; report in {where}")
        with ReportWriter((where / REPORT).open("wb")) as writer:
            writer.write(header(subject.capabilities, backend, run_seed, time_budget))
            book = FoundBook(writer, subject, tell=_show)
            law = LawEvidence(subject.capabilities)
            started = time.monotonic()

            def stop(_progress: Progress) -> bool:
                late = time_budget is not None and time.monotonic() - started >= time_budget
                broken = until_failure and (bool(book.causes) or law.failed)
                return late or broken or subject.spent

            try:
                done = run_fuzz(subject, run_seed, book, stop=stop, tell=_live(book), law=law)
            except KeyboardInterrupt:
                click.echo("interrupted; what was found is in the report", err=True)
                done = None
            code = exit_code(book, law, done)
            for verdict in verdicts(book, law):
                writer.write(verdict)
            words = "interrupted" if done is None else line(done)
            writer.write(footer(code, words, done, time.monotonic() - started))
    _summary(book, law, done)
    sys.exit(code)


def _folder(subject: GuardedSubject, run_seed: int) -> Path:
    """Return a folder of its own for each seed: what was found can be replayed for ever."""
    return _RUNS / f"fuzz-{subject.capabilities.name}-{run_seed}"


def exit_code(book: FoundBook, law: LawEvidence, done: Progress | None) -> int:
    """Return what the run says to a CI job."""
    if book.causes or law.failed:
        return ExitCode.DOES_NOT
    if done is not None and done.errors:
        return ExitCode.HARNESS
    if done is not None and not done.batches:
        return ExitCode.NOTHING_RAN
    return ExitCode.CONFORMS


def _live(book: FoundBook) -> Callable[[Progress], None]:
    """Return what prints one line now and then: speed, coverage, strongest evidence."""
    terminal = sys.stderr.isatty()
    last = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _EVERY_S[terminal]:
            return
        last = now
        click.echo(f"{line(progress)}, {len(book.causes)} found", err=True, nl=not terminal)
        if terminal:
            click.echo("\r", err=True, nl=False)

    return tell


def _show(found: Found) -> None:
    """Print a new finding."""
    case = found.case
    asks = ", ".join(found.cause.asks) or "nothing in particular"
    rows = len(case.requests)
    others = [one for one in found.finding.candidates if one != found.cause.clause]
    also = f", or else {', '.join(others)}," if others else ""
    click.echo(f"FAIL {found.cause.clause}{also} after {found.seconds:.1f} s ({asks})")
    click.echo(f"  expected  {found.finding.expected}")
    click.echo(f"  seen      {found.finding.seen}")
    again = "" if found.shrunk else "; it did not show again when asked once more"
    click.echo(f"  case      {rows} row{'s' * (rows != 1)}, V = {case.logits.vocab}{again}")
    click.echo(f"  replay    refsampler replay {case.id}")


def _summary(book: FoundBook, law: LawEvidence, done: Progress | None) -> None:
    if done is not None:
        click.echo(line(done))
        for error in done.errors[:3]:
            click.echo(f"harness error: {error}", err=True)
    if law.failed:
        click.echo(f"FAIL draw.law: {law.best}, over {law.draws:,} rows")
    elif law.draws:
        tens = 2.302585
        click.echo(
            f"draw.law: e = 10^{law.largest / tens:.1f} over {law.draws:,} rows,"
            f" 10^{LOG_THRESHOLD / tens:.1f} needed"
        )
    for cause, count in book.seen.items():
        click.echo(f"{cause.clause}: seen {count} times ({', '.join(cause.asks)})")
    if not book.causes and not law.failed:
        click.echo("nothing wrong was seen")

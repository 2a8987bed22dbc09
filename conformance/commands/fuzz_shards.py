"""``refsampler fuzz --workers`` and ``--ray``: shards that were declared together, with one report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import click

from refsampler.conformance.fuzz.cluster import connected
from refsampler.conformance.fuzz.crew import Crew
from refsampler.conformance.fuzz.law import LOG_THRESHOLD
from refsampler.conformance.fuzz.loop import Progress
from refsampler.conformance.fuzz.report import footer, line
from refsampler.conformance.fuzz.shard import (
    REPORT,
    AtWork,
    Broken,
    Machines,
    Shard,
    declared,
    read_told,
)
from refsampler.conformance.fuzz.workers import ThisMachine
from refsampler.conformance.records import Header, ReportWriter
from refsampler.conformance.verdict import ExitCode

__all__ = ["fuzz_shards", "machines_at"]

_EVERY_S: Final = {True: 1.0, False: 10.0}
_TENS: Final = 2.302585


@contextmanager
def machines_at(address: str | None) -> Iterator[Machines]:
    """Connect to the Ray cluster at an address, or end the command; None is this machine."""
    if address is None:
        yield ThisMachine()
        return
    with ExitStack() as stack:
        try:
            cluster = connected(address, lambda words: click.echo(words, err=True))
            machines = stack.enter_context(cluster)
        except ModuleNotFoundError as error:
            raise click.UsageError(f"--ray: {error}") from error
        except ConnectionError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(ExitCode.HARNESS)
        yield machines


def fuzz_shards(run: Shard, first: Header, machines: Machines, *, until_failure: bool) -> int:
    """Run all shards to their end, write the report of the whole, and return the exit status.

    Args:
        run: stands for all of them, with the run's own seed and folder.
        first: line of the report.
        machines: where they are started.
        until_failure: stop at the first clause that is broken.

    """
    shards = declared(run)

    def show(one: Broken) -> None:
        click.echo(f"FAIL {one.clause} ({', '.join(one.asks) or 'nothing in particular'})")
        click.echo(f"  expected  {one.expected}")
        click.echo(f"  seen      {one.seen}")
        click.echo(f"  replay    {crew.replay(one)}")

    crew = Crew(shards, show)
    run.folder.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        # a run of the same seed may have been here, and a shard may die before it writes anything
        (shard.folder / REPORT).unlink(missing_ok=True)
    click.echo(f"{len(shards)} shards, each with a report in {run.folder}.N")
    started = time.monotonic()
    with ReportWriter((run.folder / REPORT).open("wb")) as writer:
        writer.write(first)
        with machines.working(shards, first) as at_work:
            _hear(at_work, crew, started, until_failure=until_failure)
            dead = at_work.dead()
        crew.salvage()
        seconds = time.monotonic() - started
        done = crew.progress(seconds)
        code = _exit_code(crew, done, lost=bool(dead))
        for verdict in crew.verdicts():
            writer.write(verdict)
        writer.write(footer(code, line(done), done, seconds, dead))
    _summary(crew, done, dead, len(shards))
    return code


def _hear(at_work: AtWork, crew: Crew, started: float, *, until_failure: bool) -> None:
    """Take what the shards tell until they end."""
    terminal, last = sys.stderr.isatty(), time.monotonic()
    try:
        for message in at_work.messages():
            if message:
                crew.take(read_told(message))
            if until_failure and crew.failed:
                return
            now = time.monotonic()
            if now - last >= _EVERY_S[terminal]:
                last = now
                state = line(crew.progress(now - started))
                click.echo(f"{state}, {len(crew.causes)} found", err=True, nl=not terminal)
                click.echo("\r" * terminal, err=True, nl=False)
    except KeyboardInterrupt:
        click.echo("interrupted; what was found is in the reports", err=True)


def _exit_code(crew: Crew, done: Progress, *, lost: bool) -> int:
    if crew.failed:
        return ExitCode.DOES_NOT
    if done.errors or lost:
        return ExitCode.HARNESS
    return ExitCode.CONFORMS if done.batches else ExitCode.NOTHING_RAN


def _summary(crew: Crew, done: Progress, dead: Sequence[str], shards: int) -> None:
    click.echo(line(done))
    for words in dead:
        click.echo(f"{words}; what it told before counts", err=True)
    for error in done.errors[:3]:
        click.echo(f"harness error: {error}", err=True)
    click.echo(
        f"{'FAIL ' if crew.law_failed else ''}draw.law: e = 10^{crew.largest / _TENS:.1f} over"
        f" {crew.law_draws:,} rows of {shards} shards, 10^{LOG_THRESHOLD / _TENS:.1f} needed"
    )
    for (clause, asks), count in crew.seen.items():
        click.echo(f"{clause}: found in {count} shards ({', '.join(asks)})")
    if not crew.failed:
        click.echo("nothing wrong was seen")

"""``refsampler bench``: how fast backends are, side by side, beside reading the logits once."""

from __future__ import annotations

import itertools
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
import torch

from refsampler import __version__
from refsampler.backends.cpu import CpuKernel
from refsampler.backends.protocol import Subject
from refsampler.backends.registry import BackendBroken, BackendNotFound, resolve
from refsampler.conformance.bench.contestants import Floor
from refsampler.conformance.bench.measure import Effort, Measured, measure
from refsampler.conformance.bench.workload import (
    BATCHES,
    MODES,
    VOCABS,
    Cache,
    Cell,
    RowKind,
    parameters,
)
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.verdict import ExitCode

__all__ = ["bench"]


@dataclass(frozen=True, slots=True)
class _Report:
    """A run: where, of what, and every measurement."""

    started: str
    refsampler: str
    torch: str
    python: str
    machine: str
    cores: int
    load: float
    threads: int
    floor: str
    backends: dict[str, str]
    ready_s: dict[str, float]
    measured: list[Measured]


@click.command()
@click.argument("backends", nargs=-1, required=True)
@click.option("--batch", type=click.IntRange(1), multiple=True, default=BATCHES, show_default=True)
@click.option("--vocab", type=click.IntRange(1), multiple=True, default=VOCABS, show_default=True)
@click.option(
    "--mode",
    multiple=True,
    default=MODES,
    show_default=True,
    help="T, or some of k, p, min_p and T with values; the temperature is 0.8 if it is not given.",
)
@click.option(
    "--rows",
    type=click.Choice([str(kind) for kind in RowKind]),
    multiple=True,
    default=[str(kind) for kind in RowKind],
    show_default=True,
)
@click.option(
    "--cache",
    type=click.Choice([str(one) for one in Cache]),
    multiple=True,
    default=["dram"],
    show_default=True,
    help="dram: rotating through more rows than a cache holds; read: read once just before.",
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--repeats", type=click.IntRange(3), default=15, show_default=True)
@click.option(
    "--cell-seconds",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds of a cell after which no new turn starts, beyond the third.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="JSON file.")
@format_option
def bench(
    backends: tuple[str, ...],
    batch: tuple[int, ...],
    vocab: tuple[int, ...],
    mode: tuple[str, ...],
    rows: tuple[str, ...],
    cache: tuple[str, ...],
    threads: int,
    repeats: int,
    cell_seconds: float,
    output: Path | None,
    form: Format,
) -> None:
    """Time BACKENDS by turns in one run, with the memory floor as a row of its own.

    A backend that cannot be opened is left out with its reason; exit status 4 if none is left.
    """
    for one in mode:
        try:
            parameters(one)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--mode") from error
    subjects = _opened(backends)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        floor = Floor(subjects[0][1].capabilities.device)
        ready_s = {
            name: subject.prepare().seconds
            for name, subject in subjects
            if isinstance(subject, CpuKernel)
        }
        measured: list[Measured] = []
        grid = itertools.product(vocab, batch, map(RowKind, rows), mode, map(Cache, cache))
        for v, b, kind, asked, where in grid:
            cell = Cell(batch=b, vocab=v, mode=asked, rows=kind, cache=where)
            found = measure(cell, subjects, floor, Effort(repeats, cell_seconds))
            measured += found
            if form == "pretty" and sys.stderr.isatty():
                click.echo(f"{len(measured)} rows measured\r", err=True, nl=False)
    finally:
        torch.set_num_threads(before)
    report = _report(subjects, floor, ready_s, threads, measured)
    encoded = msgspec.json.encode(report, order="deterministic")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    if form == "json":
        click.echo(encoded)
        return
    _show(report, markdown=form == "markdown")


def _opened(names: Sequence[str]) -> list[tuple[str, Subject]]:
    """Open what can be opened, and say why the rest cannot."""
    found: list[tuple[str, Subject]] = []
    for name in names:
        try:
            found.append((name, resolve(name)))
        except (BackendNotFound, BackendBroken) as error:
            click.echo(f"left out: {error}", err=True)
    if not found:
        sys.exit(ExitCode.HARNESS)
    if len({torch.device(subject.capabilities.device).type for _, subject in found}) > 1:
        raise click.UsageError("the backends are on different devices: one run has one device")
    return found


def _report(
    subjects: Sequence[tuple[str, Subject]],
    floor: Floor,
    ready_s: dict[str, float],
    threads: int,
    measured: list[Measured],
) -> _Report:
    return _Report(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        refsampler=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=_machine(),
        cores=os.cpu_count() or 0,
        load=os.getloadavg()[0],
        threads=threads,
        floor=floor.name,
        backends={name: subject.capabilities.version for name, subject in subjects},
        ready_s=ready_s,
        measured=measured,
    )


def _machine() -> str:
    """Return the processor's name and the sizes of its caches, where Linux tells them."""
    words = [platform.system(), platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        words += [line.partition(": ")[2] for line in lines if line.startswith("model name")][:1]
        for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
            level, size = ((index / part).read_text("utf-8").strip() for part in ("level", "size"))
            words.append(f"L{level} {size}")
    except OSError:
        pass
    return " ".join(words)


def _show(report: _Report, *, markdown: bool) -> None:
    """Show the table and what it was measured on."""
    columns = (
        "V",
        "B",
        "rows",
        "mode",
        "cache",
        "sampler",
        "us/row",
        "quartiles",
        "tokens/s",
        "tokens/core-s",
        "of floor",
        "best us/row",
        "of floor",
    )
    echo_table(columns, [_cells(one) for one in report.measured], markdown=markdown)
    ready = ", ".join(f"{name} was ready in {s:.2f} s" for name, s in report.ready_s.items())
    click.echo(
        f"\n{report.machine}; {report.threads} of {report.cores} cores, load {report.load:.2f};"
        f" floor: {report.floor}, torch {report.torch}{'; ' if ready else ''}{ready}"
    )


def _cells(one: Measured) -> tuple[str, ...]:
    return (
        str(one.cell.vocab),
        str(one.cell.batch),
        one.cell.rows,
        one.cell.mode,
        one.cell.cache,
        one.name,
        f"{one.row_us:.2f}",
        f"{one.low_us:.2f}-{one.high_us:.2f}",
        f"{one.tokens_per_s:,.0f}",
        f"{one.tokens_per_core_s:,.0f}",
        f"{one.of_floor:.0%}",
        f"{one.best_us:.2f}",
        f"{one.best_of_floor:.0%}",
    )

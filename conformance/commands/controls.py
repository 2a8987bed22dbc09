"""``refsampler audit --controls``: right samplers, which the suite must leave green."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import click
import msgspec
from scipy.stats import beta

from refsampler.conformance.audit.controls import (
    BACKENDS,
    BY_TURNS,
    DRAWN_RUNS,
    Bench,
    Control,
    ControlRun,
    ask_controls,
    controls_of,
    lacking,
)
from refsampler.conformance.audit.pool import keep_freed_memory
from refsampler.conformance.commands.evidence_tables import (
    Made,
    made_by,
    table_head,
    table_lines,
    write_table,
)
from refsampler.conformance.commands.tables import echo_table

__all__ = ["print_controls"]

_COLUMNS = (
    "control",
    "runs",
    "drawn",
    "cases",
    "ids drawn",
    "ids simulated",
    "seconds",
    "false alarms",
    "errors",
)
_LEVEL: Final = 0.95


class _ControlTable(msgspec.Struct, frozen=True):
    """Every run of every control."""

    made: Made
    profile: str
    wanted: int
    runs: tuple[ControlRun, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked for.

    Attributes:
        runs: run seeds.
        profile: quick or full.
        run_seed: the first.
        glob: of the controls' names.
        workers: processes.

    """

    runs: int
    profile: str
    run_seed: int
    glob: str
    workers: int

    @property
    def controls(self) -> tuple[tuple[int, tuple[Control, ...]], ...]:
        """The controls of each run seed."""
        return tuple(
            (self.run_seed + number, controls_of(number, self.glob)) for number in range(self.runs)
        )

    @property
    def command(self) -> str:
        """The command that asks for it."""
        named = "" if self.glob == "*" else f" --control '{self.glob}'"
        about = f"--profile {self.profile} --runs {self.runs} --seed {self.run_seed}{named}"
        return f"refsampler audit --controls {about} --workers {self.workers}"


def print_controls(
    runs: int, profile: str, run_seed: int, workers: int, out: Path, *, glob: str = "*"
) -> None:
    """Ask every control under many run seeds, print and write what was reported; exit 1 if anything.

    Args:
        runs: run seeds, from `run_seed` upwards.
        profile: quick or full.
        run_seed: the first.
        workers: processes.
        out: folder of the tables; what is known there is not asked again.
        glob: shell pattern of the controls' names.

    """
    asked = _Wanted(runs, profile, run_seed, glob, workers)
    if not any(controls for _, controls in asked.controls):
        raise click.UsageError(f"--control {glob!r} names no control that is installed")
    log = out / f"controls-{profile}.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    known = _read(log)
    jobs = [
        (seed, left)
        for seed, controls in asked.controls
        if (left := tuple(one for one in controls if not _is_known(one, seed, known)))
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=keep_freed_memory) as pool:
        asking = {pool.submit(_ask_and_keep, left, seed, profile, log): seed for seed, left in jobs}
        for done in as_completed(asking):
            error = done.exception()
            end = "is done" if error is None else f"ended: {type(error).__name__}: {error}"
            click.echo(f"seed {asking[done]} {end}", err=True)
            _write(out, asked, _found(asked, log))
    found = _found(asked, log)
    _write(out, asked, found)
    click.echo(_head(asked, found))
    echo_table(_COLUMNS, _lines(found))
    if any(one.failed or one.errors for one in found) or len(found) < _count(asked):
        raise SystemExit(1)


def _ask_and_keep(controls: tuple[Control, ...], run_seed: int, profile: str, log: Path) -> None:
    """Ask the controls of one seed; each run is on disk before the next begins."""

    def keep(run: ControlRun) -> None:
        with log.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")

    ask_controls(controls, run_seed, profile, bench=_bench(), tell=keep)


@cache
def _bench() -> Bench:
    """Return what all runs of this process share."""
    return Bench()


def _read(log: Path) -> tuple[ControlRun, ...]:
    """Return what is known; a line that was cut off is not."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return tuple(msgspec.json.decode(line, type=ControlRun) for line in lines)


def _is_known(control: Control, run_seed: int, known: Sequence[ControlRun]) -> bool:
    """Whether the control was asked this or more under a run seed."""
    return any(
        (one.control, one.run_seed) == (control.name, run_seed)
        and one.drawn >= control.drawn
        and {*one.left_out} <= {*control.left_out}
        for one in known
    )


def _found(asked: _Wanted, log: Path) -> tuple[ControlRun, ...]:
    """Return one run of each control under each seed, where there is one."""
    known = _read(log)
    return tuple(
        next(one for one in known if _is_known(control, seed, (one,)))
        for seed, controls in asked.controls
        for control in controls
        if _is_known(control, seed, known)
    )


def _count(asked: _Wanted) -> int:
    return sum(len(controls) for _, controls in asked.controls)


def _write(out: Path, asked: _Wanted, found: Sequence[ControlRun]) -> None:
    """Write the tables of what is known."""
    made = made_by(asked.command)
    text = [
        *table_head("Negative controls", made),
        _head(asked, found),
        "",
        *_words(asked, found),
        *table_lines(_COLUMNS, _lines(found)),
    ]
    table = _ControlTable(made, asked.profile, _count(asked), tuple(found))
    write_table(out, f"controls-{asked.profile}", table, "\n".join(text))


def _head(asked: _Wanted, found: Sequence[ControlRun]) -> str:
    false = sum(len(one.failed) for one in found)
    return f"{false} false alarms in {len(found)} of {_count(asked)} runs on right samplers."


def _lines(found: Sequence[ControlRun]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name in dict.fromkeys(one.control for one in found):
        runs = [one for one in found if one.control == name]
        failed = [f"{clause} (seed {one.run_seed})" for one in runs for clause in one.failed]
        simulated = sum(one.simulated for one in runs)
        lines.append(
            (
                name,
                f"{len(runs)}",
                f"{sum(one.drawn for one in runs)}",
                f"{sum(one.cases for one in runs):,}",
                f"{sum(one.draws for one in runs) - simulated:,}",
                f"{simulated:,}",
                f"{sum(one.seconds for one in runs):,.0f}",
                " ".join(failed) or "0",
                f"{sum(len(one.errors) for one in runs)}",
            )
        )
    return lines


def _words(asked: _Wanted, found: Sequence[ControlRun]) -> list[str]:
    """Say what was asked how often, what was simulated, and what the count shows."""
    failed = sum(bool(one.failed) for one in found)
    most = beta.ppf(_LEVEL, failed + 1, len(found) - failed) if failed < len(found) else 1.0
    missing = {one: lacking(one) for one in BACKENDS}
    absent = [f"{one} ({', '.join(packages)})" for one, packages in missing.items() if packages]
    revisions = sorted({one.revision or "unknown" for one in found})
    return [
        (
            f"*Drawn* are the first {DRAWN_RUNS} run seeds of each control and all runs of a real "
            "sampler: the sampler itself draws everything that a run asks for. In the other runs the "
            "ids of laws, mixed batches, tails and pairs are simulated: independent draws, by "
            "inversion, from the control's own law, which is its filters in float32 and a softmax in "
            "float64. They show how the evidence behaves on a right sampler, and nothing about the "
            "control's noise."
        ),
        "",
        (
            "Every exact and near-certain case is asked of the control itself in every run, those "
            f"generated from the run seed too, but for {' and '.join(f'`{one}`' for one in BY_TURNS)}: "
            f"after the first {DRAWN_RUNS} seeds one control a seed is asked these, by turns. Checks "
            "that need a second process are asked of the real samplers only."
        ),
        "",
        (
            f"Runs with a false alarm: fewer than {most:.2%} of all such runs, at {_LEVEL:.0%} "
            "(Clopper and Pearson, one-sided). That at most one run in 10^9 has one is proved clause "
            "by clause, and not measured here."
        ),
        "",
        *(["Not installed, so not asked: " + "; ".join(absent) + ".", ""] if absent else []),
        f"Seeds {asked.run_seed} to {asked.run_seed + asked.runs - 1}; suite {', '.join(revisions)}.",
        "",
    ]

"""``refsampler audit --controls``: right samplers, which the suite must leave green."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
import msgspec

from refsampler.conformance.audit.controls import ControlRun, ask_controls, controls_of
from refsampler.conformance.commands.evidence_tables import (
    Made,
    made_by,
    table_head,
    table_lines,
    write_table,
)
from refsampler.conformance.commands.tables import echo_table

__all__ = ["print_controls"]

_COLUMNS = ("control", "runs", "of them drawn", "cases", "draws", "false alarms", "errors")


class _ControlTable(msgspec.Struct, frozen=True):
    """Every run of every control."""

    made: Made
    profile: str
    runs: tuple[ControlRun, ...]


def print_controls(runs: int, profile: str, run_seed: int, workers: int, out: Path) -> None:
    """Ask every control under many run seeds, print and write what was reported; exit 1 if anything.

    Args:
        runs: run seeds, from `run_seed` upwards.
        profile: quick or full.
        run_seed: the first.
        workers: processes.
        out: folder of the tables; what is known there is not asked again.

    """
    log = out / f"controls-{profile}.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    known = _read(log)
    jobs = [(number, run_seed + number) for number in range(runs)]
    wanted = sum(len(controls_of(number)) for number, _ in jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=4) as pool:
        asked = {
            pool.submit(_ask_and_keep, number, seed, profile, log, _names(known, seed)): seed
            for number, seed in jobs
            if len(_names(known, seed)) < len(controls_of(number))
        }
        for done in as_completed(asked):
            done.result()
            click.echo(f"seed {asked[done]} is done", err=True)
    seeds = {seed for _, seed in jobs}
    found = tuple(one for one in _read(log) if one.run_seed in seeds)
    command = f"refsampler audit --controls --profile {profile} --runs {runs} --seed {run_seed}"
    made = made_by(command)
    lines = _lines(found)
    false = sum(len(one.failed) for one in found)
    head = f"{false} false alarms in {len(found)} of {wanted} runs on right samplers."
    text = [
        *table_head("Negative controls", made),
        head,
        "",
        *_words(),
        *table_lines(_COLUMNS, lines),
    ]
    write_table(out, f"controls-{profile}", _ControlTable(made, profile, found), "\n".join(text))
    click.echo(head)
    echo_table(_COLUMNS, lines)
    if false or any(one.errors for one in found) or len(found) < wanted:
        raise SystemExit(1)


def _ask_and_keep(
    number: int, run_seed: int, profile: str, log: Path, skip: frozenset[str]
) -> None:
    """Ask the controls of one seed; each run is on disk before the next begins."""

    def keep(run: ControlRun) -> None:
        with log.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")

    ask_controls(number, run_seed, profile, skip=skip, tell=keep)


def _read(log: Path) -> tuple[ControlRun, ...]:
    """Return what is known; a line that was cut off is not."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return tuple(msgspec.json.decode(line, type=ControlRun) for line in lines)


def _names(known: Sequence[ControlRun], run_seed: int) -> frozenset[str]:
    return frozenset(one.control for one in known if one.run_seed == run_seed)


def _lines(found: Sequence[ControlRun]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name in dict.fromkeys(one.control for one in found):
        runs = [one for one in found if one.control == name]
        failed = [f"{clause} (seed {one.run_seed})" for one in runs for clause in one.failed]
        lines.append(
            (
                name,
                f"{len(runs)}",
                f"{sum(one.drawn for one in runs)}",
                f"{sum(one.cases for one in runs):,}",
                f"{sum(one.draws for one in runs):,}",
                " ".join(failed) or "0",
                f"{sum(len(one.errors) for one in runs)}",
            )
        )
    return lines


def _words() -> list[str]:
    return [
        (
            "Each run asks every exact case of its seed. *Drawn* are the runs that drew laws, tails and "
            "pairs too: controls of one declared semantics have one exact law, so the first draws for "
            "all of them."
        ),
        "",
    ]

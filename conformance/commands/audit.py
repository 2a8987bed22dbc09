"""``refsampler audit``: the suite under test, by faults that it must see, and by its calibration."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Final

import click
import msgspec

from refsampler.conformance.audit.log import AuditLog, LogMismatchError, Settings
from refsampler.conformance.audit.matrix import COLUMNS, headline, lines, make_audit, markdown
from refsampler.conformance.audit.one import LIMIT_S, FaultResult, Found
from refsampler.conformance.audit.pool import audit_faults
from refsampler.conformance.commands.calibration import print_calibration
from refsampler.conformance.commands.controls import print_controls
from refsampler.conformance.commands.hunting import print_hunt
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.faults.base import Fault
from refsampler.conformance.faults.registry import select

__all__ = ["audit"]

_RUNS: Final = 2000
"""Simulated, of each law."""
_CONTROL_RUNS: Final = 50
"""Run seeds of the controls."""


@click.command()
@click.option("--kind", "kinds", multiple=True, metavar="GLOB", help="Of faults, as filter-*.")
@click.option("--fault", "ids", multiple=True, metavar="GLOB", help="Ids of faults, as B114.")
@click.option("--profile", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(0, min_open=True),
    default=LIMIT_S,
    show_default=True,
    help="Seconds a fault.",
)
@click.option(
    "--named-only", is_flag=True, help="Only the checks of the clause that the fault breaks."
)
@click.option(
    "--leave-out",
    is_flag=True,
    help="Only faults that the evidence bets on, without those bets and the checks made for them.",
)
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count(), show_default="all cores")
@click.option("--seed", "run_seed", type=click.IntRange(0, 2**31 - 1), help="Of the runs.")
@click.option("--calibration", is_flag=True, help="Simulate whole runs of the evidence (minutes).")
@click.option(
    "--fuzz", is_flag=True, help="Let fuzzing alone hunt what exact checks catch (minutes)."
)
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("reports") / "audit" / "quick.json",
    show_default=True,
    help="With --fuzz: the audit that says what exact checks catch.",
)
@click.option("--controls", is_flag=True, help="Run the suite on right samplers (an hour or more).")
@click.option(
    "--control",
    default="*",
    metavar="GLOB",
    help="With --controls: names of those to run, as 'native'; the default is all.",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    show_default="2000, or 50 seeds of the controls",
    help="Of each law or control.",
)
@click.option("--broken-runs", type=click.IntRange(14), default=1008, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the tables; the default is reports/audit, or reports/evidence.",
)
def audit(  # noqa: C901 - one way for each flag
    *,
    kinds: tuple[str, ...],
    ids: tuple[str, ...],
    profile: str,
    limit_s: float,
    named_only: bool,
    leave_out: bool,
    workers: int,
    run_seed: int | None,
    calibration: bool,
    fuzz: bool,
    matrix: Path,
    controls: bool,
    control: str,
    runs: int | None,
    broken_runs: int,
    out: Path | None,
) -> None:
    """Run the suite on every known fault of real samplers, and print what it saw.

    A fault is caught if a clause is reported that its report is about.  Survivors come first, then
    faults that only a wrong clause was blamed for.  Exit 1 if there are any of either.

    Each result goes to PROFILE.jsonl in --out as it ends, and the tables beside it hold what is known
    so far.  The same command goes on where it was stopped; a part, by --kind or --fault, is added to
    what is there.  A part without --out is only printed.

    With --calibration: how often the evidence reports a clause that is obeyed, or misses a broken
    one; exit 1 if a stated level is exceeded.

    With --fuzz: what fuzzing finds of the faults that exact checks catch, --limit seconds each; exit 1
    if it is less than 70 %.

    With --controls: every right sampler under --runs run seeds, and the real ones that are installed
    under the first three; exit 1 if anything is reported.  Each run goes to controls-PROFILE.jsonl as
    it ends, and the same command goes on where it was stopped.
    """
    if fuzz:
        print_hunt(matrix, select(kinds, ids), limit_s, run_seed or 1, workers, out)
        return
    if calibration:
        evidence = Path("reports") / "evidence" if out is None else out
        print_calibration(runs or _RUNS, broken_runs, evidence)
        return
    if controls:
        kept = Path("reports") / "audit" if out is None else out
        seed = 1 if run_seed is None else run_seed
        print_controls(runs or _CONTROL_RUNS, profile, seed, workers, kept, glob=control)
        return
    faults = select(kinds, ids)
    if leave_out:
        faults = _bet_on(faults)
    if not faults:
        raise click.UsageError("no fault is selected")
    folder = out if out is not None or kinds or ids else Path("reports") / "audit"
    stem = f"{profile}-left-out" if leave_out else profile
    path = None if folder is None else folder / f"{stem}.jsonl"
    log = _opened(path, profile, run_seed, limit_s, named_only=named_only, leave_out=leave_out)
    known = {one.id for one in log.results}
    left = tuple(one for one in faults if one.id not in known)
    if known:
        click.echo(f"{len(faults) - len(left)} of {len(faults)} are known", err=True)

    def tell(result: FaultResult) -> None:
        log.add(result)
        named = " ".join(one.clause for one in result.caught)
        click.echo(f"{result.id}: {result.found} {named} {result.seconds:.1f} s", err=True)
        if folder is not None:
            _write(folder / stem, log, workers)

    audit_faults(left, log.settings, workers, tell)
    if folder is not None:
        _write(folder / stem, log, workers)
    asked = {one.id for one in faults}
    results = [one for one in log.results if one.id in asked]
    click.echo(headline(results))
    echo_table(COLUMNS, lines(results))
    if any(one.found in (Found.SURVIVED, Found.WRONG_CLAUSE, Found.ERROR) for one in results):
        raise SystemExit(1)


def _opened(
    path: Path | None,
    profile: str,
    run_seed: int | None,
    limit_s: float,
    *,
    named_only: bool,
    leave_out: bool,
) -> AuditLog:
    """Open the log; without a seed that of the audit in it goes on."""
    try:
        if run_seed is None:
            before = None if path is None else AuditLog.seed_of(path)
            run_seed = secrets.randbits(31) if before is None else before
        settings = Settings(
            profile=profile,
            run_seed=run_seed,
            limit_s=limit_s,
            named_only=named_only,
            leave_out=leave_out,
        )
        return AuditLog(path, settings)
    except LogMismatchError as error:
        raise click.UsageError(str(error)) from error


def _write(stem: Path, log: AuditLog, workers: int) -> None:
    """Write the tables of what is known."""
    bank = select() if not log.settings.leave_out else _bet_on(select())
    # where the tables were written says nothing about them
    words = iter(sys.argv[1:])
    said = [word for word in words if word != "--out" or next(words, None) is None]
    command = " ".join(["refsampler", *said])
    found = make_audit(log.results, log.settings, bank=bank, command=command, workers=workers)
    document = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    for suffix, data in ((".json", document), (".md", markdown(found).encode())):
        # another name first: a table that is cut off would be worse than the one before
        new = stem.with_suffix(suffix + ".new")
        new.write_bytes(data)
        new.replace(stem.with_suffix(suffix))


def _bet_on(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return the faults for which something can be left out."""
    return tuple(one for one in faults if one.bank or one.designed)

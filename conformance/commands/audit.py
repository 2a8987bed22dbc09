"""``refsampler audit``: the suite under test, by faults that it must see, and by its calibration."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

import click
import msgspec

from refsampler.conformance.audit.matrix import COLUMNS, headline, lines, make_audit, markdown
from refsampler.conformance.audit.one import LIMIT_S, FaultResult, Found
from refsampler.conformance.audit.pool import Request, audit_faults
from refsampler.conformance.commands.calibration import print_calibration
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.faults.registry import select

__all__ = ["audit"]


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
    "--runs", type=click.IntRange(1), default=2000, show_default=True, help="Of each law."
)
@click.option("--broken-runs", type=click.IntRange(10), default=1000, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the tables; the default is reports/audit, or reports/evidence.",
)
def audit(
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
    runs: int,
    broken_runs: int,
    out: Path | None,
) -> None:
    """Run the suite on every known fault of real samplers, and print what it saw.

    A fault is caught if the clause that it breaks is reported.  Survivors come first, then faults
    that only a wrong clause was blamed for.  Exit 1 if there are any of either.  The tables are
    written to --out unless a part was asked for and no folder is named.

    With --calibration: how often the evidence reports a clause that is obeyed, or misses a broken
    one; exit 1 if a stated level is exceeded.
    """
    if calibration:
        print_calibration(runs, broken_runs, Path("reports") / "evidence" if out is None else out)
        return
    faults = select(kinds, ids)
    if leave_out:
        faults = tuple(one for one in faults if one.bank or one.designed)
    if not faults:
        raise click.UsageError("no fault is selected")
    seed = secrets.randbits(31) if run_seed is None else run_seed
    started = time.monotonic()
    with click.progressbar(length=len(faults), label="faults", file=sys.stderr) as bar:

        def tell(_result: FaultResult) -> None:
            bar.update(1)

        request = Request(profile, seed, limit_s, named_only, leave_out)
        results = audit_faults(faults, request, workers, tell)
    found = make_audit(
        results,
        command=" ".join(["refsampler", *sys.argv[1:]]),
        profile=profile,
        run_seed=seed,
        limit_s=limit_s,
        workers=workers,
        seconds=time.monotonic() - started,
    )
    if out is not None or not (kinds or ids):
        folder = Path("reports") / "audit" if out is None else out
        folder.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(found), indent=1)
        stem = f"{profile}-left-out" if leave_out else profile
        (folder / f"{stem}.json").write_bytes(data + b"\n")
        (folder / f"{stem}.md").write_text(markdown(found), encoding="utf-8")
    click.echo(headline(results))
    echo_table(COLUMNS, lines(results))
    if any(one.found in (Found.SURVIVED, Found.WRONG_CLAUSE, Found.ERROR) for one in results):
        raise SystemExit(1)

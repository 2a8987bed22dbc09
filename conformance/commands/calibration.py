"""``refsampler audit --calibration``: how often the evidence is wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from refsampler.conformance.commands.evidence_tables import (
    Made,
    made_by,
    table_head,
    table_lines,
    write_table,
)
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.evidence.calibration_summary import Calibration, calibrate

__all__ = ["print_calibration"]


@dataclass(frozen=True, slots=True)
class _CalibrationTable:
    """A calibration."""

    made: Made
    holds: bool
    calibration: Calibration


def print_calibration(runs: int, broken_runs: int, out: Path) -> None:
    """Simulate whole runs, print and write what was reported; exit 1 if a level is exceeded.

    Args:
        runs: of each law.
        broken_runs: with one clause broken, shared out over the clauses.
        out: folder of the tables.

    """
    total = 2 * runs + broken_runs
    with click.progressbar(length=total, label="runs", file=sys.stderr) as bar:
        found = calibrate(runs, broken_runs, tell=bar.update)
    command = f"refsampler audit --calibration --runs {runs} --broken-runs {broken_runs}"
    table = _CalibrationTable(made_by(command), found.holds, found)
    write_table(out, "calibration", table, _calibration_text(table))
    click.echo(f"{found.rejections} of {found.runs} right runs rejected")
    echo_table(
        ("broken clause", "runs", "reported", "others reported"),
        [(one.clause, f"{one.runs}", f"{one.found}", f"{one.others}") for one in found.broken],
    )
    if not found.holds:
        raise SystemExit(1)


def _calibration_text(table: _CalibrationTable) -> str:
    found = table.calibration
    levels = [
        (one.clause, one.law, f"{one.level:g}", f"{one.runs}", f"{one.reached}", f"{one.allowed}")
        for one in found.levels
    ]
    broken = [
        (one.clause, one.fault, f"{one.runs}", f"{one.found}", f"{one.others}")
        for one in found.broken
    ]
    return "\n".join(
        [
            *table_head("Calibration of the evidence", table.made),
            (
                f"{found.rejections} of {found.runs} simulated runs of a right sampler were rejected: "
                "half on the exact law, half on least favourable laws at the edge of the tolerance."
            ),
            "",
            "## P(E ever reaches 1/a) <= a",
            "",
            "Allowed is the binomial quantile at 1e-6.",
            "",
            *table_lines(("clause", "law", "a", "runs", "reached", "allowed"), levels),
            "## One clause broken",
            "",
            (
                "The faults of independence show on calls of equal flat rows; the law rows are drawn "
                "independently, so that the statement of `draw.law` stays true."
            ),
            "",
            *table_lines(("clause", "fault", "runs", "reported", "others reported"), broken),
        ]
    )

"""The kill matrix: results as a document, and as markdown with the survivors first."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import torch

from refsampler import __version__
from refsampler.conformance.audit.one import FaultResult, Found

__all__ = ["COLUMNS", "Audit", "headline", "in_order", "lines", "make_audit", "markdown"]

COLUMNS: Final = ("fault", "kind", "engine", "breaks", "found", "failed", "by", "draws", "seconds")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """An audit that was run.

    Attributes:
        command: that ran it.
        date: when, ISO.
        refsampler: its version.
        python: its version.
        torch: its version.
        profile: quick or full.
        run_seed: of every fault's run.
        limit_s: seconds that a fault got.
        workers: processes.
        seconds: from start to end.
        results: one a fault.

    """

    command: str
    date: str
    refsampler: str
    python: str
    torch: str
    profile: str
    run_seed: int
    limit_s: float
    workers: int
    seconds: float
    results: tuple[FaultResult, ...]


def make_audit(
    results: Sequence[FaultResult],
    *,
    command: str,
    profile: str,
    run_seed: int,
    limit_s: float,
    workers: int,
    seconds: float,
) -> Audit:
    """Return the document of an audit."""
    return Audit(
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        refsampler=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        profile=profile,
        run_seed=run_seed,
        limit_s=limit_s,
        workers=workers,
        seconds=round(seconds, 1),
        results=tuple(in_order(results)),
    )


def in_order(results: Sequence[FaultResult]) -> list[FaultResult]:
    """Return survivors first, then those caught by a wrong clause only, then the rest by id."""
    ranks = list(Found)
    return sorted(results, key=lambda one: (ranks.index(one.found), one.kind, one.id))


def headline(results: Sequence[FaultResult]) -> str:
    """Return the audit in one line."""
    counts = {found: sum(one.found is found for one in results) for found in Found}
    asked = sum(
        counts[one] for one in (Found.CAUGHT, Found.WRONG_CLAUSE, Found.SURVIVED, Found.ERROR)
    )
    rest = ", ".join(
        f"{counts[found]} {found}" for found in Found if counts[found] and found is not Found.CAUGHT
    )
    share = f"{counts[Found.CAUGHT]} of {asked} faults caught and named by the right clause"
    return f"{share}; {rest}" if rest else share


def lines(results: Sequence[FaultResult]) -> list[tuple[str, ...]]:
    """Return one row of cells a fault."""
    return [_line(one) for one in in_order(results)]


def _line(one: FaultResult) -> tuple[str, ...]:
    first = one.first
    shown = (
        ("", "", "") if first is None else (first.check, f"{first.draws}", f"{first.seconds:.2f}")
    )
    failed = [catch.clause for catch in one.caught]
    return (
        one.id,
        one.kind,
        one.engine,
        " ".join(one.clauses),
        str(one.found),
        " ".join(failed) or one.reason,
        *shown,
    )


def markdown(audit: Audit) -> str:
    """Return the audit as a page."""
    head = [
        "# Kill matrix",
        "",
        (
            f"`{audit.command}` on {audit.date}: refsampler {audit.refsampler}, Python "
            f"{audit.python}, torch {audit.torch}; run seed {audit.run_seed}, at most "
            f"{audit.limit_s:g} s a fault, {audit.workers} processes, {audit.seconds:.0f} s in all."
        ),
        "",
        f"{headline(audit.results)}.",
        "",
        (
            "*Failed* are all clauses that the suite reported, *by* is the check that showed the "
            "right one first (any, if none is right), *draws* and *seconds* are those spent by then."
        ),
        "",
    ]
    rows = [COLUMNS, ("---",) * len(COLUMNS), *lines(audit.results)]
    table = ["| " + " | ".join(row) + " |" for row in rows]
    faults = [
        "",
        "## Faults",
        "",
        *(f"* **{one.id}** {_thread(one)}: {one.summary}" for one in _by_id(audit.results)),
        "",
    ]
    return "\n".join([*head, *table, *faults])


def _by_id(results: Sequence[FaultResult]) -> list[FaultResult]:
    return sorted(results, key=lambda one: one.id)


def _thread(one: FaultResult) -> str:
    return f"{one.engine}, {one.thread}" if one.thread else one.engine

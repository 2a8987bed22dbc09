"""The kill matrix: results as a document, and as markdown with the survivors first."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import torch

from refsampler import __version__
from refsampler.conformance.audit.log import Settings
from refsampler.conformance.audit.one import NAMED_FIRST, FaultResult, Found
from refsampler.conformance.faults.base import Fault

__all__ = ["COLUMNS", "Audit", "headline", "in_order", "lines", "make_audit", "markdown"]

COLUMNS: Final = ("fault", "kind", "engine", "breaks", "found", "failed", "by", "draws", "seconds")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """An audit, whole or as far as it came.

    Attributes:
        command: that ran it.
        date: when, ISO.
        refsampler: its version.
        revisions: commits of the suite that the results are of.
        python: its version.
        torch: its version.
        settings: of every result.
        workers: processes.
        results: one a fault.
        not_asked: ids of the bank's faults of which nothing is known.

    """

    command: str
    date: str
    refsampler: str
    revisions: tuple[str, ...]
    python: str
    torch: str
    settings: Settings
    workers: int
    results: tuple[FaultResult, ...]
    not_asked: tuple[str, ...]


def make_audit(
    results: Sequence[FaultResult],
    settings: Settings,
    *,
    bank: Sequence[Fault],
    command: str,
    workers: int,
) -> Audit:
    """Return the document of an audit.

    Args:
        results: that are known.
        settings: of all of them.
        bank: every fault that such an audit is about.
        command: that ran it.
        workers: processes.

    """
    known = {one.id for one in results}
    return Audit(
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        refsampler=__version__,
        revisions=tuple(dict.fromkeys(one.revision for one in results if one.revision)),
        python=platform.python_version(),
        torch=str(torch.__version__),
        settings=settings,
        workers=workers,
        results=tuple(in_order(results)),
        not_asked=tuple(one.id for one in bank if one.id not in known),
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
    settings = audit.settings
    head = [
        "# Kill matrix",
        "",
        (
            f"`{audit.command}` on {audit.date}: refsampler {audit.refsampler} at "
            f"{', '.join(audit.revisions) or 'an unknown commit'}, Python {audit.python}, torch "
            f"{audit.torch}; profile {settings.profile}, run seed {settings.run_seed}, at most "
            f"{settings.limit_s:g} s a fault, {audit.workers} processes, "
            f"{sum(one.seconds for one in audit.results):.0f} s of checks."
        ),
        "",
        f"{headline(audit.results)}.",
        "",
        *_scope(audit),
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


def _scope(audit: Audit) -> list[str]:
    """Say what the table does not hold."""
    named = "Only the checks of a fault's own clauses were asked, so no wrong blame can show."
    left = "Without the bets and the checks that were made for a fault's kind."
    part = f"**A part**: {len(audit.not_asked)} faults were not run: {', '.join(audit.not_asked)}."
    partly = sum(one.found is Found.CAUGHT and not one.complete for one in audit.results)
    ended = (
        "once its own checks had caught the fault"
        if audit.settings.profile == NAMED_FIRST
        else "within the limit"
    )
    short = (
        f"In {partly} of the rows that are caught, not every exact case was asked {ended}: further "
        "clauses might have been reported."
    )
    said = (
        (named, audit.settings.named_only),
        (left, audit.settings.leave_out),
        (part, bool(audit.not_asked)),
        (short, bool(partly) and not (audit.settings.named_only or audit.settings.leave_out)),
    )
    return [line for words, holds in said if holds for line in (words, "")]


def _by_id(results: Sequence[FaultResult]) -> list[FaultResult]:
    return sorted(results, key=lambda one: one.id)


def _thread(one: FaultResult) -> str:
    return f"{one.engine}, {one.thread}" if one.thread else one.engine

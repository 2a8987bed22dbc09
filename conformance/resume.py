"""Resuming: a killed run goes on where it stopped, and ends with the report it would have had.

The report is written anew from the finished records, in their places; until it is complete the old
one lies beside it, so that a run may be killed and resumed as often as one likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refsampler.clauses import load
from refsampler.conformance.finished import Finished, gather, plan_digest
from refsampler.conformance.plan import Plan
from refsampler.conformance.records import Footer, Header, Record, read_report

__all__ = [
    "CannotResume",
    "Resumed",
    "check_plan",
    "finish",
    "records_so_far",
    "set_aside",
    "stopped_run",
]

_BEFORE: Final = ".before"


class CannotResume(ValueError):  # noqa: N818 - reads as what happened
    """There is no killed run of this plan; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A killed run.

    Attributes:
        header: of its report.
        finished: what it need not ask again.

    """

    header: Header
    finished: Finished


def stopped_run(report: Path) -> Resumed:
    """Read what a killed run has left.

    Raises:
        CannotResume: there is no report, or its run came to its end.

    """
    records = records_so_far(report)
    header = next((one for one in records if isinstance(one, Header)), None)
    if header is None:
        raise CannotResume(f"{report}: there is no run to resume")
    if any(isinstance(one, Footer) for one in records):
        raise CannotResume(f"{report}: the run came to its end; a rerun is a new run")
    return Resumed(header, gather(records))


def records_so_far(report: Path) -> tuple[Record, ...]:
    """Return the records of a report and of what a killed run left of it; none without a file."""
    paths = (_before(report), report)
    return tuple(one for path in paths if path.exists() for one in read_report(path))


def check_plan(header: Header, plan: Plan, spec: str) -> None:
    """Refuse to go on with another plan.

    Raises:
        CannotResume: names what differs.

    """
    pairs: Iterable[tuple[str, object, object]] = (
        ("backend", header.spec, spec),
        ("version of the backend", header.backend_version, plan.capabilities.version),
        ("profile", header.profile, plan.profile),
        ("clauses", header.clauses, plan.glob),
        ("contract", header.contract_digest, load().digest),
        ("capabilities", header.capabilities, plan.capabilities),
        ("plan", header.plan, plan_digest(plan)),
    )
    for name, then, now in pairs:
        if then != now:
            raise CannotResume(f"{name} = {now!r} is refused: allowed is that of the run, {then!r}")


def set_aside(report: Path, *, keep: bool) -> None:
    """Keep the old report beside the new one, two of them as one; or forget both."""
    before = _before(report)
    if not keep:
        before.unlink(missing_ok=True)
    elif before.exists() and report.exists():
        before.write_bytes(_whole_lines(before) + _whole_lines(report))
        report.unlink()
    elif report.exists():
        report.replace(before)


def finish(report: Path) -> None:
    """Forget the old report."""
    _before(report).unlink(missing_ok=True)


def _before(report: Path) -> Path:
    return report.with_name(f"{report.name}{_BEFORE}")


def _whole_lines(path: Path) -> bytes:
    lines = path.read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if line.endswith(b"\n"))

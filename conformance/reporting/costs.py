"""What a stored run cost, by check."""

from __future__ import annotations

from dataclasses import dataclass

from refsampler.conformance.records import CaseRecord
from refsampler.conformance.reporting.stored import StoredRun

__all__ = ["CheckCost", "Cost", "costs"]


@dataclass(frozen=True, slots=True)
class CheckCost:
    """One check.

    Attributes:
        check: its name.
        cases: asked.
        draws: taken; 0 where the records do not say.
        seconds: spent.
        share: of the dearest check's seconds, from 0 to 1.

    """

    check: str
    cases: int
    draws: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A whole run.

    Attributes:
        seconds: on the clock; 0 of a run that did not end.
        draws: of all cases.
        cases: of all checks.
        checks: the dearest first.

    """

    seconds: float
    draws: int
    cases: int
    checks: tuple[CheckCost, ...]


def costs(run: StoredRun) -> Cost:
    """Add up what the records say; minimal cases are left out, which were asked for the report."""
    found: dict[str, tuple[int, int, float]] = {}
    for record in run.asked:
        if isinstance(record, CaseRecord) and record.shrunk_from is not None:
            continue
        draws = int(getattr(record, "draws", 0))
        cases, drawn, seconds = found.get(record.check, (0, 0, 0.0))
        found[record.check] = (cases + 1, drawn + draws, seconds + record.seconds)
    dearest = max((seconds for _, _, seconds in found.values()), default=0.0) or 1.0
    checks = [
        CheckCost(check, cases, draws, seconds, seconds / dearest)
        for check, (cases, draws, seconds) in found.items()
    ]
    footer = run.footer
    return Cost(
        seconds=0.0 if footer is None else footer.seconds,
        draws=sum(one.draws for one in checks) if footer is None else footer.draws,
        cases=sum(one.cases for one in checks) if footer is None else footer.cases,
        checks=tuple(sorted(checks, key=lambda one: -one.seconds)),
    )

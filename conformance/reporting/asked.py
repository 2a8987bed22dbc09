"""What a stored run asked and what it did not, in a few lines of words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refsampler.clauses import load
from refsampler.conformance.records import VerdictRecord
from refsampler.conformance.reporting.page import Fact
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.verdict import Status

__all__ = ["told"]


def told(run: StoredRun) -> tuple[Fact, ...]:
    """Return the machine, the question, and what is not known after it."""
    return tuple(_told(run))


def _told(run: StoredRun) -> Iterator[Fact]:
    header = run.header
    yield Fact(
        "ran on",
        f"{header.device}; {header.machine}, torch {header.torch}, Python {header.python}",
    )
    commit = f", commit {header.revision}" if header.revision else ""
    yield Fact(
        "suite",
        f"refsampler {header.refsampler}{commit}, contract {header.contract}"
        f" (sha256 {header.contract_digest[:12]})",
    )
    yield Fact("asked", _question(run))
    for status, name in (
        (Status.FAIL, "failed"),
        (Status.INCONCLUSIVE, "undecided"),
        (Status.ERROR, "errors"),
        (Status.NOT_RUN, "not run"),
        (Status.UNSUPPORTED, "unsupported"),
    ):
        if found := run.of_status(status):
            yield Fact(name, _by_reason(found, reasons=status is not Status.FAIL))
    if inherited := run.of_status(Status.INHERITED):
        yield Fact("inherited", f"{len(inherited)} clauses, done by the reference around it")
    known = {one.clause for one in run.verdicts}
    if left := [str(one.id) for one in load().clauses if one.id not in known]:
        yield Fact("not asked", ", ".join(left))
    if run.note:
        yield Fact("note", run.note)


def _question(run: StoredRun) -> str:
    header = run.header
    words = [f"profile {header.profile}"]
    words += [] if header.clauses == "*" else [f"clauses {header.clauses} only"]
    words += [f"run seed {header.run_seed}"]
    words += [] if header.time_budget is None else [f"time budget {header.time_budget:g} s"]
    words += [f"started {header.started}"]
    if run.footer is not None:
        draws, cases = f"{run.footer.draws:,} draws", f"{run.footer.cases:,} cases"
        words += [f"{draws} and {cases} in {run.footer.seconds:,.0f} s"]
    return ", ".join(words)


def _by_reason(found: Sequence[VerdictRecord], *, reasons: bool) -> str:
    """Return the clauses, those of one reason together."""
    if not reasons:
        return ", ".join(one.clause for one in found)
    by: dict[str, list[str]] = {}
    for one in found:
        by.setdefault(one.reason, []).append(one.clause)
    return "; ".join(
        ", ".join(clauses) + (f" ({reason})" if reason else "") for reason, clauses in by.items()
    )

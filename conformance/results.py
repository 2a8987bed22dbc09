"""Results: the decisions of a run in a form that goes through a file from one process to another."""

from __future__ import annotations

import msgspec

from refsampler.conformance.verdict import Status

__all__ = ["NOT_SELECTED", "ClauseResult", "RunResult", "properties"]

NOT_SELECTED = "not-selected"
"""Stands for the clauses outside the selection, which a run may show broken all the same."""


class ClauseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One clause decided, ready to be shown.

    Attributes:
        clause: id in the contract, or `NOT_SELECTED`.
        status: what was found.
        must: whether it gates; a SHOULD does not.
        needed: no backend conforms without declaring it.
        expected: why the failure is expected; empty where none is.
        stale: why the expectation of a failure is out of date; empty where it is not.
        text: a failure in five parts, or the status and its reason.
        log_e: natural log of the e-value; None where the comparison is exact.
        draws: ids that went into it.
        detectable: biases that would have been seen, in words; empty where none is stated.
        seconds: spent on it.

    """

    clause: str
    status: Status
    must: bool
    needed: bool
    expected: str = ""
    stale: str = ""
    text: str
    log_e: float | None
    draws: int
    detectable: str
    seconds: float


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run decided.

    Attributes:
        backend: as it was named.
        run_seed: of the run.
        headline: the run in one line; empty if there was none.
        report: folder of the report.
        clauses: one a selected clause, then `NOT_SELECTED` where a glob selected.
        failure: why there was no run; empty if there was one.

    """

    backend: str
    run_seed: int
    headline: str = ""
    report: str = ""
    clauses: tuple[ClauseResult, ...] = ()
    failure: str = ""


def properties(one: ClauseResult) -> tuple[tuple[str, str], ...]:
    """Return what a JUnit file says beside the outcome; what does not apply is left out."""
    log_e = () if one.log_e is None else (("log_e", f"{one.log_e:.6g}"),)
    stale = (("stale_expectation", one.stale),) if one.stale else ()
    detectable = (("detectable_bias", one.detectable),) if one.detectable else ()
    return (
        ("clause", one.clause),
        ("status", one.status.name),
        *log_e,
        ("draws", str(one.draws)),
        *detectable,
        *stale,
    )

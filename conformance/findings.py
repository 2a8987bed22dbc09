"""Findings in the form of a report's lines, and back."""

from __future__ import annotations

from refsampler.clauses import ClauseId
from refsampler.conformance.checks import Finding
from refsampler.conformance.records import FindingRecord

__all__ = ["finding_of", "finding_record"]


def finding_record(one: Finding) -> FindingRecord:
    """Return a finding as a part of a line."""
    return FindingRecord(
        one.clause,
        one.expected,
        one.seen,
        one.charge,
        one.row,
        one.call,
        one.candidates,
        one.given,
        one.unless,
        one.guess,
    )


def finding_of(one: FindingRecord) -> Finding:
    """Return the finding of a part of a line."""
    return Finding(
        ClauseId(one.clause),
        one.expected,
        one.seen,
        one.charge,
        one.row,
        one.call,
        tuple(ClauseId(name) for name in one.candidates),
        None if one.given is None else ClauseId(one.given),
        unless=None if one.unless is None else ClauseId(one.unless),
        guess=one.guess,
    )

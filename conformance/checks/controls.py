"""Controls: a wrong row asked again without its surroundings, before they are blamed for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.checks.base import Arrangement, Finding, Kind, Trial, clause_ids
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.rows import judge_rows
from refsampler.conformance.subject import Draw, SubjectError

__all__ = ["SURROUNDINGS", "lone_row", "without_surroundings"]

SURROUNDINGS = clause_ids(
    "batch.isolation",
    "batch.permutation",
    "batch.size",
    "input.layout",
    "mask.empty",
    "nonfinite.contained",
)
"""Clauses about what lies around a row; a row that is wrong by itself does not break them."""

_CALLS = 128
"""Draws of a lone row: enough to miss an id of probability 1/4 with odds of e^-35."""
_FEW_CALLS = 8
"""Draws that mostly show an id that a row should never give."""


def lone_row(case: Case, row: int) -> Case:
    """Return a batch of one row of a case, contiguous, drawn often enough to be judged."""
    recipe = replace(case.logits, rows=case.logits.rows[row : row + 1])
    request = case.requests[row]
    lone = replace(case, logits=recipe, requests=(request,), steps=(), calls=_CALLS)
    return replace(lone, layout=Layout.CONTIGUOUS)


def without_surroundings(
    capabilities: Capabilities,
    case: Case,
    finding: Finding,
    sample: Callable[[Case, int], Draw],
) -> Finding:
    """Take the blame off the surroundings of a row that is wrong by itself too.

    It only ever takes blame away, so it costs no false alarm.

    Args:
        capabilities: of the backend.
        case: the batch, arranged as it was when the row was wrong.
        finding: what it showed.
        sample: draws a call of a case.

    """
    blamed = finding.candidates or (finding.clause,)
    if finding.row is None or not set(blamed) & set(SURROUNDINGS) or finding.given is not None:
        return finding
    lone = lone_row(case, finding.row)
    expected = Expected.of(lone, capabilities.semantics)
    drawn: tuple[Draw, ...] = ()
    alone: list[Finding] = []
    for calls in (_FEW_CALLS, lone.calls):
        try:
            drawn += tuple(sample(lone, call) for call in range(len(drawn), calls))
        except SubjectError:
            return finding
        control = Trial(capabilities, (Arrangement(lone, expected, drawn),), Kind.NEAR_CERTAIN)
        alone = [one for one in judge_rows(control) if one.candidates]
        if alone:
            break
    if not alone:
        return finding
    left = tuple(one for one in blamed if one not in SURROUNDINGS)
    if left:
        return replace(finding, clause=left[0], candidates=left)
    found = tuple(one for one in alone[0].candidates if one not in SURROUNDINGS)
    greedy = expected.row(0).greedy
    clauses = found or (ClauseId("greedy.argmax" if greedy else "draw.support"),)
    guess = alone[0].guess or not found
    return replace(finding, clause=clauses[0], candidates=clauses, guess=guess)

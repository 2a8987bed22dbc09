"""Faults and the check that was made for each: it names the clause, and right subjects pass it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refsampler.backends.protocol import Subject
from refsampler.conformance import memory
from refsampler.conformance.case import encode_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.faults.base import Fault
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.right import RightEngine, RightKernel, RightSampler
from refsampler.conformance.plan import PlannedCase, make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status

_SEED = 4

_MADE_FOR = (
    ("B058", "session-constraints"),
    ("B145", "session-constraints"),
    ("B074", "seeds-in-sessions"),
    ("B195", "logprobs-over-steps"),
    ("B186", "processors-on-one-path"),
    ("B018", "processors-on-one-path"),
    ("B188", "effects-after-none"),
    ("B091", "tails-of-dtypes"),
    ("B006", "large-batches"),
    ("B073", "large-batches"),
    ("B085", "large-batches"),
    ("B011", "session-moves"),
    ("B122", "session-moves"),
    ("B191", "session-moves"),
    ("B070", "seeds-in-sessions"),
    ("B087", "seeds-differ"),
    ("B179", "sizes-beside-alone"),
    ("B089", "penalty-histories"),
    ("B152", "penalty-histories"),
    ("B190", "penalty-histories"),
    ("B109", "filter-order"),
    ("B050", "greedy-threshold"),
    ("B053", "temperature-rows"),
    ("B144", "penalties"),
    ("B143", "noise-ends-given"),
    ("B150", "noise-ends-given"),
    ("B148", "running-sums-given"),
    ("B066", "seeds-unread"),
    ("B006", "large-batches-fast"),
    ("B024", "large-batches-fast"),
    ("B073", "large-batches-fast"),
    ("B085", "large-batches-fast"),
)


@pytest.fixture(autouse=True)
def _small_index(monkeypatch):
    monkeypatch.setattr(memory, "ELEMENTS", 2**22)


def _failed(subject: Subject, names: set[str]) -> set[str]:
    """The clauses that these checks report."""
    capabilities = subject.capabilities
    cases = tuple(
        PlannedCase(check, case, case.id, encode_case(case), len(case.requests) * case.calls, 0.0)
        for check in all_checks()
        if check.name in names
        for case in check.cases(capabilities, _SEED)
    )
    assert cases
    plan = make_plan(capabilities, glob="input.layout", run_seed=_SEED, evidence=False)
    outcome = run(OpenSubject(subject, _SEED), replace(plan, cases=cases), ReportWriter(None))
    assert not outcome.errors
    verdicts = [one.verdict for one in outcome.decisions]
    return {str(one.clause) for one in verdicts if one.status is Status.FAIL}


def _made(one: Fault) -> Subject:
    assert one.make is not None
    return one.make()


@pytest.mark.parametrize(("name", "check"), _MADE_FOR)
def test_the_check_made_for_a_fault_names_its_clause(name, check):
    one = fault(name)
    assert _failed(_made(one), {check}) & {*one.clauses}


@pytest.mark.parametrize("right", [RightKernel, RightSampler, RightEngine])
def test_right_subjects_pass_the_checks_made_for_faults(right):
    assert not _failed(right(), {check for _, check in _MADE_FOR})

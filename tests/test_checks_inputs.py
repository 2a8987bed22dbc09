"""Rows that have no law: what the check of their flag reports."""

from dataclasses import replace

import pytest
import torch

from refsampler.backends.reference import ReferenceSampler
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks.inputs import CHECKS
from refsampler.conformance.designed.inputs import empty_cases
from refsampler.conformance.subject import OpenSubject


class _Flags(ReferenceSampler):
    """Flags every row alike."""

    def __init__(self, valid):
        super().__init__()
        self._valid = valid

    def sample(self, logits, metadata, **asked):
        output = super().sample(logits, metadata, **asked)
        return replace(output, valid=torch.full_like(output.valid, self._valid))


@pytest.mark.parametrize(
    ("subject", "seen"),
    [(_Flags(True), "valid = True"), (_Flags(False), "valid = False"), (ReferenceSampler(), None)],
)
def test_a_row_is_flagged_if_and_only_if_it_has_no_law(subject, seen):
    """Of the 7 designed rows 4 are empty; the first one, which has a law, is not."""
    check = next(one for one in CHECKS if one.name == "empty-supports")
    (case,) = empty_cases()
    findings = judge_case(OpenSubject(subject, 1), check, case).findings
    flagged = [one for one in findings if one.clause == "mask.flagged"]
    assert flagged == [*findings]
    assert [(one.seen, one.charge) for one in flagged] == ([] if seen is None else [(seen, 0.0)])

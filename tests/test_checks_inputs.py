"""Rows that have no law: what the check of their flag reports."""

from dataclasses import replace

import pytest
import torch

from refsampler.backends.protocol import Feature
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


_CHECK = next(one for one in CHECKS if one.name == "empty-supports")


def _flagged(subject, case):
    findings = judge_case(OpenSubject(subject, 1), _CHECK, case).findings
    assert {one.clause for one in findings} <= {"mask.flagged"}
    return [(one.seen, one.charge) for one in findings]


@pytest.mark.parametrize(
    ("subject", "seen"),
    [(_Flags(True), "valid = True"), (_Flags(False), "valid = False"), (ReferenceSampler(), None)],
)
@pytest.mark.parametrize("case", empty_cases(), ids=("masks", "logits"))
def test_a_row_is_flagged_if_and_only_if_it_has_no_law(subject, seen, case):
    """Of the designed rows 4 or 3 are empty; the first one, which has a law, is not."""
    assert _flagged(subject, case) == ([] if seen is None else [(seen, 0.0)])


class _Raises(ReferenceSampler):
    """Refuses a batch with a row without a law, and names no row."""

    def sample(self, logits, metadata, **asked):
        output = super().sample(logits, metadata, **asked)
        if not bool(output.valid.all()):
            raise RuntimeError("no")
        return output


def test_what_raises_for_rows_without_support_is_laid_to_rows_without_a_law_if_they_have_no_masks():
    named = [
        [one.candidates for one in judge_case(OpenSubject(_Raises(), 1), _CHECK, case).findings]
        for case in empty_cases()
    ]
    assert named == [
        [("mask.empty", "output.returns")],
        [("mask.empty", "nonfinite.contained", "output.returns")],
    ]


def test_a_backend_without_masks_is_asked_about_rows_without_support_too():
    subject = _Flags(True)
    declared = subject.capabilities
    subject.capabilities = replace(declared, features=declared.features - {Feature.MASKS})
    seen = [_flagged(subject, case) for case in _CHECK.cases(subject.capabilities, 0)]
    assert seen == [[], [("valid = True", 0.0)]]

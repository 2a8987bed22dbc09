"""A sampler that goes on with log-probabilities in place of logits, as it declares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from refsampler.conformance.checks import all_checks
from refsampler.conformance.faults.right import RightSampler
from refsampler.conformance.subject import OpenSubject
from refsampler.sampler import Sampler
from refsampler.semantics import Semantics

MODES = next(one for one in all_checks() if one.name == "logprobs-modes")


class Normalising(Sampler):
    def process(self, logits, metadata):
        return torch.log_softmax(super().process(logits, metadata), dim=-1)


class OfLogprobs(RightSampler):
    capabilities = replace(RightSampler.capabilities, semantics=Semantics(filter_space="logprob"))

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self._sampler, self._off = Normalising(), off

    def sample(self, logits, metadata, *, logprobs_mode=None):
        output = self._sampler(logits, metadata, logprobs_mode=logprobs_mode)
        if logprobs_mode == "processed_logits" and output.logprobs_tensors is not None:
            output.logprobs_tensors.logprobs[:, 1:] += self._off
        return output


def found(subject):
    cases = MODES.cases(subject.capabilities, 5)
    opened = OpenSubject(subject, 5)
    assert MODES.ask is not None
    return [one for case in cases for one in MODES.ask(opened, case).findings]


def test_processed_logits_are_those_drawn_from_whatever_they_have_in_common():
    assert found(OfLogprobs()) == []


@pytest.mark.parametrize("off", [-0.001, 0.001])
def test_processed_logits_that_differ_from_that_of_the_sampled_id_are_seen(off):
    raw = [one for one in found(OfLogprobs(off)) if one.clause == "logprobs.raw"]
    assert raw
    assert all(one.seen.endswith("in mode processed_logits") for one in raw)

"""Unread: results of a step that a later one writes over, of samplers and of engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Subject
from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.base import Finding
from refsampler.conformance.faults.right import RightEngine, RightSampler
from refsampler.conformance.subject import OpenSubject

CHECK = next(one for one in all_checks() if one.name == "seeds-unread")


class _Buffers:
    """So many buffers, which take turns."""

    def __init__(self, count: int) -> None:
        self._buffers = [torch.zeros((64, 1), dtype=torch.int32) for _ in range(count)]
        self._calls = 0

    def written(self, output):
        buffer = self._buffers[self._calls % len(self._buffers)]
        self._calls += 1
        rows = len(output.sampled_token_ids)
        buffer[:rows] = output.sampled_token_ids
        return replace(output, sampled_token_ids=buffer[:rows])


class BufferedSampler(RightSampler):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._buffers = _Buffers(count)

    def sample(self, logits, metadata, *, logprobs_mode=None):
        output = super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        return self._buffers.written(output)


class BufferedEngine(RightEngine):
    def __init__(self, count: int) -> None:
        super().__init__()
        buffers = _Buffers(count)

        class Session(ReferenceSession):
            def sample(self, ids, logits):
                return buffers.written(super().sample(ids, logits))

        self.session = Session


def found(subject: Subject) -> list[Finding]:
    assert CHECK.ask is not None
    opened = OpenSubject(subject, 5)
    cases = CHECK.cases(subject.capabilities, 5)
    return [one for case in cases for one in CHECK.ask(opened, case).findings]


@pytest.mark.parametrize("make", [BufferedSampler, BufferedEngine])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_step_that_is_written_over_differs_from_itself(make, count):
    (finding,) = found(make(count))
    assert (finding.clause, finding.charge, finding.call) == ("determinism.repeat", 0.0, 0)
    assert finding.seen.endswith("read after 3 later calls")


@pytest.mark.parametrize("make", [RightSampler, RightEngine])
def test_results_of_their_own_stay(make):
    assert found(make()) == []


def test_a_buffer_for_each_of_the_steps_is_as_good():
    assert found(BufferedSampler(4)) == []


def test_a_kernel_is_read_by_the_pipeline_at_once():
    assert tuple(CHECK.cases(NativeKernel().capabilities, 5)) == ()

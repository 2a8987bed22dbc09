"""Conversations: what they leave behind on a GPU."""

from dataclasses import replace

import pytest
import torch

from refsampler.clauses import ClauseId
from refsampler.conformance.checks.base import Asked, Check, Kind
from refsampler.conformance.conversing import converse
from refsampler.conformance.designed.build import batch, peak, request
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.subject import OpenSubject, SubjectError


def _raises(_subject, _case):
    raise SubjectError("out of memory")


@pytest.mark.parametrize(("device", "emptied"), [("cuda", 1), ("cuda:1", 1), ("cpu", 0)])
@pytest.mark.parametrize("ask", [lambda _subject, _case: Asked(draws=3), _raises])
def test_the_cache_of_a_gpu_is_emptied_however_a_conversation_ends(
    monkeypatch, device, emptied, ask
):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(device))
    subject = OpenSubject(RightKernel(), 1)
    subject.capabilities = replace(subject.capabilities, device=device)
    case = batch(4, [(peak(0), request())], "input.large")
    check = Check("c", (ClauseId("input.large"),), Kind.EXACT, lambda *_: (case,), ask=ask)
    if ask is _raises:
        with pytest.raises(SubjectError):
            converse(check, subject, case)
    else:
        assert converse(check, subject, case) == Asked(draws=3)
    assert len(calls) == emptied

"""The verifier of Hugging Face transformers: known answers, refusals, and what it does wrong itself."""

import math

import pytest
import torch

from refsampler.backends.engines.transformers_verifier import TransformersVerifier
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import speculative
from refsampler.conformance.designed.speculative import degenerate_cases
from refsampler.conformance.subject import OpenSubject
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request

utils = pytest.importorskip("transformers.generation.utils")
INF = math.inf


@pytest.fixture(scope="module")
def verifier():
    return TransformersVerifier()


def verify(verifier, requests, logits, laws=None):
    metadata = SamplingMetadata.from_requests(requests, logits.shape[1], speculative=True)
    ids = torch.tensor([token for one in requests for token in one.drafts], dtype=torch.int64)
    return verifier.verify(ids, laws, logits, metadata).token_ids.tolist()


def sure(*ids):
    return torch.tensor([[0.0 if token == one else -INF for token in range(4)] for one in ids])


def test_drafts_with_laws_without_and_of_greedy_requests(verifier):
    greedy = SamplingParams(temperature=0.0)
    rows = sure(1, 2, 3)
    one = Request(drafts=(1, 3))
    assert verify(verifier, [one], rows, sure(1, 3).softmax(-1)) == [[1, 2, -1]]
    assert verify(verifier, [one], rows) == [[1, 2, -1]]
    assert verify(verifier, [Request(greedy, drafts=(1, 2))], rows) == [[1, 2, 3]]
    # what is no draft is rejected, and nothing behind it counts
    assert verify(verifier, [Request(drafts=(PLACEHOLDER, 2))], rows) == [[1, -1, -1]]
    assert verify(verifier, [Request(), one], sure(2, 1, 2, 3)) == [[2, -1, -1], [1, 2, -1]]


def test_filters_act_at_every_position(verifier):
    rows = torch.tensor([[2.0, 1.0, 0.0, 0.0]]).repeat(3, 1)
    one = Request(SamplingParams(top_k=1), drafts=(0, 0))
    laws = torch.tensor([[0.5, 0.5, 0, 0]]).repeat(2, 1)
    assert verify(verifier, [one], rows, laws) == [[0, 0, 0]]


@pytest.mark.parametrize("params", [{"seed": 1}, {"logprobs": 2}])
def test_what_the_engine_cannot_honour_is_refused(verifier, params):
    with pytest.raises(ValueError, match=next(iter(params))):
        verify(verifier, [Request(SamplingParams(**params), drafts=(1,))], sure(1, 2))


def test_another_release_is_found_out_at_once(monkeypatch):
    monkeypatch.setattr(utils, "_speculative_sampling", lambda ids, *_: (ids, 1))
    with pytest.raises(RuntimeError, match=r"_speculative_sampling gives \[1\] for \[1, 2\]"):
        TransformersVerifier()
    monkeypatch.delattr(utils, "_speculative_sampling")
    with pytest.raises(RuntimeError, match="has no _speculative_sampling"):
        TransformersVerifier()


def test_it_passes_the_exact_checks_but_for_the_empty_residual(verifier):
    """The finding of `reports/engines/`: where nothing is left of p - q it divides by zero."""
    subject = OpenSubject(verifier, 3)
    found = {
        (check.name, case.id, one.clause, one.seen.partition(":")[0])
        for check in speculative.CHECKS
        for case in check.cases(verifier.capabilities, 3)
        for one in judge_case(subject, check, case).findings
    }
    empty = degenerate_cases()[1].id
    assert found == {("empty-residuals", empty, "output.returns", "RuntimeError")}


def test_a_uniform_of_zero_accepts_what_the_target_forbids(verifier, monkeypatch):
    """The other finding: the comparison is `<=`, and float32 uniforms are 0 once in 2^24."""
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    emitted = verify(verifier, [Request(drafts=(0,))], sure(1, 1), sure(0).softmax(-1))
    assert emitted == [[0, 1]]

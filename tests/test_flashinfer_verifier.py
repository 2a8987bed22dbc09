"""FlashInfer's verifier on a CPU: what its call is given, and what never reaches it.

The stand-in walks as the reference does; FlashInfer itself runs on the GPU only.
"""

import sys
from types import ModuleType

import pytest
import torch

from refsampler.backends.flashinfer_verifier import FlashInferVerifier
from refsampler.backends.protocol import Verifier
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.speculative import walk_random

VOCAB = 6
GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()


class FakeSampling(ModuleType):
    """FlashInfer's two calls, which refuse what it cannot take."""

    def __init__(self):
        super().__init__("flashinfer.sampling")
        self.shapes = []

    def sampling_from_probs(self, probs, *, deterministic):
        assert deterministic
        self.shapes.append((len(probs), 0))
        return probs.argmax(-1).to(torch.int32)

    def chain_speculative_sampling(
        self, draft_probs, draft_token_ids, target_probs, *, deterministic
    ):
        requests, drafts = draft_token_ids.shape
        assert deterministic
        assert draft_token_ids.dtype is torch.int32
        assert int(draft_token_ids.min()) >= 0
        assert draft_probs.dtype is target_probs.dtype is torch.float32
        assert draft_probs.shape == (requests, drafts, VOCAB)
        assert target_probs.shape == (requests, drafts + 1, VOCAB)
        torch.testing.assert_close(target_probs.sum(-1), torch.ones(requests, drafts + 1))
        self.shapes.append((requests, drafts))
        out = torch.full((requests, drafts + 1), -1, dtype=torch.int32)
        for row, (ids, p, q) in enumerate(
            zip(draft_token_ids.tolist(), target_probs.double(), draft_probs.double(), strict=True)
        ):
            bonus = int(p[-1].argmax())
            half = torch.full((drafts,), 0.5, dtype=torch.float64)
            walked = walk_random(ids, p, q, half, torch.ones(VOCAB).double(), bonus)
            out[row, : len(walked)] = torch.tensor(walked, dtype=torch.int32)
        return out, None, None


@pytest.fixture
def fake(monkeypatch):
    package, sampling = ModuleType("flashinfer"), FakeSampling()
    vars(package).update(__version__="0.0.test", sampling=sampling)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", sampling)
    return sampling


def sure_of(*ids):
    """Rows of logits, each all but sure of one id."""
    return torch.eye(VOCAB)[list(ids)] * 50


def emitted(requests, rows, laws=None):
    metadata = SamplingMetadata.from_requests(requests, VOCAB, speculative=True)
    ids = torch.tensor([one for request in requests for one in request.drafts])
    verifier = FlashInferVerifier("cpu")
    assert isinstance(verifier, Verifier)
    return verifier.verify(ids, laws, torch.cat(rows), metadata).emitted()


@pytest.mark.clause("spec.law")
def test_requests_are_grouped_by_their_drafts_and_put_back(fake):
    requests = [
        Request(PLAIN, drafts=(1, 2)),
        Request(PLAIN),
        Request(PLAIN, drafts=(4,)),
        Request(PLAIN, drafts=(3, 0)),
        Request(PLAIN, drafts=(5, PLACEHOLDER, 1)),
        Request(PLAIN, drafts=(PLACEHOLDER,)),
    ]
    rows = [
        sure_of(1, 2, 3), sure_of(4), sure_of(2, 1), sure_of(3, 5, 1), sure_of(5, 2, 1, 1),
        sure_of(4, 3),
    ]  # fmt: skip
    right = [[1, 2, 3], [4], [2], [3, 5], [5, 2], [4]]
    assert emitted(requests, rows) == right
    assert fake.shapes == [(2, 2), (2, 0), (2, 1)]


@pytest.mark.clause("spec.greedy")
def test_a_greedy_request_takes_the_argmax_whatever_its_draft_law_says(fake):
    requests = [Request(GREEDY, drafts=(1, 2)), Request(GREEDY, drafts=(1, 3))]
    rows = [torch.eye(VOCAB)[[1, 2, 3]] * 0.01, torch.eye(VOCAB)[[1, 2, 3]] * 0.01]
    laws = torch.full((4, VOCAB), 0.1)
    laws[:, 0] = 0.5
    assert emitted(requests, rows, laws) == [[1, 2, 3], [1, 2]]


@pytest.mark.clause("nonfinite.contained")
def test_rows_without_a_law_are_certain(fake):
    broken = sure_of(1, 2)
    broken[0, 4] = torch.inf
    assert emitted([Request(PLAIN, drafts=(4,))], [broken]) == [[4, 2]]
    broken[0] = torch.nan
    assert emitted([Request(PLAIN, drafts=(4,))], [broken]) == [[0]]


@pytest.mark.clause("spec.draft-law")
def test_the_law_of_each_draft_is_given_to_its_position(fake):
    """u = 1/2 accepts where q < 2 p: of two laws only the right order accepts both."""
    logits = torch.tensor([[0.5, 0.5, 0, 0, 0, 0], [0.0, 0.1, 0.9, 0, 0, 0], [0, 0, 0, 0, 1, 0]])
    laws = torch.tensor([[0.9, 0.1, 0, 0, 0, 0], [0.1, 0.9, 0, 0, 0, 0]])
    request = Request(PLAIN, drafts=(0, 1))
    assert emitted([request], [logits.log()], laws) == [[0, 2]]
    assert emitted([request], [logits.log()], laws.flip(0)) == [[0, 1, 4]]


def test_a_seed_goes_to_torch(fake):
    requests = [Request(SamplingParams(seed=1), drafts=(1,)), Request(PLAIN, drafts=(2,))]
    assert emitted(requests, [sure_of(1, 2), sure_of(2, 3)]) == [[1, 2], [2, 3]]
    assert fake.shapes == []


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(ModuleNotFoundError, match=r"refsampler\[flashinfer\]"):
        FlashInferVerifier("cpu")

"""The compiled rank count: one compilation serves every number of rows (clause `logprobs.rank`)."""

from functools import cache
from inspect import unwrap

import pytest
import torch
from torch._dynamo import reset
from torch._dynamo.testing import CompileCounter

from refsampler.logprobs import compiled_token_ranks, token_ranks
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.sampler import Sampler

INF = float("inf")
# Ranks by hand: entries >= the sampled one, itself included.
ROWS = (
    ([0.0, 3.0, 1.0, 2.0], 3, 2),
    ([4.0, 4.0, 4.0, -INF], 1, 3),
    ([4.0, 4.0, 4.0, -INF], 3, 4),
    ([float("nan")] * 4, 0, 0),
    ([-1.0, -2.0, -3.0, -4.0], 0, 1),
    ([-1.0, -2.0, -3.0, -4.0], 3, 4),
    ([0.0, -0.0, 1.0, INF], 1, 4),
)


def batch(size):
    values, sampled, ranks = zip(*ROWS[:size], strict=True)
    return torch.tensor(values), torch.tensor(sampled), list(ranks)


@cache
def compiled_with(counter):
    return torch.compile(unwrap(token_ranks), backend=counter)


@pytest.fixture
def counter():
    reset()
    yield CompileCounter()
    reset()


@pytest.mark.clause("logprobs.rank")
@pytest.mark.parametrize("sizes", [(1, 2, 3, 7, 1), (7, 1, 2)])
def test_growing_and_shrinking_batches_never_recompile(counter, sizes):
    for size in sizes:
        values, sampled, ranks = batch(size)
        assert compiled_token_ranks(values, sampled, counter).tolist() == ranks
        assert counter.frame_count == 1


def test_torch_alone_would_compile_one_row_apart(counter):
    # What the marks are for: if this ever stays at one compilation, they can go.
    plain = torch.compile(unwrap(token_ranks), backend=counter, dynamic=True)
    for size in (1, 2):
        values, sampled, _ = batch(size)
        plain(values, sampled)
    assert counter.frame_count == 2


def test_the_callers_tensors_carry_no_marks(counter):
    values, sampled, _ = batch(2)
    compiled_token_ranks(values, sampled, counter)
    assert not [name for tensor in (values, sampled) for name in vars(tensor)]


@pytest.mark.clause("logprobs.rank")
def test_the_sampler_compiles_the_count_if_asked(counter, monkeypatch):
    # One sampler step a batch size; the default compiler is swapped for one that costs no seconds.
    monkeypatch.setattr("refsampler.logprobs._compiled", lambda _: compiled_with(counter))
    requests = [Request(SamplingParams(temperature=0, logprobs=0))] * 3
    logits = torch.tensor([[1.0, 2.0, 2.0]] * 3)
    for size in (1, 2, 3):
        metadata = SamplingMetadata.from_requests(requests[:size], 3)
        output = Sampler(compile_ranks=True)(logits[:size], metadata)
        assert output.sampled_token_ids.tolist() == [[1]] * size
        assert output.logprobs_tensors is not None
        assert output.logprobs_tensors.selected_token_ranks.tolist() == [2] * size
    assert counter.frame_count == 1

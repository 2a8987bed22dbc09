"""The real Hugging Face processors behind a kernel; numbers worked by hand."""

import importlib.metadata
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from refsampler.backends.engines import transformers as adapter
from refsampler.backends.protocol import Fold, Kernel
from refsampler.backends.registry import BackendBroken, resolve
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.sampler import Sampler
from tests.kernel_calls import processed, rows, seeded

INF = float("inf")
NAN = float("nan")


@pytest.fixture(scope="module")
def kernel():
    return adapter.backend()


def test_it_declares_the_engines_own_order_and_version(kernel):
    assert isinstance(kernel, Kernel)
    assert kernel.capabilities.semantics.profile == "transformers"
    assert kernel.capabilities.folds == frozenset(Fold)
    assert kernel.capabilities.version == importlib.metadata.version("transformers")


def test_a_missing_package_names_the_extra(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(adapter, "version", missing)
    with pytest.raises(BackendBroken, match=r"not installed: pip install 'refsampler\[transf"):
        resolve("transformers")


@pytest.mark.parametrize(
    ("x", "parameters", "kept"),
    [
        # ties with the k-th value stay
        ([3.0, 1.0, 2.0, 2.0], {"top_k": 2}, [0, 2, 3]),
        # 4:2:1:1, mass above each .0 .5 .75: strict cut, the ascending sort keeps the later tie
        ([math.log(4), math.log(2), 0.0, 0.0], {"top_p": 0.6}, [0, 1]),
        ([math.log(4), math.log(2), 0.0, 0.0], {"top_p": 0.8}, [0, 1, 3]),
        ([0.0] * 4, {"top_p": 0.5}, [2, 3]),
        # top-p on what top-k left: 2/3 >= .6
        ([math.log(4), math.log(2), 0.0, 0.0], {"top_k": 2, "top_p": 0.6}, [0]),
        # at T = 1/2 the row is 16:4:1:1 and 16/22 >= .7
        ([math.log(4), math.log(2), 0.0, 0.0], {"temperature": 0.5, "top_p": 0.7}, [0]),
        # min-p last: top-p .6 of 8:4:1:1 keeps two (8/14 < .6), min-p 1/4 keeps both of them;
        # min-p first would leave 8:4, of which 8/12 >= .6 keeps one
        ([math.log(8), math.log(4), 0.0, 0.0], {"top_p": 0.6, "min_p": 0.25}, [0, 1]),
        ([math.log(8), math.log(4), 0.0, 0.0], {"min_p": 0.25}, [0, 1]),
        ([math.log(8), math.log(4), 0.0, 0.0], {"top_k": 4, "top_p": 1.0, "min_p": 0.0}, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_kept_sets(kernel, x, parameters, kept):
    one = rows(1, **{name: [value] for name, value in parameters.items()})
    left = processed(kernel.draw(torch.tensor([x]), one))[0]
    assert (left > -INF).nonzero()[:, 0].tolist() == kept
    scaled = torch.tensor(x) / parameters.get("temperature", 1.0)
    assert torch.equal(left[kept], scaled[kept])


def test_rows_of_different_parameters_keep_their_places(kernel):
    logits = torch.tensor([[3.0, 1.0, 2.0]] * 5)
    drawn = kernel.draw(
        logits, rows(5, top_k=[1, 3, 1, 2, 3], temperature=[1.0, 1.0, 2.0, 1.0, 0.0])
    )
    assert processed(drawn).tolist() == [
        [3.0, -INF, -INF],
        [3.0, 1.0, 2.0],
        [1.5, -INF, -INF],
        [3.0, -INF, 2.0],
        [3.0, 1.0, 2.0],
    ]
    assert drawn.ids[[0, 2, 4]].tolist() == [0, 0, 0]
    assert drawn.ids.dtype == torch.int64


@pytest.mark.clause("input.untouched")
def test_the_callers_logits_stay(kernel):
    logits = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 5.0]])
    before = logits.clone()
    kernel.draw(
        logits, rows(2, top_k=[1, 2], top_p=[0.5, 1.0], temperature=[0.5, 0.0], min_p=[0.5, 0])
    )
    assert torch.equal(logits, before)


@pytest.mark.clause("greedy.argmax")
def test_greedy_rows_alone_and_beside_random_rows(kernel):
    logits = torch.tensor([[1.0, 7.0, 7.0], [0.0, 0.0, 90.0]])
    assert kernel.draw(logits[:1], rows(1, temperature=[0.0])).ids.tolist() == [1]
    assert kernel.draw(logits, rows(2, temperature=[0.0, 1.0])).ids.tolist() == [1, 2]


@pytest.mark.clause("seed.batch")
def test_a_seeded_row_draws_the_same_bits_in_every_batch(kernel):
    row = torch.randn(4096, generator=seeded(0))
    alone = kernel.draw(row[None], rows(1, top_p=[0.9], generators={0: seeded(7)}))
    for size, place in ((2, 0), (2, 1), (9, 4)):
        logits = torch.randn(size, 4096, generator=seeded(size))
        logits[place] = row
        # the neighbours: seeded otherwise, unseeded, with the same parameters and with others
        top_p = [0.9, *[0.5] * (size - 1)]
        top_p[place] = 0.9
        generators = {place: seeded(7), 1 - min(place, 1): seeded(8)}
        handed = logits.t().contiguous().t()
        drawn = kernel.draw(handed, rows(size, top_p=top_p, generators=generators))
        assert drawn.ids[place] == alone.ids[0]
        assert torch.equal(processed(drawn)[place], processed(alone)[0])


@pytest.mark.clause("seed.reproducible")
def test_seeded_rows_take_nothing_from_the_default_generator(kernel):
    torch.manual_seed(3)
    start = torch.get_rng_state()
    kernel.draw(torch.zeros(2, 10), rows(2, generators={0: seeded(1), 1: seeded(2)}))
    assert torch.equal(torch.get_rng_state(), start)
    kernel.draw(torch.zeros(2, 10), rows(2, generators={1: seeded(2)}))
    assert not torch.equal(torch.get_rng_state(), start)


@pytest.mark.clause("nonfinite.contained")
@pytest.mark.parametrize("lawless", [[NAN, 0.0], [INF, 0.0], [-INF, -INF]])
@pytest.mark.parametrize("generators", [{}, {1: 5}])
def test_a_row_without_a_law_is_refused_by_its_number(kernel, lawless, generators):
    logits = torch.tensor([[0.0, 1.0], lawless])
    given = {row: seeded(seed) for row, seed in generators.items()}
    with pytest.raises(ValueError, match=r"rows \[1\] have no law"):
        kernel.draw(logits, rows(2, generators=given))


def test_behind_the_pipeline_a_greedy_row_keeps_its_logprobs(kernel):
    requests = [
        Request(SamplingParams(temperature=0, logprobs=1)),
        Request(SamplingParams(temperature=0.5, top_k=1, logprobs=1)),
    ]
    sampler = Sampler(
        "processed_logits", filter_and_draw=kernel.draw, folds=kernel.capabilities.folds
    )
    logits = torch.tensor([[1.0, 3.0], [4.0, 2.0]])
    output = sampler(logits, SamplingMetadata.from_requests(requests, 2))
    assert output.sampled_token_ids.tolist() == [[1], [0]]
    assert output.logprobs_tensors is not None
    assert output.logprobs_tensors.logprobs[:, 0].tolist() == [3.0, 8.0]


@pytest.mark.statistical
@pytest.mark.clause("draw.law")
def test_law_of_a_filtered_row(kernel):
    """1:2:4:8 at T = 1/2 is 1:4:16:64; top-k 3 leaves 4:16:64, so the ids have 1/21, 4/21, 16/21.

    Three two-sided exact binomial tests share alpha = 1e-9, 6.3 standard deviations a tail.  Power:
    at T = 0.55 the top id would have 0.7335, which is 17 standard deviations away in 70 000 draws.
    """
    draws, alpha = 70_000, 1e-9
    row = torch.tensor([0.0, math.log(2), math.log(4), math.log(8)])
    torch.manual_seed(20)
    drawn = kernel.draw(
        row.expand(draws, -1), rows(draws, temperature=[0.5] * draws, top_k=[3] * draws)
    )
    counts = np.bincount(drawn.ids.numpy(), minlength=4)
    assert counts[0] == 0
    for count, probability in zip(counts[1:], (1 / 21, 4 / 21, 16 / 21), strict=True):
        tail = min(binom.cdf(count, draws, probability), binom.sf(count - 1, draws, probability))
        assert tail >= alpha / 6


def test_the_lowest_temperature_that_is_no_greedy_row_draws():
    # float32(1e-5) lies below the double 1e-5, and is a temperature all the same
    params = SamplingParams(temperature=1e-5, temperature_floor=0)
    metadata = SamplingMetadata.from_requests([Request(params)] * 200, 2)
    kernel = adapter.TransformersKernel()
    sampler = Sampler(filter_and_draw=kernel.draw, folds=kernel.capabilities.folds)
    seen = sampler(torch.zeros(200, 2), metadata).sampled_token_ids
    assert set(seen.flatten().tolist()) == {0, 1}  # missed with probability 2^-199

"""The law's masks, penalties, batches and refusals, worked by hand."""

import math

import pytest
import torch

from refsampler.law import target_law, trace_law
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.semantics import Semantics, Step, profile
from refsampler.validation import ParameterError

INF = math.inf


def law_of(values, request):
    return target_law(torch.tensor([values]), [request])


def ids(mask):
    return mask[0].nonzero().flatten().tolist()


def test_masks():
    words = ((0,), (1, 2), (5, 3))
    params = SamplingParams(
        bad_words_token_ids=words, min_tokens=3, stop_token_ids=(4,), eos_token_id=5
    )
    # 0 always; 2 because 1 was just put out; 3 not, because 5 was not; 4 and 5 while 2 < 3
    law = law_of([0.0] * 8, Request(params, prompt=(5,), output=(5, 1)))
    assert ids(law.core) == [1, 3, 6, 7]
    done = law_of([0.0] * 8, Request(params, prompt=(), output=(1, 5, 1)))
    assert ids(done.core) == [1, 3, 4, 5, 6, 7]


def test_allow_list_and_bias():
    params = SamplingParams(allowed_token_ids=(0, 1, 2), logit_bias=((1, 2.0), (2, -INF), (3, 9.0)))
    law = law_of([0.0] * 4, Request(params))
    assert ids(law.core) == [0, 1]
    assert law.logprobs[0, 1] - law.logprobs[0, 0] == pytest.approx(2.0)


def test_penalties_by_hand():
    # vLLM's own numbers for this row, as measured: [2, -8, .75, -.75, 4, -inf]
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    request = Request(params, prompt=(0, 1), output=(2, PLACEHOLDER, 2, 3))
    steps = dict(trace_law(torch.tensor([4.0, -4.0, 4.0, 0.0, 4.0, -INF]), request))
    assert steps[Step.PRESENCE].tolist() == [2.0, -8.0, 0.75, -0.75, 4.0, -INF]


def test_scopes_and_window():
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5)
    request = Request(params, prompt=(0, 1), output=(2,))
    row = torch.tensor([4.0, 4.0, 4.0])

    def processed(name, last=Step.FREQUENCY):
        return dict(trace_law(row, request, profile(name)))[last].tolist()

    assert processed("vllm") == [2.0, 2.0, 1.5]
    assert processed("sglang", Step.REPETITION) == [4.0, 4.0, 1.75]  # (4 - 0.5) / 2
    assert processed("llama.cpp") == [1.5, 1.5, 1.5]
    short = Semantics(window=2)
    assert dict(trace_law(row, request, short))[Step.FREQUENCY].tolist() == [4.0, 2.0, 1.5]


def test_drafts_are_history_for_the_bonus_position():
    params = SamplingParams(presence_penalty=1.0, bad_words_token_ids=((1, 2),))
    request = Request(params, output=(0,), drafts=(1,))
    rows = torch.zeros(1, 3)
    plain = target_law(rows, [request])
    bonus = target_law(rows, [request], predict_bonus_token=True)
    assert (ids(plain.core), ids(bonus.core)) == ([0, 1, 2], [0, 1])
    assert bonus.logprobs[0, 0] == bonus.logprobs[0, 1]
    assert plain.logprobs[0, 1] - plain.logprobs[0, 0] == pytest.approx(1.0)


def test_parameters_reach_the_law_as_float32():
    t = torch.tensor(0.7).double().item()
    law = law_of([1.0, 0.0], Request(SamplingParams(temperature=0.7)))
    assert law.logprobs[0, 0] - law.logprobs[0, 1] == pytest.approx(1 / t, rel=1e-14)


def test_rows_without_a_law():
    rows = torch.tensor([[0.0, math.nan], [0.0, INF], [-INF, -INF], [0.0, -INF], [1.0, 1.0]])
    banned = Request(SamplingParams(allowed_token_ids=(1,)))
    law = target_law(rows, [Request()] * 3 + [banned, Request()])
    assert law.valid.tolist() == [False, False, False, False, True]
    for mask in (law.core, law.hull, law.admissible, law.lumped):
        assert mask[:4].any().item() is False
    assert law.logprobs[:4].tolist() == [[-INF, -INF]] * 4
    assert not law.logprobs.isnan().any()
    assert not law.exact[:4].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_strides(dtype):
    rows = torch.tensor([[1.0, 9.0, 0.5, 9.0], [3.0, 9.0, 1.0, 9.0]], dtype=dtype)[:, ::2]
    law = target_law(rows, [Request()] * 2)
    assert law.logprobs.diff(dim=-1).flatten().tolist() == pytest.approx([-0.5, -2.0])


def test_no_rows():
    law = target_law(torch.zeros(0, 5), [])
    assert (law.logprobs.shape, law.valid.shape) == ((0, 5), (0,))


def test_refusals():
    with pytest.raises(TypeError, match=r"logits\.dtype = torch\.float64"):
        target_law(torch.zeros(1, 2, dtype=torch.float64), [Request()])
    with pytest.raises(ValueError, match="requests = 1"):
        target_law(torch.zeros(2, 2), [Request()])
    with pytest.raises(ValueError, match="chunk_rows = 0"):
        target_law(torch.zeros(1, 2), [Request()], chunk_rows=0)
    with pytest.raises(ParameterError, match="logit_bias = 2"):
        target_law(torch.zeros(1, 2), [Request(SamplingParams(logit_bias=((2, 1.0),)))])
    with pytest.raises(ParameterError, match="logit_bias = 2"):
        trace_law(torch.zeros(2), Request(SamplingParams(logit_bias=((2, 1.0),))))


def test_trace_names_every_step_in_order():
    for name in ("vllm", "lmdeploy", "mlx-lm"):
        semantics = profile(name)
        steps = trace_law(torch.tensor([1.0, 0.0]), Request(), semantics)
        assert tuple(step for step, _ in steps) == semantics.order


def test_trace_of_the_filters():
    params = SamplingParams(temperature=0.5, min_p=0.01, top_k=2, top_p=0.5)
    steps = dict(trace_law(torch.tensor([1.0, 3.0, 2.0, -3.0]), Request(params)))
    assert steps[Step.THINKING].tolist() == [1.0, 3.0, 2.0, -3.0]
    assert steps[Step.TEMPERATURE].tolist() == [2.0, 6.0, 4.0, -6.0]
    assert steps[Step.MIN_P].tolist() == [2.0, 6.0, 4.0, -INF]  # e^-4 = .018
    assert steps[Step.TOP_K].tolist() == [-INF, 6.0, 4.0, -INF]
    assert steps[Step.TOP_P].tolist() == [-INF, 6.0, -INF, -INF]

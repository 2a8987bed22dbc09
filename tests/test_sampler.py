"""The nine steps on batches worked by hand."""

import math
import re
from dataclasses import replace

import pytest
import torch

from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.processors import LogitsProcessor
from refsampler.request import Request, ThinkingMarkers
from refsampler.sampler import Sampler

INF = float("inf")
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


def request(prompt=(), output=(), drafts=(), **params):
    return Request(SamplingParams(**params), prompt, output, drafts)


def sample(logits, *requests, sampler=None, **options):
    tensor = torch.tensor(logits, dtype=torch.float32)
    metadata = SamplingMetadata.from_requests(requests, tensor.shape[-1])
    return (sampler or Sampler())(tensor, metadata, **options)


def logprobs_of(output):
    assert output.logprobs_tensors is not None
    return output.logprobs_tensors


def ids(logits, *requests, **options):
    return sample(logits, *requests, **options).sampled_token_ids.flatten().tolist()


def processed(logits, *requests, **options):
    wanting = [replace(r, params=replace(r.params, logprobs=-1)) for r in requests]
    sampler = Sampler("processed_logits")
    output = sample(logits, *wanting, sampler=sampler, **options)
    tensors = logprobs_of(output)
    # the top V of every row, put back in the order of the ids
    rows = torch.full((len(requests), len(logits[0])), math.nan)
    columns = tensors.logprob_token_ids[:, 1:].long()
    return rows.scatter(-1, columns, tensors.logprobs[:, 1:]).tolist()


def test_the_form_of_the_output():
    output = sample([[0, 1], [1, 0]], request(temperature=0), request(temperature=0))
    assert output.sampled_token_ids.tolist() == [[1], [0]]
    assert output.sampled_token_ids.dtype == torch.int32
    assert output.logprobs_tensors is None
    assert output.valid.tolist() == [True, True]


def test_zero_rows_come_back_before_any_flag_is_read():
    metadata = SamplingMetadata.from_requests([], 5)
    assert metadata.all_greedy
    assert metadata.all_random
    output = Sampler()(torch.empty(0, 5), metadata)
    assert output.sampled_token_ids.shape == (0, 1)
    assert output.sampled_token_ids.dtype == torch.int32


def test_all_greedy_and_all_random_exclude_each_other():
    metadata = SamplingMetadata.from_requests([request()], 2)
    with pytest.raises(AssertionError, match="exclude each other"):
        Sampler()(torch.zeros(1, 2), replace(metadata, all_greedy=True))


def test_a_random_batch_without_temperatures_is_refused():
    metadata = SamplingMetadata.from_requests([request()], 2)
    with pytest.raises(ValueError, match="temperature = None is refused"):
        Sampler()(torch.zeros(1, 2), replace(metadata, temperature=None))


def test_an_unknown_mode_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"logprobs_mode = 'raw' is refused: allowed are raw_logprobs"
    ):
        Sampler("raw")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_the_callers_logits(dtype):
    logits = torch.tensor([[1.0, 3.0, 2.0]], dtype=dtype)
    before = logits.clone()
    one = request(temperature=0, logit_bias=((0, 5.0),))
    metadata = SamplingMetadata.from_requests([one], 3)
    assert Sampler()(logits, metadata).sampled_token_ids.item() == 0
    assert torch.equal(logits, before)


def test_float64_is_refused_by_name():
    metadata = SamplingMetadata.from_requests([request()], 2)
    with pytest.raises(TypeError, match=r"logits\.dtype = torch\.float64 is refused"):
        Sampler()(torch.zeros(1, 2, dtype=torch.float64), metadata)


def test_a_mask_of_another_width_is_refused():
    metadata = SamplingMetadata.from_requests([request(allowed_token_ids=(1,))], 3)
    narrow = replace(metadata, allowed_token_ids_mask=torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"allowed_token_ids_mask\.shape = \(1, 2\) is refused"):
        Sampler()(torch.zeros(1, 3), narrow)


def test_logits_of_another_width_than_the_metadata_are_refused():
    # as 6-wide logits, "off" would read as k = 4 and the prompt's padding 4 as an id
    metadata = SamplingMetadata.from_requests([request(), request(top_k=2)], 4)
    with pytest.raises(
        ValueError, match=r"logits\.shape = \(2, 6\) is refused: allowed is \(2, 4\)"
    ):
        Sampler()(torch.zeros(2, 6), metadata)


def test_a_row_that_overflows_after_the_temperature_is_flagged():
    # beyond the legal range of logits; the id stays in range and the flag tells
    metadata = SamplingMetadata.from_requests([request(temperature=0.01)], 2)
    output = Sampler()(torch.tensor([[1e37, 3e38]]), metadata)
    assert output.valid.tolist() == [False]


def test_greedy_takes_the_lowest_of_equal_maxima_alone_and_beside_random_rows():
    greedy = request(temperature=0)
    assert ids([[1, 3, 3]], greedy) == [1]
    assert ids([[1, 3, 3], [0, 0, 9000]], greedy, request()) == [1, 2]


def test_greedy_threshold_is_used_exactly():
    # 1e-5 itself is a temperature: both ids have one half; just below it is greedy
    at = request(temperature=1e-5, temperature_floor=0)
    below = request(temperature=9.9e-6, temperature_floor=0)
    seen = {ids([[0, 0]], at)[0] for _ in range(200)}
    assert seen == {0, 1}  # missed with probability 2^-199
    assert {ids([[0, 0]], below)[0] for _ in range(20)} == {0}


def test_masks_act_before_bias_and_bias_lifts_no_ban():
    one = request(
        temperature=0,
        allowed_token_ids=(0, 1, 2),
        bad_words_token_ids=((0,),),
        min_tokens=1,
        stop_token_ids=(1,),
        logit_bias=((0, 100.0), (1, 100.0), (3, 100.0)),
    )
    assert processed([[5, 5, 1, 5]], one) == [[-INF, -INF, 1, -INF]]
    assert ids([[5, 5, 1, 5]], one) == [2]


def test_bias_acts_before_penalties():
    # -1 + 3 = 2, halved by r = 2; the other way round it would be -2 + 3 = 1
    one = request(temperature=0, logit_bias=((0, 3.0),), repetition_penalty=2.0, output=(0,))
    assert processed([[-1, 0]], one) == [[1, 0]]


def test_the_worked_row_of_the_penalties_through_the_sampler():
    one = request(
        prompt=(0, 1),
        output=(2, 2, 3),
        temperature=0,
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
    )
    assert processed([[4, -4, 4, 0, 4, -INF]], one) == [[2, -8, 0.75, -0.75, 4, -INF]]


def test_min_p_then_top_k_then_top_p_of_what_is_left():
    logs = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    # of .4/.3 alone, .4 is 4/7 > .55: one id; on the full row .4 < .55 would keep two
    [kept] = processed([logs], request(top_k=2, top_p=0.55))
    assert [x > -INF for x in kept] == [True, False, False, False]
    # min-p .6 leaves .4/.3 (.3 >= .24), and top-p .6 of those needs both (4/7 < .6)
    [kept] = processed([logs], request(min_p=0.6, top_p=0.6))
    assert [x > -INF for x in kept] == [True, True, False, False]


def test_min_p_is_measured_after_the_temperature():
    logs = [math.log(p) for p in (0.5, 0.25, 0.25)]
    # at T = 2 the ratio .5 becomes sqrt(.5) = .71 >= .6
    [kept] = processed([logs], request(min_p=0.6, temperature=2.0))
    assert all(x > -INF for x in kept)
    [kept] = processed([logs], request(min_p=0.6))
    assert [x > -INF for x in kept] == [True, False, False]


def test_temperature_divides():
    assert processed([[4, 2]], request(temperature=0.5)) == [[8, 4]]


def test_processed_values_of_a_greedy_row_are_the_same_alone_and_mixed():
    greedy = request(temperature=0, logit_bias=((0, 1.0),))
    alone = processed([[1, 2, 3]], greedy)
    mixed = processed([[1, 2, 3], [0, 0, 0]], greedy, request(temperature=0.5, top_k=1))
    assert alone[0] == mixed[0] == [2, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_modes_show_raw_or_processed_logits_or_logprobs(mode):
    one = request(temperature=0.5, logit_bias=((0, 1.0),), logprob_token_ids=(0, 1))
    output = sample([[1, 0]], one, sampler=Sampler(mode))
    shown = logprobs_of(output).logprobs[0, 1:].tolist()
    logits: list[float] = [1, 0] if mode.startswith("raw") else [4, 0]
    if mode.endswith("logprobs"):
        logits = [x - math.log(math.exp(logits[0]) + math.exp(logits[1])) for x in logits]
    # float32 log-softmax: contract, "Rounding"
    assert shown == pytest.approx(logits, abs=2e-5)


def test_a_call_may_override_the_mode():
    one = request(logprobs=0, temperature=0)
    output = sample([[1, 0]], one, logprobs_mode="raw_logits")
    assert logprobs_of(output).logprobs.tolist() == [[1]]


def test_raw_logits_do_not_alias_the_callers():
    logits = torch.tensor([[1.0, 0.0]])
    metadata = replace(
        SamplingMetadata.from_requests([request(temperature=0)], 2), max_num_logprobs=-1
    )
    shown = logprobs_of(Sampler("raw_logits")(logits, metadata)).logprobs
    assert shown.data_ptr() != logits.data_ptr()


def test_the_bonus_token_sees_the_drafts_as_history():
    one = request(
        output=(0,),
        drafts=(1, 1),
        temperature=0,
        frequency_penalty=1.0,
        bad_words_token_ids=((1, 2),),
    )
    assert processed([[0, 0, 0]], one) == [[-1, 0, 0]]
    assert processed([[0, 0, 0]], one, predict_bonus_token=True) == [[-1, -2, -INF]]


def test_a_forced_end_of_thinking_beats_every_mask():
    one = request(prompt=(1,), temperature=0, thinking_token_budget=0, allowed_token_ids=(0,))
    metadata = SamplingMetadata.from_requests([one], 4, thinking=ThinkingMarkers((1,), (2,)))
    output = Sampler()(torch.zeros(1, 4), metadata)
    assert output.sampled_token_ids.item() == 2
    assert output.valid.item()


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", [[math.nan, 0, 0], [INF, 0, 0], [-INF, -INF, -INF]])
def test_a_row_without_a_law_is_flagged_and_changes_no_other(bad, temperature):
    one = request(temperature=temperature)
    output = sample([bad, [0, 9000, 0]], one, one)
    assert 0 <= output.sampled_token_ids[0].item() < 3
    assert output.sampled_token_ids[1].item() == 1
    assert output.valid.tolist() == [False, True]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("bad", [[math.nan, 0, 0], [INF, 0, 0], [-INF, -INF, -INF]])
def test_logprobs_are_never_nan(bad, mode):
    one = request(temperature=0, logprobs=-1)
    shown = logprobs_of(sample([bad, [0, -INF, -INF]], one, one, sampler=Sampler(mode))).logprobs
    assert shown[0].eq(-INF).all()
    assert shown[1].tolist() == [0, 0, -INF, -INF]


def test_seeded_rows_do_not_depend_on_their_neighbours():
    seeded = request(seed=11)
    rows = [[0.0] * 1000]
    alone = ids(rows, seeded)[0]
    for neighbours in ((request(),), (request(seed=5), request(temperature=0)), (request(),) * 8):
        assert ids(rows * (1 + len(neighbours)), *neighbours, seeded)[-1] == alone


def test_unseeded_rows_get_fresh_noise_beside_seeded_ones():
    rows = [[0.0] * 10_000] * 2
    # two equal draws of one id in 10,000, each of five times: probability 1e-20
    drawn = [ids(rows, request(seed=3), request()) for _ in range(6)]
    assert len({seeded for seeded, _ in drawn}) == 1
    assert len({free for _, free in drawn}) > 1


class Halve(LogitsProcessor):
    """Divides all logits by two: argmax-invariant."""

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits / 2


class Reverse(Halve):
    """Reverses the ids: not argmax-invariant."""

    def is_argmax_invariant(self):
        return False

    def apply(self, logits):
        return logits.flip(-1)


def test_custom_processors_act_in_the_step_that_fits():
    logits = torch.tensor([[8.0, 0.0, 4.0]])
    one = replace(request(temperature=0.5, frequency_penalty=1.0, output=(2,)))
    metadata = replace(
        SamplingMetadata.from_requests([one], 3, custom=[Halve, Reverse]), max_num_logprobs=-1
    )
    shown = logprobs_of(Sampler("processed_logits")(logits, metadata)).logprobs
    # reversed [4,0,8], penalty on id 2 [4,0,7], T [8,0,14], halved
    assert shown.tolist() == [[4, 0, 7]]


def test_float32_race_and_float64_race_take_other_noise():
    rows = [[0.0] * 1000]
    metadata = SamplingMetadata.from_requests([request(seed=1)], 1000)
    again = SamplingMetadata.from_requests([request(seed=1)], 1000)
    narrow = Sampler(use_fp64_gumbel=False)(torch.tensor(rows), metadata)
    noise = torch.empty(1000).exponential_(generator=torch.Generator().manual_seed(1))
    assert narrow.sampled_token_ids.item() == noise.argmin().item()
    wide = Sampler()(torch.tensor(rows), again)
    noise = torch.empty(1000, dtype=torch.float64).exponential_(
        generator=torch.Generator().manual_seed(1)
    )
    assert wide.sampled_token_ids.item() == noise.argmin().item()


@pytest.mark.parametrize("shape", [(1, 3), (3, 3), (2, 0)])
def test_logits_that_are_not_one_row_a_request_are_refused(shape):
    metadata = SamplingMetadata.from_requests([request(temperature=0), request(temperature=0)], 3)
    message = f"logits.shape = {shape} is refused: allowed is (2, 3), one row a request"
    with pytest.raises(ValueError, match=re.escape(message)):
        Sampler()(torch.zeros(shape), metadata)

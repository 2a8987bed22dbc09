"""SamplingMetadata of small batches, field by field, against expectations written by hand."""

import pytest
import torch

from refsampler.metadata import SamplingMetadata, _forbidden, generators_of
from refsampler.params import SamplingParams
from refsampler.processors import LogitsProcessor, MinTokens
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.validation import ParameterError

V = 6


def of(*requests, **settings):
    return SamplingMetadata.from_requests(requests, V, **settings)


def asking(**params):
    return Request(SamplingParams(**params))


def test_a_batch_that_asks_for_nothing_has_nothing():
    metadata = of(Request(prompt=(1, 2)), Request())
    assert metadata.temperature is not None
    assert metadata.temperature.tolist() == [1, 1]
    assert (metadata.all_greedy, metadata.all_random) == (False, True)
    assert metadata.top_p is None
    assert metadata.top_k is None
    assert metadata.generators == {}
    assert metadata.max_num_logprobs is None
    assert metadata.no_penalties
    assert metadata.prompt_token_ids is None
    assert metadata.frequency_penalties.tolist() == [0, 0]
    assert metadata.presence_penalties.tolist() == [0, 0]
    assert metadata.repetition_penalties.tolist() == [1, 1]
    assert metadata.allowed_token_ids_mask is None
    assert metadata.bad_words_token_ids == {}
    assert metadata.logprob_token_ids is None
    assert metadata.spec_token_ids is None
    assert metadata.thinking_budget_state_holder is None
    assert metadata.logitsprocs.min_p is None
    assert metadata.steps == [0, 0]


@pytest.mark.parametrize(
    ("temperatures", "tensor", "all_greedy", "all_random"),
    [
        ((0.0, 0.0), None, True, False),
        ((0.0, 0.5), [0.0, 0.5], False, False),
        ((2.0, 0.5), [2.0, 0.5], False, True),
        # below 1e-5 is greedy and is stored as 0
        ((5e-6, 0.5), [0.0, 0.5], False, False),
        ((5e-6, 0.0), None, True, False),
    ],
)
def test_temperature_and_flags(temperatures, tensor, all_greedy, all_random):
    metadata = of(*[asking(temperature=t, temperature_floor=0) for t in temperatures])
    seen = None if metadata.temperature is None else metadata.temperature.tolist()
    assert seen == tensor
    assert (metadata.all_greedy, metadata.all_random) == (all_greedy, all_random)


def test_a_temperature_of_1e_minus_5_is_random_also_in_float32():
    metadata = of(asking(temperature=1e-5, temperature_floor=0))
    assert metadata.all_random
    assert metadata.temperature is not None
    assert not (metadata.temperature < 1e-5).any()


def test_top_p_is_one_where_it_is_off():
    metadata = of(asking(top_p=0.5), asking(), asking(top_p=0.25, temperature=0))
    assert metadata.top_p is not None
    assert metadata.top_p.dtype == torch.float32
    assert metadata.top_p.tolist() == [0.5, 1, 1]


def test_top_k_is_v_where_it_is_off():
    ks = (1, V - 1, V, V + 1, 0, -1)
    metadata = of(*[asking(top_k=k) for k in ks], asking(top_k=2, temperature=0))
    assert metadata.top_k is not None
    assert metadata.top_k.dtype == torch.int32
    assert metadata.top_k.tolist() == [1, V - 1, V, V, V, V, V]
    assert of(*[asking(top_k=k) for k in ks[2:]]).top_k is None


def test_only_seeded_rows_have_a_generator():
    metadata = of(asking(), asking(seed=7), asking(seed=-1), asking(seed=2**64 - 1))
    assert sorted(metadata.generators) == [1, 3]
    assert metadata.generators[1].initial_seed() == 7
    assert metadata.generators[3].initial_seed() == 2**64 - 1
    again = generators_of([asking(seed=7)], torch.device("cpu"))[0]
    drawn = torch.rand(3, generator=metadata.generators[1])
    assert torch.rand(3, generator=again).tolist() == drawn.tolist()


def test_a_negative_seed_has_the_generator_of_the_same_64_bits():
    assert of(asking(seed=-2)).generators[0].initial_seed() == 2**64 - 2


def test_given_generators_and_steps_are_used():
    mine = torch.Generator().manual_seed(3)
    metadata = of(asking(seed=7), generators={0: mine}, steps=[5])
    assert metadata.generators == {0: mine}
    assert metadata.steps == [5]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((None, None), None),
        ((0, None), 0),
        ((2, 5), 5),
        ((2, -1), V),
    ],
)
def test_max_num_logprobs_is_the_largest_number(wanted, expected):
    assert of(*[asking(logprobs=n) for n in wanted]).max_num_logprobs == expected


def test_a_list_of_logprobs_is_not_a_number_of_them():
    metadata = of(asking(logprobs=2, logprob_token_ids=(4, 1)), asking(logprobs=1), asking())
    assert metadata.logprob_token_ids == {0: (4, 1)}
    assert metadata.max_num_logprobs == 1
    assert of(asking(logprob_token_ids=(4,))).max_num_logprobs is None


def test_penalties_bring_padded_prompts():
    metadata = of(
        Request(SamplingParams(repetition_penalty=1.5), prompt=(1, 2, 3)),
        Request(SamplingParams(frequency_penalty=-0.5, presence_penalty=0.25), prompt=(4,)),
        Request(),
    )
    assert not metadata.no_penalties
    assert metadata.repetition_penalties.tolist() == [1.5, 1, 1]
    assert metadata.frequency_penalties.tolist() == [0, -0.5, 0]
    assert metadata.presence_penalties.tolist() == [0, 0.25, 0]
    assert metadata.prompt_token_ids is not None
    assert metadata.prompt_token_ids.dtype == torch.int64
    assert metadata.prompt_token_ids.tolist() == [[1, 2, 3], [4, V, V], [V, V, V]]


def test_penalties_without_any_prompt():
    metadata = of(asking(presence_penalty=1), asking())
    assert metadata.prompt_token_ids is not None
    assert metadata.prompt_token_ids.shape == (2, 0)


def test_outputs_keep_placeholders():
    metadata = of(Request(output=(3, PLACEHOLDER)), Request())
    assert [list(output) for output in metadata.output_token_ids] == [[3, PLACEHOLDER], []]


def test_true_in_the_mask_is_forbidden():
    metadata = of(asking(), asking(allowed_token_ids=(1, 4)))
    assert metadata.allowed_token_ids_mask is not None
    assert metadata.allowed_token_ids_mask.tolist() == [
        [False] * 6,
        [True, False, True, True, False, True],
    ]


def test_bad_words_by_row():
    assert of(asking(), asking(bad_words_token_ids=((1, 2), (3,)))).bad_words_token_ids == {
        1: ((1, 2), (3,))
    }


def test_drafts_of_every_row_if_any_row_has_some():
    metadata = of(Request(), Request(drafts=(3, 1)))
    assert metadata.spec_token_ids is not None
    assert [list(drafts) for drafts in metadata.spec_token_ids] == [[], [3, 1]]


def test_processors_know_the_batch():
    metadata = of(
        asking(min_p=0.25),
        asking(min_tokens=1, eos_token_id=5),
        asking(logit_bias=((2, -1.5),)),
    )
    assert metadata.logitsprocs.min_p is not None
    assert metadata.logitsprocs.min_p.tolist() == [0.25, 0, 0]
    x = torch.zeros(3, V)
    for processor in metadata.logitsprocs.non_argmax_invariant:
        x = processor.apply(x)
    assert x.tolist() == [[0] * 6, [0] * 5 + [-torch.inf], [0, 0, -1.5, 0, 0, 0]]


def test_thinking_needs_markers_and_a_budget():
    markers = ThinkingMarkers((1,), (2,))
    budgeted = asking(thinking_token_budget=0)
    with pytest.raises(ParameterError, match=r"thinking_token_budget = 0 .* without thinking mark"):
        of(budgeted)
    assert of(asking(), thinking=markers).thinking_budget_state_holder is None
    assert of(asking(), budgeted, thinking=markers).thinking_budget_state_holder is not None


def test_no_rows():
    metadata = of()
    assert metadata.repetition_penalties.shape == (0,)
    assert metadata.output_token_ids == []
    assert metadata.steps == []


def test_a_request_out_of_range_is_refused():
    with pytest.raises(ParameterError, match="prompt = 6 is refused: allowed is ids from 0 to 5"):
        of(Request(), Request(prompt=(6,)))


class Custom(LogitsProcessor):
    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        self.size = batch_update.batch_size

    def apply(self, logits):
        return logits


def test_custom_processors_are_built_and_hear_of_the_batch():
    (_, custom) = of(asking(), asking(), custom=(Custom,)).logitsprocs.argmax_invariant
    assert isinstance(custom, Custom)
    assert custom.size == 2
    assert custom.config.vocab_size == V


def test_speculative_decoding_refuses_processors_and_parameters():
    metadata = of(asking(min_tokens=1), speculative=True)
    assert [type(one) for one in metadata.logitsprocs.non_argmax_invariant] == [MinTokens]
    for refused in (asking(min_p=0.1), asking(logit_bias=((1, 1.0),))):
        with pytest.raises(ValueError, match="speculative"):
            of(refused, speculative=True)
    with pytest.raises(ValueError, match="speculative"):
        of(asking(), speculative=True, custom=(Custom,))


def test_allowed_ids_that_nobody_verified_touch_no_other_row():
    params = [SamplingParams(allowed_token_ids=(0,)), SamplingParams(allowed_token_ids=(-1, 4, 2))]
    forbidden = _forbidden(params, 4, torch.device("cpu"))
    assert forbidden is not None
    assert forbidden.tolist() == [
        [False, True, True, True],
        [True, True, False, True],
    ]

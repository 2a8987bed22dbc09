"""Processors against numbers worked by hand, and how their rows follow a batch."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from refsampler.batch_update import (
    AddedRequest,
    BatchUpdate,
    Direction,
    MovedRequest,
    fresh_batch,
)
from refsampler.params import SamplingParams
from refsampler.per_request import PerRequestProcessor
from refsampler.processors import (
    EngineConfig,
    LogitBias,
    LogitsProcessor,
    MinP,
    MinTokens,
    build_logitsprocs,
    follow_rows,
)
from refsampler.request import PLACEHOLDER, Request
from refsampler.validation import ParameterError

CPU = torch.device("cpu")
INF = math.inf
CONFIG = EngineConfig(vocab_size=4, max_num_reqs=8)


def made(kind, *requests):
    processor = kind(CONFIG, CPU, False)
    processor.update_state(fresh_batch(requests))
    return processor


def asking(**params):
    return Request(SamplingParams(**params))


def admit(request):
    return f"{request.params.top_k}" if request.params.top_k else None


def added(row, top_k):
    return AddedRequest(row, SamplingParams(top_k=top_k), (), [])


def move(source, target):
    return MovedRequest(source, target, Direction.UNIDIRECTIONAL)


def swap(i, j):
    return MovedRequest(i, j, Direction.SWAP)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (None, {0: "a", 1: "b", 3: "d"}),
        (BatchUpdate(4, removed=(1,)), {0: "a", 3: "d"}),
        (BatchUpdate(4, added=(added(2, 7),)), {0: "a", 1: "b", 2: "7", 3: "d"}),
        # a new request replaces what the row held, with state or without
        (BatchUpdate(4, added=(added(1, 7),)), {0: "a", 1: "7", 3: "d"}),
        (BatchUpdate(4, added=(added(1, 0),)), {0: "a", 3: "d"}),
        # removed acts before added, so the row has the new state
        (BatchUpdate(4, removed=(1,), added=(added(1, 7),)), {0: "a", 1: "7", 3: "d"}),
        # added acts before moved, so the new state moves
        (BatchUpdate(4, added=(added(2, 7),), moved=(move(2, 1),)), {0: "a", 1: "7", 3: "d"}),
        # a move overwrites the target, with state or without, and empties the source
        (BatchUpdate(3, moved=(move(3, 1),)), {0: "a", 1: "d"}),
        (BatchUpdate(3, moved=(move(2, 1),)), {0: "a", 3: "d"}),
        (BatchUpdate(4, moved=(swap(0, 3),)), {0: "d", 1: "b", 3: "a"}),
        (BatchUpdate(4, moved=(swap(2, 3),)), {0: "a", 1: "b", 2: "d"}),
        (BatchUpdate(4, moved=(swap(3, 2),)), {0: "a", 1: "b", 2: "d"}),
        (BatchUpdate(4, moved=(swap(1, 1),)), {0: "a", 1: "b", 3: "d"}),
        # moves act one after the other: 0 -> 1 -> 3
        (BatchUpdate(4, moved=(swap(0, 1), swap(1, 3))), {0: "b", 1: "d", 3: "a"}),
    ],
)
def test_removed_then_added_then_moved(update, expected):
    before = {0: "a", 1: "b", 3: "d"}
    assert follow_rows(before, update, admit) == expected
    assert before == {0: "a", 1: "b", 3: "d"}


def test_stop_and_eos_ids_are_banned_until_there_are_min_tokens():
    output: list[int] = []
    params = SamplingParams(min_tokens=2, stop_token_ids=(3,), eos_token_id=1, ignore_eos=True)
    processor = MinTokens(CONFIG, CPU, pin_memory=False)
    processor.update_state(BatchUpdate(1, added=(AddedRequest(0, params, (), output),)))
    logits = torch.tensor([[1.0, 2, 3, 4]])
    seen = []
    for token in (0, 2, 0):
        seen.append(processor.apply(logits)[0].tolist())
        output.append(token)
        processor.update_state(None)
    assert seen == [[1, -INF, 3, -INF], [1, -INF, 3, -INF], [1, 2, 3, 4]]
    assert logits.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(("output", "banned"), [((PLACEHOLDER,), True), ((0, PLACEHOLDER), False)])
def test_a_placeholder_counts_as_generated(output, banned):
    params = SamplingParams(min_tokens=2, eos_token_id=1)
    result = made(MinTokens, Request(params, output=output)).apply(torch.zeros(1, 4))
    assert (result[0, 1].item() == -INF) is banned


def test_the_prompt_and_the_drafts_are_not_generated():
    request = Request(SamplingParams(min_tokens=1, eos_token_id=1), prompt=(0, 0), drafts=(0, 0))
    assert made(MinTokens, request).apply(torch.zeros(1, 4))[0].tolist() == [0, -INF, 0, 0]


def test_min_tokens_without_stop_ids_bans_nothing():
    assert made(MinTokens, asking(min_tokens=5)).apply(torch.zeros(1, 4)).tolist() == [[0] * 4]


def test_a_bias_is_added_to_its_row_only():
    processor = made(LogitBias, asking(logit_bias=((0, 0.5), (3, -2.0))), asking())
    logits = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, 4]])
    assert processor.apply(logits).tolist() == [[1.5, 2, 3, 2], [1, 2, 3, 4]]
    assert logits.tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]


@pytest.mark.parametrize("logit", [1.0, -INF, INF, math.nan])
def test_a_bias_of_minus_infinity_bans_whatever_was_there(logit):
    processor = made(LogitBias, asking(logit_bias=((1, -INF),)))
    assert processor.apply(torch.tensor([[0.0, logit, 0, 0]]))[0].tolist() == [0, -INF, 0, 0]


@pytest.mark.parametrize("bias", [100.0, 2.0**64])
def test_no_finite_bias_lifts_a_ban(bias):
    processor = made(LogitBias, asking(logit_bias=((1, bias),)))
    assert processor.apply(torch.tensor([[0.0, -INF, 0, 0]]))[0].tolist() == [0, -INF, 0, 0]


def test_a_bias_touches_no_other_odd_value():
    processor = made(LogitBias, asking(logit_bias=((0, 1.0),)))
    result = processor.apply(torch.tensor([[0.0, INF, -INF, math.nan]]))[0]
    assert result[:3].tolist() == [1, INF, -INF]
    assert result[3].isnan()


def test_the_bias_acts_behind_min_tokens():
    request = asking(min_tokens=1, eos_token_id=1, logit_bias=((1, 50.0), (2, 1.0)))
    processors = build_logitsprocs(CONFIG, CPU)
    processors.update_state(fresh_batch([request]))
    x = torch.zeros(1, 4)
    for processor in processors.non_argmax_invariant:
        x = processor.apply(x)
    assert x[0].tolist() == [0, -INF, 1, 0]


def dyadic(*probs):
    return torch.tensor([probs], dtype=torch.float32).log2() * math.log(2)


def test_min_p_keeps_what_reaches_its_share_of_the_maximum():
    # p = 1/2, 1/4, 1/8, 1/8 and min_p = 0.3: threshold 0.15
    processor = made(MinP, asking(min_p=0.3))
    kept = processor.apply(dyadic(0.5, 0.25, 0.125, 0.125)).isfinite()
    assert kept[0].tolist() == [True, True, False, False]


def test_min_p_of_one_keeps_all_maxima():
    kept = made(MinP, asking(min_p=1.0)).apply(torch.tensor([[2.0, 1, 2, 0]])).isfinite()
    assert kept[0].tolist() == [True, False, True, False]


def test_min_p_is_one_value_a_row_or_none():
    off, on = asking(), asking(min_p=0.25)
    assert made(MinP, off, off).min_p is None
    assert made(MinP, off, on, asking(min_p=0.5, temperature=0)).min_p.tolist() == [0, 0.25, 0]


def test_min_p_forgets_the_last_row_that_had_one():
    processor = made(MinP, asking(), asking(min_p=0.25))
    processor.update_state(BatchUpdate(1, removed=(1,)))
    assert processor.min_p is None
    logits = torch.tensor([[9.0, 0, 0, 0]])
    assert processor.apply(logits).tolist() == logits.tolist()


def test_min_p_follows_a_batch_that_only_grows():
    processor = made(MinP, asking(min_p=0.25))
    processor.update_state(BatchUpdate(2, added=(AddedRequest(1, SamplingParams(), (), []),)))
    assert processor.min_p.tolist() == [0.25, 0]
    processor.update_state(None)
    assert processor.min_p.tolist() == [0.25, 0]


class Favourite(PerRequestProcessor):
    """Lift top_k; the result shows which ids the function was given."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Tensor] | None:
        def of_output(output, row):
            row[params.top_k] = 10 * len(output)
            return row

        def of_prompt_and_output(prompt, output, row):
            return row + len(prompt) + 10 * len(output)

        return {0: None, 1: of_output, 2: of_prompt_and_output}[params.top_k]


def test_functions_get_the_ids_that_they_ask_for_and_replace_their_row():
    requests = [Request(SamplingParams(top_k=k), prompt=(0, 0, 0), output=(1,)) for k in range(3)]
    logits = torch.zeros(3, 4)
    result = made(Favourite, *requests).apply(logits)
    assert result.tolist() == [[0, 0, 0, 0], [0, 10, 0, 0], [13, 13, 13, 13]]
    # although one of them overwrote the row it was given
    assert logits.tolist() == [[0] * 4] * 3


def test_functions_follow_their_request_and_see_its_output_grow():
    output = [1]
    processor = Favourite(CONFIG, CPU, pin_memory=False)
    request = AddedRequest(1, SamplingParams(top_k=1), (), output)
    processor.update_state(BatchUpdate(2, added=(request,)))
    processor.update_state(BatchUpdate(1, removed=(0,), moved=(move(1, 0),)))
    output.append(2)
    assert processor.apply(torch.zeros(1, 4)).tolist() == [[0, 20, 0, 0]]


def test_without_functions_nothing_is_stacked():
    logits = torch.zeros(0, 4)
    assert made(Favourite).apply(logits).shape == (0, 4)


class Named(LogitsProcessor):
    """Counts how often it is asked for its list, and refuses top_k = 3."""

    invariant = False

    def __init__(self, config, device, pin_memory):
        super().__init__(config, device, pin_memory)
        self.asked = 0

    @classmethod
    def validate_params(cls, params):
        if params.top_k == 3:
            raise ParameterError("top_k", params.top_k, f"anything else with {cls.__name__}")

    def is_argmax_invariant(self):
        self.asked += 1
        return self.invariant

    def update_state(self, batch_update):
        self.updates = [*getattr(self, "updates", []), batch_update]

    def apply(self, logits):
        return logits


class Invariant(Named):
    invariant = True


def names(processors):
    return [type(one).__name__ for one in processors]


def test_built_in_processors_come_first_then_custom_ones_in_order():
    class Second(Named):
        pass

    made_of = build_logitsprocs(CONFIG, CPU, custom=(Named, Invariant, Second))
    assert names(made_of.non_argmax_invariant) == ["MinTokens", "LogitBias", "Named", "Second"]
    assert names(made_of.argmax_invariant) == ["MinP", "Invariant"]
    custom = (*made_of.non_argmax_invariant[2:], *made_of.argmax_invariant[1:])
    assert [one.asked for one in custom if isinstance(one, Named)] == [1, 1, 1]


def test_a_custom_processor_between_temperature_and_top_k_is_known():
    assert not build_logitsprocs(CONFIG, CPU).has_custom_argmax_invariant
    assert not build_logitsprocs(CONFIG, CPU, custom=(Named,)).has_custom_argmax_invariant
    assert build_logitsprocs(CONFIG, CPU, custom=(Invariant,)).has_custom_argmax_invariant


def test_every_processor_hears_of_every_step():
    processors = build_logitsprocs(CONFIG, CPU, custom=(Named, Invariant))
    update = fresh_batch([asking(min_p=0.5)])
    processors.update_state(update)
    processors.update_state(None)
    for one in (*processors.non_argmax_invariant, *processors.argmax_invariant):
        assert not isinstance(one, Named) or one.updates == [update, None]
    assert processors.min_p is not None
    assert processors.min_p.tolist() == [0.5]


def test_validate_asks_every_processor():
    params = SamplingParams(top_k=3)
    build_logitsprocs(CONFIG, CPU).validate([params])
    with pytest.raises(ValueError, match=r"top_k = 3 is refused: .* with Invariant"):
        build_logitsprocs(CONFIG, CPU, custom=(Invariant,)).validate([SamplingParams(), params])


DRAFTING = EngineConfig(vocab_size=4, max_num_reqs=8, speculative=True)


def test_with_drafts_only_min_tokens_is_built():
    processors = build_logitsprocs(DRAFTING, CPU)
    assert names(processors.non_argmax_invariant) == ["MinTokens"]
    assert processors.argmax_invariant == ()
    assert processors.min_p is None
    assert not processors.has_custom_argmax_invariant


def test_with_drafts_custom_processors_are_refused():
    with pytest.raises(ValueError, match=r"custom = 'Named, Invariant' is refused: .*speculative"):
        build_logitsprocs(DRAFTING, CPU, custom=(Named, Invariant))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(min_p=1.1e-5), "min_p = 1.1e-05 is refused: allowed is at most 1e-05"),
        (SamplingParams(logit_bias=((1, 0.0),)), "logit_bias = .* is refused: allowed is none"),
    ],
)
def test_with_drafts_min_p_and_bias_are_refused(params, message):
    processors = build_logitsprocs(DRAFTING, CPU)
    processors.validate([SamplingParams(min_p=1e-5), SamplingParams(min_tokens=1)])
    with pytest.raises(ValueError, match=message):
        processors.validate([SamplingParams(), params])

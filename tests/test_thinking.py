"""The thinking budget: what a model that never stops by itself is made to emit."""

import math
from collections.abc import Sequence

import pytest
import torch

from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.sampler import Sampler
from refsampler.thinking import ThinkingBudget, forced_id
from refsampler.validation import ParameterError

INF = math.inf
S, E, E2, T = 1, 2, 3, 9
SHORT = ThinkingMarkers(start=(S,), end=(E,))
LONG = ThinkingMarkers(start=(S, S), end=(E, E2))


def emitted(prompt, budget, wishes, markers=SHORT):
    """What comes out of a model that wishes these ids."""
    output: tuple[int, ...] = ()
    for wish in wishes:
        forced = forced_id(prompt, output, (), budget, markers)
        output = (*output, wish if forced is None else forced)
    return list(output)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (3, [T, T, T, E, T, T]),
        (1, [T, E, T, T, T, T]),
        (0, [E, T, T, T, T, T]),
        (6, [T, T, T, T, T, T]),
    ],
)
def test_a_prompt_that_ends_thinking_is_closed_after_its_budget(budget, expected):
    assert emitted((7, S), budget, [T] * 6) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ((S, T, T), [T, E, T, T]),
        ((S, T, T, T, T), [E, T, T, T]),
        ((S, T, S, T, T), [T, E, T, T]),
        ((S, T, T, E, T), [T, T, T, T]),
        ((T, E, S), [T, T, T, E]),
        ((), [T, T, T, T]),
    ],
)
def test_thinking_in_the_prompt_counts_from_its_last_start(prompt, expected):
    assert emitted(prompt, 3, [T] * 4) == expected


def test_the_count_begins_behind_a_start_in_the_output():
    assert emitted((7,), 2, [T, T, T, S, T, T, T, T]) == [T, T, T, S, T, T, E, T]


def test_a_marker_is_emitted_id_by_id_whatever_the_model_wishes():
    assert emitted((S, S), 2, [T] * 6, LONG) == [T, T, E, E2, T, T]
    assert emitted((S, S), 0, [T] * 3, LONG) == [E, E2, T]


def test_a_forced_marker_begins_at_its_first_id():
    # the model had begun its own end marker with the last id of its budget
    assert emitted((S, S), 2, [T, E, T, T, T], LONG) == [T, E, E, E2, T]


def test_an_end_of_the_prompt_that_looks_like_a_marker_is_not_forced_output():
    assert emitted((S, S, E), 0, [T] * 3, LONG) == [E, E2, T]


def test_markers_with_a_repeated_first_id():
    twice = ThinkingMarkers(start=(S,), end=(E, E, E2))
    assert emitted((S,), 1, [T] * 6, twice) == [T, E, E, E2, T, T]


def test_after_a_forced_end_a_later_section_is_closed_at_once():
    wishes = [T, T, T, S, T, S, T, T]
    assert emitted((S,), 1, wishes) == [T, E, T, S, E, S, E, T]


def test_after_an_end_of_its_own_the_next_section_counts_afresh():
    assert emitted((S,), 2, [T, E, S, T, T, T, T]) == [T, E, S, T, T, E, T]


def test_an_end_in_the_last_place_of_the_budget_is_the_models_own():
    # two ids and the end marker: nothing was forced before it, but it is what would be forced
    assert emitted((S,), 2, [T, E, S, T, T, E]) == [T, E, S, T, T, E]
    assert emitted((S,), 2, [T, T, E, S, T]) == [T, T, E, S, E]


def test_a_start_inside_a_section_does_not_renew_the_budget():
    assert emitted((S,), 3, [T, S, S, S, S]) == [T, S, S, E, S]


def test_half_a_start_is_no_start():
    assert emitted((), 0, [S, T, S, S, T, T], LONG) == [S, T, S, S, E, E2]


def test_a_placeholder_counts_and_stands_for_what_was_forced():
    assert forced_id((S,), (T, PLACEHOLDER), (), 2, SHORT) == E
    # the third id was forced to be E, so the section is closed
    assert forced_id((S,), (T, PLACEHOLDER, PLACEHOLDER), (), 2, SHORT) is None
    assert forced_id((S, S), (PLACEHOLDER, PLACEHOLDER), (), 1, LONG) == E2


def test_an_id_in_spite_of_the_marker_leaves_the_marker_due():
    assert forced_id((S,), (T, T, T), (), 1, SHORT) == E
    assert forced_id((S, S), (T, E, T), (), 1, LONG) == E


@pytest.mark.parametrize(
    ("drafts", "budget", "expected"),
    [
        ((), 1, None),
        ((T,), 1, E),
        ((T, T), 3, None),
        ((T, T, T), 3, E),
        # a draft that closes the section frees the bonus position
        ((T, E), 1, None),
    ],
)
def test_scheduled_drafts_count(drafts, budget, expected):
    # count + drafts + 1 > budget
    assert forced_id((S,), (), drafts, budget, SHORT) == expected


def budgets(*rows: tuple[Sequence[int], int | None], drafts: tuple[int, ...] = ()):
    return [
        Request(SamplingParams(thinking_token_budget=budget), prompt=tuple(prompt), drafts=drafts)
        for prompt, budget in rows
    ]


def test_a_budget_needs_markers():
    with pytest.raises(ParameterError, match="thinking_token_budget = 0 is refused"):
        ThinkingBudget.of(budgets(((S,), None), ((S,), 0)), None)


def test_there_is_nothing_to_do_without_budgets():
    assert ThinkingBudget.of(budgets(((S,), None)), None) is None
    assert ThinkingBudget.of(budgets(((S,), None), ((S,), None)), SHORT) is None
    assert ThinkingBudget.of([], SHORT) is None


def test_only_the_forced_logit_of_the_forced_row_changes():
    holder = ThinkingBudget.of(budgets(((S,), None), ((S,), 0), ((S,), 5)), SHORT)
    assert holder is not None
    logits = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    result = holder.apply(logits, predict_bonus_token=False)
    assert result.tolist() == [[0, 1, 2, 3], [4, 5, 1e9, 7], [8, 9, 10, 11]]
    assert logits[1, E] == 6


def test_drafts_are_history_only_for_the_bonus_token():
    holder = ThinkingBudget.of(budgets(((S,), 1), drafts=(0,)), SHORT)
    assert holder is not None
    logits = torch.zeros(1, 4)
    assert holder.apply(logits, predict_bonus_token=False)[0].tolist() == [0, 0, 0, 0]
    assert holder.apply(logits, predict_bonus_token=True)[0].tolist() == [0, 0, 1e9, 0]


def test_live_outputs_replace_those_of_the_requests():
    output = [0]
    holder = ThinkingBudget.of(budgets(((S,), 2)), SHORT, [output])
    assert holder is not None
    assert holder.apply(torch.zeros(1, 4), predict_bonus_token=False)[0, E] == 0
    output.append(0)
    assert holder.apply(torch.zeros(1, 4), predict_bonus_token=False)[0, E] == 1e9


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 2.0])
@pytest.mark.parametrize(
    "against",
    [
        {"allowed_token_ids": (0,)},
        {"bad_words_token_ids": ((E,),)},
        {"min_tokens": 1, "eos_token_id": E},
        {"logit_bias": ((E, -INF),)},
        {"logit_bias": ((0, 2.0**64),)},
        {"repetition_penalty": 2.0**-64},
    ],
)
def test_nothing_beats_a_forced_id(against, temperature):
    params = SamplingParams(
        thinking_token_budget=0, temperature=temperature, temperature_floor=0, **against
    )
    request = Request(params, prompt=(0, S))
    logits = torch.tensor([[8.0, 0, -8, 0]])
    metadata = SamplingMetadata.from_requests([request], 4, thinking=SHORT)
    output = Sampler()(logits, metadata)
    assert output.sampled_token_ids.tolist() == [[E]]
    assert output.valid.tolist() == [True]


def test_a_forced_id_beats_infinity():
    holder = ThinkingBudget.of(budgets(((S,), 0)), SHORT)
    assert holder is not None
    result = holder.apply(torch.tensor([[0, INF, -INF, 0]]), predict_bonus_token=False)
    assert result.argmax().item() == E

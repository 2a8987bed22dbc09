"""Gathering logprobs and ranks, worked by hand."""

import math

import pytest
import torch

from refsampler.logprobs import gather, token_ranks

INF = float("inf")
VALUES = torch.tensor([[0.0, 3.0, 1.0, 2.0], [4.0, 4.0, 4.0, -INF]])
SAMPLED = torch.tensor([3, 1])


def gathered(count, listed):
    result = gather(VALUES, SAMPLED, count, listed)
    assert result is not None
    return result


def test_nothing_asked_for_is_none():
    assert gather(VALUES, SAMPLED, None, {}) is None


def test_zero_is_the_sampled_id_only():
    result = gathered(0, {})
    assert result.logprob_token_ids.tolist() == [[3], [1]]
    assert result.logprob_token_ids.dtype == torch.int32
    assert result.logprobs.tolist() == [[2], [4]]
    assert result.selected_token_ranks.tolist() == [2, 3]
    assert result.selected_token_ranks.dtype == torch.int64


def test_top_n_follows_the_sampled_id_which_may_occur_twice():
    result = gathered(2, {})
    assert result.logprob_token_ids[0].tolist() == [3, 1, 3]
    assert result.logprobs[0].tolist() == [2, 3, 2]
    assert result.logprobs[1].tolist() == [4, 4, 4]
    assert result.valid.all()


def test_minus_one_is_the_full_row_without_ids_and_ranks():
    result = gathered(-1, {0: (1,)})
    assert torch.equal(result.logprobs, VALUES)
    assert result.logprob_token_ids.shape == result.selected_token_ranks.shape == (0,)


def test_each_row_gets_what_it_asked_for():
    # row 0 lists ids 2, 0, 1; row 1 wants the top 1
    result = gathered(1, {0: (2, 0, 1)})
    assert result.logprob_token_ids[0].tolist() == [3, 2, 0, 1]
    assert result.logprobs[0].tolist() == [2, 1, 0, 3]
    assert result.logprob_token_ids[1, 2:].tolist() == [0, 0]
    assert result.logprobs[1].tolist() == [4, 4, -INF, -INF]
    assert result.valid.tolist() == [[True] * 4, [True, True, False, False]]


def test_a_row_without_a_list_is_padded_beside_a_list():
    result = gathered(None, {1: (3,)})
    assert result.logprob_token_ids.tolist() == [[3, 0], [1, 3]]
    assert result.valid.tolist() == [[True, False], [True, True]]
    # a listed id that is masked is -inf and valid; padding is -inf and not
    assert result.logprobs.tolist() == [[2, -INF], [4, -INF]]


def test_more_than_the_vocabulary_is_refused_by_name():
    with pytest.raises(ValueError, match=r"max_num_logprobs = 5 .* at most 4"):
        gather(VALUES, SAMPLED, 5, {})


def test_rank_counts_ties_and_the_id_itself():
    values = torch.tensor([[5.0, 5.0, 5.0, 1.0], [1.0, 2.0, 3.0, 4.0], [math.nan] * 4])
    assert token_ranks(values, torch.tensor([1, 0, 2])).tolist() == [3, 4, 0]


def test_rank_on_log_softmax_merges_logits_that_float32_cannot_tell_apart():
    logits = torch.tensor([[1e-8, 0.0, -1e-8, 0.0]])
    sampled = torch.tensor([0])
    assert token_ranks(logits, sampled).tolist() == [1]
    assert token_ranks(torch.log_softmax(logits, -1), sampled).tolist() == [4]

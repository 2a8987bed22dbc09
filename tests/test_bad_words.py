"""Bad words: which ids are banned, worked by hand (clause `mask.bad-words`)."""

import pytest
import torch

from refsampler.bad_words import banned_last_ids, encode_bad_words, mask_bad_words

INF = float("inf")


@pytest.mark.parametrize(
    ("words", "output", "banned"),
    [
        ([(7,)], [], {7}),
        ([(7,)], [7, 7], {7}),
        ([(1, 2)], [], set()),
        ([(1, 2)], [1], {2}),
        ([(1, 2)], [1, 5], set()),
        ([(1, 1, 2)], [1], set()),
        ([(1, 1, 2)], [0, 1, 1], {2}),
        ([(0, 0)], [0], {0}),
        ([(3, 4), (5,), (3, 6)], [3], {4, 5, 6}),
    ],
)
def test_banned_ids(words, output, banned):
    assert banned_last_ids(words, output) == banned


def test_only_the_rows_own_output_counts_and_ids_outside_the_vocabulary_are_none():
    logits = torch.zeros(3, 4)
    masked = mask_bad_words(logits, {0: [(1, 2)], 2: [(9,), (0,)]}, [[1], [1], []])
    assert masked.tolist() == [[0, 0, -INF, 0], [0, 0, 0, 0], [-INF, 0, 0, 0]]
    assert logits.eq(0).all()


def test_words_are_encoded_bare_and_with_one_blank_in_front():
    tokens = {"ab": [1, 2], " ab": [3, 2], "cd": [4], " cd": [5, 4], "ef": [6], " ef": [6]}
    encoded = encode_bad_words(["ab", "  cd", "ef"], tokens.__getitem__)
    # " ab" starts otherwise and is as long: kept; " cd" is longer, " ef" starts alike: dropped
    assert encoded == ((1, 2), (3, 2), (4,), (6,))


@pytest.mark.parametrize("row", [-1, 2])
def test_words_of_rows_outside_the_batch_ban_nothing(row):
    logits = torch.zeros(2, 4)
    assert torch.equal(mask_bad_words(logits, {row: [(2,)]}, [[], [], []]), logits)

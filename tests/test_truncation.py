"""The filters as kept sets, worked by hand and against a sentence-by-sentence oracle."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refsampler.truncation import keep, keep_min_p, keep_top_k, keep_top_p

INF = float("inf")


def row(*values):
    return torch.tensor([values], dtype=torch.float32)


def kept(mask):
    return mask[0].nonzero().flatten().tolist()


def top_k(logits, k):
    return kept(keep_top_k(logits, torch.tensor([k], dtype=torch.int32)))


def top_p(logits, p):
    return kept(keep_top_p(logits, torch.tensor([p])))


def min_p(logits, p):
    return kept(keep_min_p(logits, torch.tensor([p])))


@pytest.mark.parametrize(
    ("values", "k", "ids"),
    [
        ((3, 1, 2, 0), 1, [0]),
        ((3, 1, 2, 0), 2, [0, 2]),
        ((3, 1, 2, 0), 4, [0, 1, 2, 3]),
        ((1, 2, 2, 2), 2, [1, 2, 3]),
        ((2, 2, 2, 1), 3, [0, 1, 2]),
        ((1, -INF, -INF), 2, [0, 1, 2]),
    ],
)
def test_top_k_keeps_every_tie_of_the_kth_value(values, k, ids):
    assert top_k(row(*values), k) == ids


@pytest.mark.parametrize(
    ("probs", "p", "ids"),
    [
        ((0.48, 0.32, 0.2), 0.6, [0, 1]),
        ((0.605, 0.395), 0.6, [0]),
        ((0.605, 0.395), 0.61, [0, 1]),
        ((0.2, 0.32, 0.48), 1e-6, [2]),
        ((0.2, 0.32, 0.48), 1.0, [0, 1, 2]),
    ],
)
def test_top_p_keeps_the_smallest_prefix_that_reaches_p(probs, p, ids):
    assert top_p(row(*map(math.log, probs)), p) == ids


def test_top_p_at_an_exact_boundary_is_strict_and_counts_ties():
    # four equal logits have masses of exactly 1/4: p = .5 is reached by two of them
    assert top_p(row(0, 0, 0, 0), 0.5) == [0, 1]
    assert top_p(row(0, 0, 0, 0), 0.5000001) == [0, 1, 2]


def test_top_p_of_one_keeps_ids_without_probability():
    assert top_p(row(0, -INF, -500), 1.0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("probs", "p", "ids"),
    [
        ((0.4, 0.3, 0.3), 0.5, [0, 1, 2]),
        ((0.4, 0.3, 0.3), 0.8, [0]),
        ((0.6, 0.3, 0.1), 0.25, [0, 1]),
        ((0.6, 0.3, 0.1), 0.0, [0, 1, 2]),
    ],
)
def test_min_p_is_relative_to_the_most_likely_id(probs, p, ids):
    assert min_p(row(*map(math.log, probs)), p) == ids


def test_min_p_of_one_keeps_all_maxima():
    assert min_p(row(2, 1, 2), 1.0) == [0, 2]


def test_keep_leaves_values_where_they_are():
    logits = row(3, 1, 2)
    assert keep(logits, torch.tensor([[True, False, True]]))[0].tolist() == [3, -INF, 2]


logit_rows = st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=1, max_size=12)
masses = st.integers(1, 999).map(lambda i: i / 1000)


@given(logit_rows, st.integers(1, 12))
def test_top_k_against_the_sentence(values, k):
    k = min(k, len(values))
    # ids above the k-th largest value are kept, ids below it are not, ties are kept
    expected = [i for i, x in enumerate(values) if sum(y > x for y in values) < k]
    assert top_k(row(*values), k) == expected


@given(logit_rows, masses)
def test_top_p_against_the_sentence(values, p):
    masses = [math.exp(x - max(values)) for x in values]
    total = math.fsum(masses)
    above = [math.fsum(m for m in masses if m > masses[i]) / total for i in range(len(values))]
    ids = top_p(row(*values), p)
    count = {x: sum(values[i] == x for i in ids) for x in set(values)}
    for i, x in enumerate(values):
        tied = values.count(x)
        # smallest number of the tied ids after which the mass reaches p
        right = sum(above[i] + n * masses[i] / total < p for n in range(tied))
        near = any(abs(above[i] + n * masses[i] / total - p) < 1e-12 for n in range(tied + 1))
        assert near or count[x] == right


@given(logit_rows, masses)
def test_filters_keep_the_argmax_and_are_blind_to_a_shift(values, p):
    shifted = [x + 16 for x in values]
    for keeping in (top_p, min_p):
        ids = keeping(row(*values), p)
        assert values.index(max(values)) in ids
        assert ids == keeping(row(*shifted), p)

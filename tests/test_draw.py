"""The race: its law, its support and whose noise a row takes."""

import math

import pytest
import torch
from scipy import stats

from refsampler.draw import draw, exponential_noise

INF = float("inf")
ALPHA = 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_law_of_the_draw(dtype):
    """False alarm <= 1e-9 (two exact binomial tests a cell); of an error of 3 % in a cell, 1 - 1e-6 is seen."""
    torch.manual_seed(11)
    probs = [0.5, 0.3, 0.15, 0.05]
    n = 400_000
    logits = torch.tensor([[math.log(p) for p in probs]]).expand(n, 4)
    counts = draw(logits, {}, dtype).bincount(minlength=4).tolist()
    for count, p in zip(counts, probs, strict=True):
        assert stats.binomtest(count, n, p).pvalue > ALPHA / len(probs)


def test_the_bound_of_the_law_test_would_see_three_percent():
    n, p = 400_000, 0.3
    # the acceptance region of p = .3 holds less than 1e-6 of p * 1.03
    low = stats.binom.ppf(ALPHA / 8, n, p)
    high = stats.binom.isf(ALPHA / 8, n, p)
    wrong = stats.binom(n, p * 1.03)
    assert wrong.cdf(high) - wrong.cdf(low) < 1e-6


def test_ids_without_probability_lose_against_any_noise(monkeypatch):
    logits = torch.tensor([[-INF, 0.0, -INF], [-INF, -INF, 3.0]])

    def zero_noise(like, generators):
        return torch.zeros_like(like)

    monkeypatch.setattr("refsampler.draw.exponential_noise", zero_noise)
    assert draw(logits, {}).tolist() == [1, 2]


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [INF, 0.0], [-INF, -INF]])
def test_a_row_without_a_law_gives_an_id_in_range(bad):
    logits = torch.tensor([bad, [-INF, 0.0]])
    assert draw(logits, {}).tolist() == [0, 1]


def test_a_seeded_row_takes_its_own_generators_noise():
    like = torch.zeros(3, 5, dtype=torch.float64)
    expected = torch.empty(5, dtype=torch.float64).exponential_(
        generator=torch.Generator().manual_seed(7)
    )
    torch.manual_seed(1)
    beside_unseeded = exponential_noise(like, {1: torch.Generator().manual_seed(7)})
    alone = exponential_noise(like[:1], {0: torch.Generator().manual_seed(7)})
    assert beside_unseeded[1].tolist() == alone[0].tolist() == expected.tolist()


def test_the_default_generator_rests_when_every_row_is_seeded():
    before = torch.get_rng_state()
    exponential_noise(torch.zeros(1, 5), {0: torch.Generator().manual_seed(7)})
    assert torch.equal(before, torch.get_rng_state())


def test_a_generator_advances_from_call_to_call():
    generators = {0: torch.Generator().manual_seed(7)}
    like = torch.zeros(1, 5)
    first = exponential_noise(like, generators)
    assert not torch.equal(first, exponential_noise(like, generators))

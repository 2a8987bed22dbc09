"""Guarantees: formulas against a table worked out apart, and against simulation."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.conformance.evidence.guarantees import (
    Direction,
    PowerError,
    assert_directional,
    assert_support,
    assert_tv,
    directional_power,
    draws_needed_directional,
    draws_needed_support,
    draws_needed_tv,
    smallest_detectable_directional,
    smallest_detectable_support,
    smallest_detectable_tv,
)
from refsampler.conformance.evidence.l1 import L1Test, null_spread
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.evidence.tolerance import clipped_log_ratio


def flat(cells):
    return np.full(cells, 1 / cells)


def whole_row(probs, delta=0.0):
    mask = np.ones(probs.size, dtype=bool)
    return LawCase.build("row", np.log(probs), core=mask, hull=mask, delta=delta, floor=0.0)


def kl(q, p):
    return float(q @ np.log(q / p))


def judged(test, counts):
    result = test.judge(counts)
    assert result is not None
    return result


# ---- total variation


@pytest.mark.parametrize(
    ("cells", "at_5", "at_1", "at_01"),
    [
        # ((1/2 sum sqrt(p(1-p)) + sqrt(ln 1e9 / 2) + sqrt(ln 1e6 / 2)) / eps)^2, to two digits
        (2, 1.6e4, 4.0e5, 4.0e7),
        (16, 2.4e4, 6.1e5, 6.1e7),
        (64, 3.9e4, 9.6e5, 9.6e7),
        (1024, 1.9e5, 4.8e6, 4.8e8),
    ],
)
def test_draws_for_a_tv_guarantee(cells, at_5, at_1, at_01):
    for eps, expected in ((0.05, at_5), (0.01, at_1), (0.001, at_01)):
        needed = draws_needed_tv(flat(cells), eps, alpha=1e-9)
        assert float(f"{needed:.1e}") == expected


def test_tv_answers_agree_with_each_other():
    needed = int(draws_needed_tv(flat(16), 0.02, alpha=1e-10, delta=1e-3))
    found = smallest_detectable_tv(flat(16), needed, alpha=1e-10, delta=1e-3)
    assert found == pytest.approx(0.02, rel=1e-6)
    assert_tv(flat(16), 0.02, needed, alpha=1e-10, delta=1e-3)
    with pytest.raises(PowerError, match=r"a TV of 0\.02 needs"):
        assert_tv(flat(16), 0.02, needed - 1, alpha=1e-10, delta=1e-3)
    assert math.isinf(draws_needed_tv(flat(16), 1e-3, alpha=1e-9, delta=1e-3))


@pytest.mark.parametrize("probs", [[1.0, 0.0], [0.98, 0.01, 0.01], [0.5, 0.5], [0.25] * 4])
def test_spread_bounds_every_law_of_the_ball(probs):
    p, rng = np.array(probs), np.random.default_rng(0)
    for delta in (1e-4, 1e-3, 1e-2):
        others = np.vstack([rng.dirichlet(np.ones(p.size) * 0.3, size=400), np.eye(p.size)])
        distance = 0.5 * np.abs(others - p).sum(1)
        share = np.minimum(delta / np.maximum(distance, 1e-300), 1)[:, None]
        inside = (1 - share) * p + share * others
        spread = 0.5 * np.sqrt(inside * (1 - inside)).sum(1)
        assert spread.max() <= null_spread(p, delta) + 1e-12


@pytest.mark.statistical
def test_l1_holds_its_level_on_the_sphere_and_its_power_at_eps():
    p, delta, eps, alpha, beta = flat(16), 4e-3, 0.05, 0.02, 0.02
    signs = np.where(np.arange(16) % 2, 1, -1) / 8
    draws = int(draws_needed_tv(p, eps, alpha, beta, delta))
    test = L1Test(p, delta, draws, alpha)
    rng = np.random.default_rng(1)
    null, wrong = (
        [judged(test, counts) for counts in rng.multinomial(draws, p + signs * size, 2000)]
        for size in (delta, eps)
    )
    assert sum(one.failed for one in null) <= binom.isf(1e-6, 2000, alpha)
    assert sum(not one.failed for one in wrong) <= binom.isf(1e-6, 2000, beta)
    assert all(one.upper >= eps for one in wrong)  # too low with probability 1e-6 each


def test_l1_by_hand():
    test = L1Test(flat(2), 0.0, 100, math.exp(-2))
    assert test.threshold(100) == pytest.approx((0.5 + 1.0) / 10)
    result = judged(test, np.array([66, 34]))
    assert result.observed == pytest.approx(0.16)
    assert result.failed
    assert result.upper == pytest.approx(0.16 + math.sqrt(math.log(1e6) / 200))
    assert not judged(test, np.array([64, 36])).failed


def test_l1_tolerance_by_hand():
    test = L1Test(flat(2), 0.02, 10_000, math.exp(-2))
    # 1/2 sum sqrt(p(1-p)) = 1/2, sqrt(k delta) = sqrt(0.04) = 0.2, sqrt(2/2) = 1
    assert test.threshold(10_000) == pytest.approx(0.02 + (0.5 + 0.2 + 1.0) / 100)
    assert not judged(test, np.array([5_200, 4_800])).failed  # TV 0.02, inside the null


def test_l1_looks_once():
    test = L1Test(flat(2), 0.0, 100, 1e-10)
    assert test.judge(np.array([99, 0])) is None
    assert test.judge(np.array([0, 0]), skipped=100) is None
    with_skips = test.judge(np.array([20, 5]), skipped=75)
    assert with_skips is not None
    assert with_skips.threshold == test.threshold(25)
    with pytest.raises(ValueError, match="looks once, at 100"):
        test.judge(np.array([101, 0]))


@pytest.mark.parametrize(
    ("given", "words"),
    [((0.0, 0, 0.1), "draws = 0"), ((0.0, 9, 0.0), "alpha = 0"), ((1.0, 9, 0.1), "delta = 1")],
)
def test_l1_refuses_a_plan_without_meaning(given, words):
    with pytest.raises(ValueError, match=words):
        L1Test(flat(2), *given)


# ---- directional


def small_bias():
    p = flat(64)
    q = p * (1 + 0.02 * np.where(np.arange(64) % 2, 1, -1))
    return p, q


def test_small_effect_follows_the_quadratic_law():
    # rho(s) = K s (1 - s) for small effects; its minimum is (sqrt(b) + sqrt(b + L))^2 / K.
    p, q = small_bias()
    threshold, b = math.log(64e9), math.log(1e6)
    needed = draws_needed_directional(Direction(q, np.log(q / p)), threshold)
    expected = (math.sqrt(b) + math.sqrt(b + threshold)) ** 2 / kl(q, p)
    assert needed == pytest.approx(expected, rel=2e-3)


def test_directional_answers_agree_with_each_other():
    p, q = small_bias()
    bet = Direction(q, clipped_log_ratio(p, q, 1e-4))
    needed = int(draws_needed_directional(bet, 25.0))
    assert 1 - directional_power(bet, needed, 25.0) == pytest.approx(1e-6, rel=0.05)
    assert_directional(bet, needed, 25.0)
    with pytest.raises(PowerError, match="directional bias needs"):
        assert_directional(bet, needed - 1, 25.0)
    unit = (q - p) / 0.02

    def family(size):
        return p + size * unit

    found = smallest_detectable_directional(p, 1e-4, family, 0.5, needed, 25.0)
    assert found == pytest.approx(0.02, rel=1e-3)
    assert math.isinf(smallest_detectable_directional(p, 1e-4, family, 1e-3, needed, 25.0))


def test_a_bias_inside_the_tolerance_is_never_promised():
    p, q = small_bias()
    bet = Direction(q, clipped_log_ratio(p, q, 0.02))
    assert math.isinf(draws_needed_directional(bet, 20.0))
    assert directional_power(bet, 10**9, 20.0) == 0.0


@pytest.mark.statistical
@pytest.mark.parametrize("delta", [0.0, 2e-3])
def test_directional_promise_is_kept_in_simulation(delta):
    p, q = small_bias()
    log_e = clipped_log_ratio(p, q, delta)
    threshold, beta, runs = 8.0, 0.05, 2000
    needed = int(draws_needed_directional(Direction(q, log_e), threshold, beta))
    counts = np.random.default_rng(2).multinomial(needed, q, runs)
    missed = int((counts @ log_e < threshold).sum())
    assert missed <= binom.isf(1e-6, runs, beta)
    # Chernoff is not lavish: a third of the draws misses most of the time.
    few = np.random.default_rng(3).multinomial(needed // 3, q, runs)
    assert (few @ log_e < threshold).mean() > beta


# ---- support


def test_support():
    assert draws_needed_support(1e-3) == 13816  # ln(1e6) / 1e-3 = 13815.5
    assert smallest_detectable_support(13816) == pytest.approx(1e-3, rel=1e-4)
    assert_support(1e-3, 13816)
    with pytest.raises(PowerError, match="outside the support needs"):
        assert_support(1e-3, 13815)
    assert (1 - 1e-3) ** 13816 <= 1e-6

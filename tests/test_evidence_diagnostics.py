"""Textbook tests: numbers worked by hand, and when they say that they do not apply."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from refsampler.conformance.evidence.diagnostics import binomials, diagnostics, g_test, ks_pit


def test_g_by_hand():
    result = g_test(np.array([0.5, 0.5]), np.array([60, 40]))
    statistic = 2 * (60 * math.log(1.2) + 40 * math.log(0.8))
    assert result.statistic == pytest.approx(statistic)
    assert result.p_value == pytest.approx(chi2.sf(statistic, 1))
    assert result.valid


def test_g_pools_small_cells_and_admits_when_it_cannot():
    probs = np.array([0.5, 0.4, 0.06, 0.04])
    pooled = g_test(probs, np.array([250, 200, 30, 20]))
    assert pooled.statistic == pytest.approx(0.0)
    assert pooled.valid  # 50 expected in the pooled cell
    assert not g_test(probs, np.array([25, 20, 3, 2])).valid
    assert not g_test(np.array([0.5, 0.5]), np.array([900, 100])).valid  # p-value below 1e-6


def test_binomial_by_hand():
    # Two-sided exact P(|X - 50| >= 10), X ~ Binomial(100, 1/2), from the binomial coefficients.
    tail = 2 * sum(math.comb(100, k) for k in range(60, 101)) / 2**100
    head, far = binomials(np.array([0.5, 0.5]), np.array([60, 40]))
    assert head.p_value == pytest.approx(tail)
    assert far.p_value == pytest.approx(2 * tail)


def test_ks_sees_a_flattened_law_and_not_a_right_one():
    probs = np.array([0.7, 0.2, 0.1])
    right = ks_pit(probs, np.array([7000, 2000, 1000]), seed=0)
    assert right.p_value > 1e-3
    # KS distance of frequencies (0.6, 0.25, 0.15) is 0.1; the p-value is about 2 exp(-2 n D^2).
    flat = ks_pit(probs, np.array([6000, 2500, 1500]), seed=0)
    assert flat.statistic == pytest.approx(0.1, abs=0.01)
    assert flat.p_value < 1e-60
    big = ks_pit(probs, np.array([600_000, 250_000, 150_000]), seed=0)
    assert big.statistic == pytest.approx(0.1, abs=0.01)


def test_nothing_is_said_about_nothing():
    assert diagnostics(np.array([0.5, 0.5]), np.array([0, 0]), seed=0) == ()
    assert diagnostics(np.array([1.0]), np.array([5]), seed=0) == ()
    assert len(diagnostics(np.array([0.5, 0.5]), np.array([6, 4]), seed=0)) == 4

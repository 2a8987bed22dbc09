"""Early acceptance: a true alternative is refuted with probability at most beta."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.conformance.evidence.acceptance import BETA_EARLY, refuted
from refsampler.conformance.evidence.tolerance import clipped_log_ratio


def laws():
    p = np.random.default_rng(0).dirichlet(np.full(50, 0.5)) + 1e-4
    p /= p.sum()
    q = p ** (1 / 1.05)
    return p, q / q.sum()


@pytest.mark.parametrize("delta", [0.0, 1e-4, 3e-3])
def test_inverse_bet_has_mean_one_under_its_alternative(delta):
    p, q = laws()
    assert q @ np.exp(-clipped_log_ratio(p, q, delta)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.statistical
def test_true_alternative_survives_and_a_right_sampler_is_accepted():
    p, q = laws()
    log_e = clipped_log_ratio(p, q, 1e-4)
    rng, beta = np.random.default_rng(1), 0.05
    lowest = log_e[rng.choice(50, size=(1000, 4000), p=q)].cumsum(1).min(1)
    wrongly = int(refuted(lowest, beta).sum())
    assert 0 < wrongly <= binom.isf(1e-6, 1000, beta)
    # A right sampler refutes it after about ln(1/beta) / KL(p || q) draws.
    draws = int(4 * math.log(1 / BETA_EARLY) / (p @ np.log(p / q)))
    assert refuted(rng.multinomial(draws, p, 50) @ log_e).all()


def test_by_hand_and_bad_input():
    assert refuted(np.array([-4.0, -2.0, 0.0]), math.exp(-3)).tolist() == [True, False, False]
    assert math.exp(-14.6) < BETA_EARLY < math.exp(-14.5)  # 5e-7 = e^-14.5087
    with pytest.raises(ValueError, match="beta = 0"):
        refuted(np.zeros(2), 0.0)

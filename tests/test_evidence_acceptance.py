"""Early acceptance: a true alternative is refuted with probability at most beta."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.conformance.evidence.acceptance import (
    BETA_AT_MAX,
    BETA_EARLY,
    Action,
    Look,
    decide,
    refuted,
)
from refsampler.conformance.evidence.alternatives import Bet
from refsampler.conformance.evidence.guarantees import BETA
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


TWO = (Bet("hot", 0.5), Bet("cold", 0.5))


@pytest.mark.parametrize(
    ("log_e", "components", "draws", "action", "open_"),
    [
        (21.0, [-20.0, 25.0], 10, Action.REJECT, ("cold",)),
        (0.1, [-20.0, -3.0], 10, Action.GO_ON, ("cold",)),
        (0.1, [-20.0, -15.0], 10, Action.GO_ON, ()),  # the least number of draws comes first
        (0.1, [-20.0, -14.4], 500, Action.GO_ON, ("cold",)),  # e-6 is not half of beta
        (0.1, [-20.0, -14.6], 500, Action.ACCEPT_EARLY, ()),
        (0.1, [-1.0, -2.0], 1000, Action.ACCEPT_AT_MAX, ("hot", "cold")),
        (21.0, [-1.0, -2.0], 1000, Action.REJECT, ("hot", "cold")),
    ],
)
def test_decision(log_e, components, draws, action, open_):
    look = Look(log_e, np.array(components), draws)
    found = decide(look, TWO, math.log(1e9), least_draws=500, most_draws=1000)
    assert (found.action, found.open) == (action, open_)
    assert set(found.refuted) | set(found.open) == {"hot", "cold"}


def test_an_alternative_that_is_not_listed_does_not_hold_up_acceptance():
    look = Look(0.0, np.array([-15.0, 0.0]), 600)
    awaited = np.array([True, False])
    found = decide(look, TWO, 20.0, least_draws=500, most_draws=1000, awaited=awaited)
    assert found.action is Action.ACCEPT_EARLY
    assert found.refuted == ("hot",)
    with pytest.raises(ValueError, match="log_components"):
        decide(Look(0.0, np.zeros(3), 1), TWO, 20.0, least_draws=1, most_draws=2)


def test_beta_is_shared():
    assert pytest.approx(BETA) == BETA_EARLY + BETA_AT_MAX

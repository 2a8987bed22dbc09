"""Tolerant e-values: their mean is at most 1 everywhere in the ball, and exactly 1 at its worst law."""

import numpy as np
import pytest
from scipy.optimize import linprog

from refsampler.conformance.evidence.tolerance import (
    clip_bounds,
    clipped_log_ratio,
    heterogeneous_log_ratio,
    least_favourable_law,
    worst_case_mean,
)


def random_laws(seed):
    rng = np.random.default_rng(seed)
    cells = int(rng.integers(2, 60))
    p = rng.dirichlet(np.full(cells, rng.choice([0.3, 1.0, 10.0])))
    p = np.maximum(p, 1e-9)
    q = p * np.exp(rng.choice([0.05, 1.0]) * rng.standard_normal(cells))
    q *= rng.random(cells) > rng.choice([0.0, 0.1])
    q += (q.sum() == 0) / cells
    return p / p.sum(), q / q.sum(), float(rng.choice([0.0, 1e-6, 1e-4, 1e-3, 1e-2]))


def largest_mean(p, score, delta):
    """Maximise the linear functional over the ball as a linear programme (scipy's HiGHS)."""
    k = p.size
    moved = linprog(
        np.concatenate([-score, score]),  # p' = p + gain - loss
        A_ub=np.vstack(
            [
                np.concatenate([np.ones(k), np.zeros(k)]),
                np.hstack([-np.eye(k), np.eye(k)]),
            ]
        ),
        b_ub=np.concatenate([[delta], p]),
        A_eq=np.concatenate([np.ones(k), -np.ones(k)])[None],
        b_eq=[0.0],
    )
    return float(p @ score) - moved.fun


def test_two_cells_by_hand():
    p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
    bounds = clip_bounds(p, q, 0.1)
    assert bounds.high == pytest.approx(0.8 / 0.6, abs=1e-15)
    assert bounds.low == pytest.approx(0.2 / 0.4, abs=1e-15)
    e = np.exp(clipped_log_ratio(p, q, 0.1))
    assert e == pytest.approx([4 / 3, 1 / 2], abs=1e-15)
    assert np.array([0.6, 0.4]) @ e == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("seed", range(60))
def test_the_two_equations_hold(seed):
    p, q, delta = random_laws(seed)
    if 0.5 * np.abs(p - q).sum() <= delta:
        pytest.skip("the alternative lies in the ball")
    bounds = clip_bounds(p, q, delta)
    assert np.maximum(q / bounds.high - p, 0).sum() == pytest.approx(delta, abs=1e-13)
    if bounds.low > 0:  # 0 is the limit where q forbids a cell at no tolerance
        assert np.maximum(p - q / bounds.low, 0).sum() == pytest.approx(delta, abs=1e-13)


@pytest.mark.parametrize("seed", range(60))
def test_mean_over_the_ball_is_at_most_one_and_attained(seed):
    p, q, delta = random_laws(seed)
    e = np.exp(clipped_log_ratio(p, q, delta))
    order = np.argsort(e)
    rest, worst = delta, p.copy()
    for cell in order:  # move delta from the lowest scores to the highest
        step = min(rest, worst[cell])
        worst[cell] -= step
        worst[order[-1]] += step
        rest -= step
    assert worst @ e == pytest.approx(1.0, abs=1e-12)
    assert largest_mean(p, e, delta) == pytest.approx(1.0, abs=1e-8)  # HiGHS works to 1e-9
    assert worst_case_mean(p, e, delta) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_no_law_of_the_ball_found_at_random_has_a_larger_mean(seed):
    p, q, delta = random_laws(seed)
    e = np.exp(clipped_log_ratio(p, q, delta))
    rng = np.random.default_rng(seed)
    others = rng.dirichlet(np.ones(p.size) * 0.1, size=200)
    distance = 0.5 * np.abs(others - p).sum(1)
    share = np.minimum(delta / distance, 1.0)[:, None]
    inside = (1 - share) * p + share * others
    assert (inside @ e).max() <= 1 + 1e-12


def test_least_favourable_law_lies_on_the_sphere():
    p = np.array([0.2, 0.3, 0.5])
    law = least_favourable_law(p, np.array([3.0, 1.0, 2.0]), 0.4)
    assert law == pytest.approx([0.6, 0.0, 0.4])  # all of cell 1 and 0.1 of cell 2 go to cell 0


def test_growth_is_the_divergence_from_the_least_favourable_law():
    p, q, delta = np.array([0.5, 0.5]), np.array([0.8, 0.2]), 0.1
    growth = q @ clipped_log_ratio(p, q, delta)
    nearest = np.array([0.6, 0.4])
    assert growth == pytest.approx(q @ np.log(q / nearest), abs=1e-14)


def test_alternative_in_the_ball_is_no_bet():
    p = np.array([0.25, 0.25, 0.5])
    q = np.array([0.25, 0.26, 0.49])
    assert not clipped_log_ratio(p, q, 0.011).any()
    assert clipped_log_ratio(p, q, 0.009).any()


def test_without_tolerance_it_is_the_likelihood_ratio():
    p, q = np.array([0.1, 0.2, 0.7]), np.array([0.2, 0.3, 0.5])
    assert clipped_log_ratio(p, q, 0.0) == pytest.approx(np.log(q / p), abs=1e-14)


def test_a_forbidden_cell_stays_finite_and_valid():
    p, q = np.array([0.1, 0.9]), np.array([0.0, 1.0])
    log_e = clipped_log_ratio(p, q, 0.0)
    assert log_e[0] < -600
    assert np.isfinite(log_e).all()
    assert p @ np.exp(log_e) == pytest.approx(1.0, abs=1e-15)


def test_many_alternatives_at_once_equal_one_at_a_time():
    rng = np.random.default_rng(3)
    p, many = rng.dirichlet(np.ones(20)), rng.dirichlet(np.ones(20), size=5)
    together = clipped_log_ratio(p, many, 0.01)
    for row, q in zip(together, many, strict=True):
        assert row == pytest.approx(clipped_log_ratio(p, q, 0.01), abs=1e-15)


@pytest.mark.parametrize("seed", range(30))
def test_form_for_heterogeneous_rows_is_valid(seed):
    p, q, delta = random_laws(seed)
    e = np.exp(heterogeneous_log_ratio(p, q, delta))
    assert largest_mean(p, e, delta) <= 1 + 1e-8

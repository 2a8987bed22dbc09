"""The distinct-count law: against exact fractions, brute force, and its bounds."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from refsampler.conformance.evidence.guarantees import PowerError
from refsampler.conformance.evidence.occupancy import (
    DistinctTest,
    assert_distinct,
    distinct_law,
    distinct_power,
    draws_needed_distinct,
    smallest_detectable_distinct,
)


def stirling(draws, ids):
    """P(d distinct) = C(n, d) d! S(draws, d) / n^draws, in fractions."""

    def surjections(d):
        return sum((-1) ** i * math.comb(d, i) * (d - i) ** draws for i in range(d + 1))

    return [Fraction(math.comb(ids, d) * surjections(d), ids**draws) for d in range(draws + 1)]


def spread(law, length):
    full = np.zeros(length)
    full[law.first : law.first + law.probs.size] = law.probs
    return full


@pytest.mark.parametrize(("draws", "ids"), [(0, 3), (1, 1), (5, 3), (12, 12), (30, 200)])
def test_law_is_exact(draws, ids):
    expected = [float(one) for one in stirling(draws, ids)]
    law = spread(distinct_law(draws, ids), draws + 1)
    seen = np.array(expected) > 1e-38
    assert law[seen] == pytest.approx(np.array(expected)[seen], rel=1e-11)


def test_published_thresholds():
    # 256 and 1024 draws of 128256 ids: too few from 246 and 998 on at 1e-12 (an independent DP).
    for draws, limit, tail in ((256, 246, 1.6e-13), (1024, 998, 1.9e-13)):
        test = DistinctTest(128256, draws, 2e-12)
        assert test.most_that_fail() == limit
        assert test.judge(limit).few == pytest.approx(tail, rel=0.05)
        assert test.judge(limit).failed
        assert not test.judge(limit + 1).failed


def test_sum_over_calls_is_the_convolution():
    one = spread(distinct_law(6, 8), 7)
    three = distinct_law(6, 8).repeated(3)
    expected = np.convolve(np.convolve(one, one), one)
    assert spread(three, 19) == pytest.approx(expected, abs=1e-15)
    assert three.at_most(17) + three.at_least(18) == pytest.approx(1.0, abs=1e-12)


def test_bounds_hold_for_uneven_laws():
    ids, draws, band = 4, 5, 0.2
    few, many = distinct_law(draws, ids, band=band), distinct_law(draws, ids, band=-band)
    laws = [np.array(signs) * band + 1 for signs in ((1, 1, -1, -1), (1, -1, 0, 0), (0, 0, 0, 0))]
    for law in laws:
        probs = law / ids
        exact = np.zeros(draws + 1)
        for ids_drawn in itertools.product(range(ids), repeat=draws):
            exact[len(set(ids_drawn))] += probs[list(ids_drawn)].prod()
        for count in range(1, draws + 1):
            assert exact[: count + 1].sum() <= few.at_most(count) + 1e-12
            assert exact[count:].sum() <= many.at_least(count) + 1e-12


def test_bounds_hold_for_drifting_laws():
    # Each draw avoids or repeats what was seen as far as TV 0.1 allows; Monte Carlo of the chain.
    ids, draws, delta = 6, 6, 0.1
    few = distinct_law(draws, ids, delta=delta)
    exact = np.zeros(draws + 1)
    exact[0] = 1
    for _ in range(draws):  # the law of the greedy repeater, by states
        new = np.array([1.0, *[max(1 - d / ids - delta, 0) for d in range(1, draws + 1)]])
        exact = exact * (1 - new) + np.concatenate([[0], (exact * new)[:-1]])
    assert spread(few, draws + 1) == pytest.approx(exact, abs=1e-15)
    assert few.at_most(3) > distinct_law(draws, ids).at_most(3)


@pytest.mark.statistical
def test_power_is_what_is_measured():
    test = DistinctTest(4096, 600, 1e-6)
    power = distinct_power(test, 2400)
    rng = np.random.default_rng(11)
    limit = test.most_that_fail()
    fails = [np.unique(rng.integers(0, 2400, 600)).size <= limit for _ in range(4000)]
    assert 0.1 < power < 0.9
    assert np.mean(fails) == pytest.approx(power, abs=6 * math.sqrt(0.25 / 4000))


def test_triple():
    needed = draws_needed_distinct(4096, 2048, 1e-10)
    assert distinct_power(DistinctTest(4096, int(needed), 1e-10), 2048) >= 1 - 1e-6
    assert distinct_power(DistinctTest(4096, int(needed * 0.95), 1e-10), 2048) < 1 - 1e-6
    test = DistinctTest(4096, int(needed), 1e-10)
    assert smallest_detectable_distinct(test) == pytest.approx(0.5, abs=0.02)
    assert_distinct(test, 2048)
    with pytest.raises(PowerError, match="reachable"):
        assert_distinct(test, 3000)
    assert draws_needed_distinct(100, 98, 1e-10, band=0.05) == math.inf


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"alpha": 1e-9, "calls": 0}])
def test_bad_plan_is_named(bad):
    with pytest.raises(ValueError, match="refused"):
        DistinctTest(10, 10, **bad)

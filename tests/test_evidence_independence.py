"""Independence: disjoint pairs, couplings with the right margins, levels, and known power."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from refsampler.conformance.evidence.couplings import (
    Copy,
    SharedNoise,
    SharedUniform,
    capped,
    inverse_cdf,
)
from refsampler.conformance.evidence.guarantees import PowerError
from refsampler.conformance.evidence.independence import (
    RATES,
    CoupledProcess,
    Factors,
    PairProcess,
)
from refsampler.conformance.evidence.pair_guarantees import (
    assert_pairs,
    call_pairs_needed,
    draws_needed_pairs,
    smallest_detectable_pairs,
)
from refsampler.conformance.evidence.pairings import Lag, call_lags, row_lags, stream_lags
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.evidence.tolerance import least_favourable_law

LOG_THRESHOLD = math.log(1e9)
P = np.array([0.5, 0.3, 0.15, 0.05])
Q = np.array([0.1, 0.2, 0.3, 0.4])


def table(coupling, ids=4):
    grid = np.array(list(itertools.product(range(ids), repeat=2)))
    return coupling.scores(grid[:, 0], grid[:, 1]).reshape(ids, ids)


# ---- pairs


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 8, 64, 99])
def test_pairs_within_a_call_are_disjoint_and_at_their_lag(lag):
    x, y = Lag(0, lag).within(np.arange(100))
    assert (y - x == lag).all()
    assert np.unique(np.concatenate([x, y])).size == 2 * x.size
    assert x.size >= 1
    if lag <= 8:
        assert x.size >= 40


@pytest.mark.parametrize("rows", [-3, -1, 0, 1, 5])
def test_pairs_between_calls(rows):
    x, y = Lag(1, rows).between(np.arange(10), np.arange(100, 110))
    assert (y - x == 100 + rows).all()
    assert x.size == 10 - abs(rows)
    assert [one.size for one in Lag(1, 12).between(x, y)] == [0, 0]


def test_calls_are_paired_once():
    # Each call holds its own number: which calls meet is read off the pairs that are seen.
    met = []

    class Spy(PairProcess):
        def _add(self, at, x, y):
            met.append((at, int(x[0]), int(y[0])))

    spy = Spy(np.full(8, 1 / 8), (Lag(1, 0), Lag(2, 0)), 0.0)
    for call in range(8):
        spy.update(np.full(3, call))
    assert [(x, y) for at, x, y in met if at == 0] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [(x, y) for at, x, y in met if at == 1] == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_declared_lags():
    assert Lag(0, 2**32 // 131072) in row_lags(40000, 131072)
    assert Lag(0, 512) in row_lags(1024, 131072)
    assert all(0 < lag.rows < 5 for lag in row_lags(5, 10))
    assert {lag.rows for lag in stream_lags()} == set(range(-64, 65))
    with pytest.raises(ValueError, match="later draws"):
        Lag(0, 0)


# ---- couplings


def test_scores_by_hand():
    assert table(Copy(P)) == pytest.approx(np.diag(1 / P))
    two = SharedUniform.build(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    # u < .25: (0, 0); .25 to .5: (0, 1); above: (1, 1).
    expected = np.array([[0.25 / 0.125, 0.25 / 0.375], [0.0, 0.5 / 0.375]])
    assert table(two, 2) == pytest.approx(expected)
    mirrored = SharedUniform.build(np.array([0.5, 0.5]), np.array([0.25, 0.75]), mirrored=True)
    # y = 0 where 1 - u < .25, that is in the upper half of u.
    expected = np.array([[0.0, 0.5 / 0.375], [0.25 / 0.125, 0.25 / 0.375]])
    assert table(mirrored, 2) == pytest.approx(expected)


@pytest.mark.parametrize(
    "coupling",
    [
        SharedUniform.build(P, Q),
        SharedUniform.build(P, Q, mirrored=True),
        SharedNoise.build(P, Q),
        SharedNoise.build(np.array([0.5, 0.5, 0, 0]), np.array([0.2, 0.2, 0.6, 0])),
    ],
)
def test_margins_are_right(coupling):
    live_x, live_y = coupling.first > 0, coupling.second > 0
    score = np.where(
        live_x[:, None] & live_y, np.nan_to_num(table_of_live(coupling, live_x, live_y)), 0.0
    )
    assert coupling.first @ score == pytest.approx(live_y.astype(float), abs=1e-12)
    assert score @ coupling.second == pytest.approx(live_x.astype(float), abs=1e-12)
    assert score.max() <= coupling.largest * (1 + 1e-12)


def table_of_live(coupling, live_x, live_y):
    found = np.zeros((live_x.size, live_y.size))
    for x, y in itertools.product(np.flatnonzero(live_x), np.flatnonzero(live_y)):
        found[x, y] = coupling.scores(np.array([x]), np.array([y]))[0]
    return found


def test_shared_noise_probability_against_an_integral():
    coupling = SharedNoise.build(P, Q)
    for one in range(4):
        # Exponential race: id i wins both iff every other noise exceeds max(p_j/p_i, q_j/q_i) t.
        rates = [max(P[j] / P[one], Q[j] / Q[one]) for j in range(4) if j != one]

        def density(t, rates=tuple(rates)):
            return math.exp(-t) * math.exp(-t * sum(rates))

        assert coupling.both[one] == pytest.approx(quad(density, 0, 60)[0], abs=1e-9)


@pytest.mark.parametrize("delta", [1e-4, 0.01, 0.04])
@pytest.mark.parametrize(
    "coupling",
    [Copy(P), SharedUniform.build(P, P, mirrored=True), SharedUniform.build(P, Q),
     SharedNoise.build(P, Q)],
)  # fmt: skip
def test_no_product_law_in_the_ball_gains(coupling, delta):
    score = np.minimum(table(coupling), capped(coupling, delta))
    second = P if isinstance(coupling, Copy) else coupling.second
    highest = 0.0
    for start in np.eye(4):  # alternate the two linear programmes from several starts
        q = (1 - delta) * second + delta * start
        for _ in range(5):
            p = least_favourable_law(P, score @ q, delta)
            q = least_favourable_law(second, p @ score, delta)
        highest = max(highest, float(p @ score @ q))
    cap = capped(coupling, delta)
    assert highest <= 1 + 2 * delta + cap * delta**2
    assert highest > 1 + 0.5 * delta**2  # the tolerance is needed: without it the bet would gain


def test_capped_for_rare_ids():
    law = np.array([0.5, 0.5 - 1e-12, 1e-12])
    assert capped(Copy(law), 0.0) == pytest.approx(1e12)
    assert capped(Copy(law), 1e-4) == pytest.approx(1e7)


def test_inverse_cdf():
    law = np.array([0.0, 0.25, 0.0, 0.5, 0.25])
    ids = inverse_cdf(law, np.array([0.0, 0.2, 0.25, 0.7, 0.8, 1 - 1e-16]))
    assert ids.tolist() == [1, 1, 3, 3, 4, 4]


# ---- processes


def test_copy_bet_by_hand():
    law, delta = np.full(4, 0.25), 0.01
    process = PairProcess(law, (Lag(0, 1),), delta)
    process.update(np.array([2, 2, 1, 3]))  # one pair that agrees, one that differs
    rate = 0.1
    worst = 1 + rate * (2 * delta + 4 * delta**2)
    expected = math.log((0.9 + 0.1 * 4) / worst) + math.log(0.9 / worst)
    at = RATES.index(rate)
    assert process.table[at].name == "same id, row +1 with probability 0.1"
    assert process.log_each[at] == pytest.approx(expected, abs=1e-13)
    assert sum(one.weight for one in process.table) == pytest.approx(1.0)
    assert process.pairs == 2
    assert process.bets == ()
    assert process.evidence().log_components == ()
    with pytest.raises(ValueError, match="1 were planned"):
        process.update(np.array([2, 2]))


def test_calls_are_averaged_for_rows_and_rows_for_calls():
    law = np.full(4, 0.25)
    hit, miss = 0.9 + 0.1 * 4, 0.9
    at = RATES.index(0.1)
    rows = PairProcess(law, (Lag(0, 1),), 0.0, calls=4)
    rows.update(np.array([[2, 2, 1, 1], [1, 3, 0, 0]]))
    # Two calls are still to come: they count 1.
    expected = (hit * hit + miss * hit + 2) / 4
    assert math.exp(rows.log_each[at]) == pytest.approx(expected, rel=1e-13)
    calls = PairProcess(law, (Lag(1, 0),), 0.0)
    calls.update(np.array([[2, 2, 1, 1], [2, 3, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]))
    # Three of four rows agree, then none: 1 - rho + rho (3/4) 4, times 1 - rho.
    assert math.exp(calls.log_each[at]) == pytest.approx((0.9 + 0.1 * 3) * 0.9, rel=1e-13)
    assert len(calls.bets) == len(calls.evidence().log_components) == 2 * len(RATES)
    trusted = PairProcess(law, (Lag(1, 0),), 0.0, trusted=True)
    trusted.update(np.array([[2, 2, 1, 1], [2, 3, 1, 1]]))
    assert math.exp(trusted.log_each[at]) == pytest.approx(hit**3 * miss, rel=1e-13)


@pytest.mark.statistical
def test_each_clause_holds_its_level_when_the_other_is_broken():
    rng = np.random.default_rng(13)
    ids, rows, runs = 64, 16, 800
    law = np.full(ids, 1 / ids)
    high = np.zeros((2, runs))
    for run in range(runs):
        of_rows = PairProcess(law, (Lag(0, 1),), 0.0, calls=8)
        of_rows.update(np.tile(rng.integers(0, ids, rows), (8, 1)))  # every call is the first one
        of_calls = PairProcess(law, (Lag(1, 0),), 0.0)
        for call in rng.integers(0, ids, (8, 1)):  # all rows of a call are one id
            of_calls.update(np.repeat(call, rows))
            high[1, run] = max(high[1, run], of_calls.log_e)
        high[0, run] = of_rows.log_e
    for level in (0.1, 0.01):
        limit = binom.isf(1e-9, runs, level)
        assert (high >= -math.log(level)).sum(axis=1).max() <= limit


def test_ids_that_the_law_does_not_speak_about_are_skipped():
    law = np.array([0.5, 0.5, 0.0])
    process = PairProcess(law, (Lag(0, 1),), 0.0)
    process.update(np.array([[0, 2, 1, 1, -1, 0]]))
    assert (process.pairs, process.skipped) == (1, 2)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["exact", "worst"])
def test_level(kind):
    # The worst law puts delta on the one id that pays most when it meets itself.
    rng = np.random.default_rng(2)
    delta, law = 0.02, np.array([0.6, 0.3, 0.1])
    true = law if kind == "exact" else law + delta * np.array([-1, 0, 1])
    runs, highest = 1000, np.full(1000, -np.inf)
    for run in range(runs):
        process = PairProcess(law, (Lag(0, 1), Lag(0, 2), Lag(1, 0)), delta, calls=6)
        for _ in range(6):
            process.update(rng.choice(3, 40, p=true))
            highest[run] = max(highest[run], process.log_e)
    for level in (0.1, 0.03, 0.01):
        assert (highest >= -math.log(level)).sum() <= binom.isf(1e-9, runs, level)


@pytest.mark.statistical
def test_power_on_flat_rows_is_as_designed():
    # 9 rates, 64 lags: 3, 39 and 349 pairs at rho = 1, .1, .01 on 128k flat ids, without tolerance.
    law = np.full(128256, 1 / 128256)
    rng = np.random.default_rng(4)
    for rate, pairs in ((1.0, 4), (0.1, 120), (0.01, 1100)):
        process = PairProcess(law, row_lags(2 * pairs, law.size), 1e-4)
        x = rng.integers(0, law.size, pairs)
        copied = rng.random(pairs) < rate
        y = np.where(copied, x, rng.integers(0, law.size, pairs))
        process.update(np.stack([x, y], axis=1).reshape(-1))
        assert process.log_e > LOG_THRESHOLD
        assert process.evidence().best.name.startswith("same id, row +1 with")


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("words", "late"),
    [
        ("same id, row -5, call +1", lambda u: np.roll(u, -5)),
        ("u and 1 - u, same row, call +1", lambda u: 1 - u),
        ("u and 1 - u, row +17, call +1", lambda u: np.roll(1 - u, 17)),
    ],
)
def test_streams_that_reuse_uniforms_are_named(words, late):
    rng = np.random.default_rng(6)
    law = rng.dirichlet(np.ones(300))
    u = rng.random(500)
    process = PairProcess(law, stream_lags(), 1e-4, trusted=True)
    process.update_streams(inverse_cdf(law, u), inverse_cdf(law, late(u)))
    assert process.log_e > LOG_THRESHOLD
    assert process.evidence().best.name.startswith(words)
    fresh = PairProcess(law, stream_lags(), 1e-4, trusted=True)
    fresh.update_streams(inverse_cdf(law, u), inverse_cdf(law, rng.random(500)))
    assert fresh.log_e < 3
    fresh.update(inverse_cdf(law, u))
    with pytest.raises(ValueError, match="even number"):
        fresh.update_streams(inverse_cdf(law, u), inverse_cdf(law, u))


@pytest.mark.statistical
def test_two_laws_that_share_noise():
    rng = np.random.default_rng(8)
    p, q = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    noise = rng.exponential(size=(400, 50))
    x, y = (noise / p).argmin(axis=1), (noise / q).argmin(axis=1)
    process = CoupledProcess(p, q, 1e-4)
    process.update(x, y)
    assert process.log_e > LOG_THRESHOLD
    assert process.evidence().best.name.startswith("same noise")
    u = rng.random(400)
    process = CoupledProcess(p, q, 1e-4, factors=Factors.TRUSTED)
    process.update(inverse_cdf(p, u), inverse_cdf(q, u))
    assert process.evidence().best.name.startswith("same u")
    assert process.log_e > LOG_THRESHOLD
    process = CoupledProcess(p, q, 1e-4)
    process.update(x, rng.choice(50, 400, p=q))
    assert process.log_e < 3


def test_evidence_pools_over_cases():
    law = np.full(1000, 1e-3)
    names = ("a", "b")
    processes = [PairProcess(law, call_lags(), 1e-4, name) for name in names]
    pool = ClausePool(equal_weights(names), processes[0].bets, LOG_THRESHOLD)
    rng = np.random.default_rng(9)
    for process in processes:
        x = rng.integers(0, 1000, 8)
        process.update(np.stack([x, np.where(np.arange(8) < 3, x, 0)]))
        pool.update(process.evidence())
    assert pool.best.name.startswith("all cases: same id, same row, call +1")
    assert pool.log_e > max(one.log_e for one in processes)


# ---- guarantees


@pytest.mark.statistical
def test_triple():
    law = np.full(4096, 1 / 4096)
    bets = 90
    needed = draws_needed_pairs(law, 0.02, bets, LOG_THRESHOLD, delta=1e-4)
    rate = smallest_detectable_pairs(law, int(needed), bets, LOG_THRESHOLD, delta=1e-4)
    assert rate == pytest.approx(0.02, rel=0.03)
    assert_pairs(law, 0.02, int(needed), bets, LOG_THRESHOLD, delta=1e-4)
    with pytest.raises(PowerError, match=r"0\.02"):
        assert_pairs(law, 0.02, int(needed) - 1, bets, LOG_THRESHOLD, delta=1e-4)
    assert smallest_detectable_pairs(law, 2, bets, LOG_THRESHOLD) == math.inf
    rng = np.random.default_rng(12)
    for _ in range(100):  # each misses with probability 1e-6
        pairs = int(needed)
        x = rng.integers(0, 4096, pairs)
        y = np.where(rng.random(pairs) < 0.02, x, rng.integers(0, 4096, pairs))
        process = PairProcess(law, (Lag(1, 0),), 1e-4, trusted=True)
        process.update(np.stack([x, y]))
        assert process.log_each.max() >= LOG_THRESHOLD + math.log(bets)


@pytest.mark.statistical
def test_pairs_of_calls_that_are_needed():
    ids, rows, bets = 4096, 256, 2 * len(RATES)
    law = np.full(ids, 1 / ids)
    rng = np.random.default_rng(14)
    for rate in (1.0, 0.05):
        needed = call_pairs_needed(ids, rows, rate, bets, LOG_THRESHOLD, delta=1e-4)
        assert 2 <= needed <= 60
        for _ in range(40):
            process = PairProcess(law, (Lag(1, 0),), 1e-4)
            for _ in range(int(needed)):
                x, y = rng.integers(0, ids, (2, rows))
                process.update(np.stack([x, np.where(rng.random(rows) < rate, x, y)]))
            assert process.log_e >= LOG_THRESHOLD

"""The e-process of one row: worked by hand, calibrated at the worst law, and powerful."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import binom

from refsampler.conformance.evidence.alternatives import BANK
from refsampler.conformance.evidence.generic import CONCENTRATIONS, EventBets, LearntBet
from refsampler.conformance.evidence.guarantees import Direction, draws_needed_directional
from refsampler.conformance.evidence.law import BANK_SHARE, LawCase, LawProcess
from refsampler.conformance.evidence.tolerance import clipped_log_ratio, least_favourable_law

LOG_THRESHOLD = math.log(1e9)


def everything(vocab):
    return np.ones(vocab, dtype=bool)


def whole_row(probs, delta=1e-4, floor=0.0, bank=BANK):
    mask = everything(probs.size)
    return LawCase.build(
        "row", np.log(probs), core=mask, hull=mask, delta=delta, floor=floor, alternatives=bank
    )


def zipf(vocab, temperature=0.8, seed=0):
    rng = np.random.default_rng(seed)
    logits = -1.15 * np.log(np.arange(vocab) + 1.5) + 0.4 * rng.standard_normal(vocab)
    probs = np.exp(rng.permutation(logits) / temperature)
    return probs / probs.sum()


def index(name):
    return [one.name for one in BANK].index(name)


# ---- worked by hand


def test_bank_component_is_the_sum_of_log_ratios():
    probs = np.array([0.9, 0.1])
    case = whole_row(probs, delta=0.0)
    process = LawProcess(case)
    process.update(np.array([3, 2]))
    # 1 % of uniform: 0.9 -> 0.896, 0.1 -> 0.104.
    expected = 3 * math.log(0.896 / 0.9) + 2 * math.log(0.104 / 0.1)
    at = index("uniform mixture +1 %")
    assert process.log_components[at] == pytest.approx(expected, abs=1e-13)


def test_event_bet_by_hand_and_over_its_whole_null():
    bets = EventBets.build(np.array([0.5]), 0.1)
    up = 7  # multiplier 1.25: Bernoulli(0.75) against Bernoulli(0.6)
    assert np.exp(bets.hit[up, 0]) == pytest.approx(1.25, abs=1e-15)
    assert np.exp(bets.miss[up, 0]) == pytest.approx(0.25 / 0.4, abs=1e-15)
    for mass in np.linspace(0.4, 0.6, 21):
        mean = mass * np.exp(bets.hit) + (1 - mass) * np.exp(bets.miss)
        assert mean.max() <= 1 + 1e-14


def test_learnt_bet_by_hand():
    # Two fair cells, draws A then A: the second is predicted with (c/2 + 1)/(c + 1).
    bet = LearntBet(np.array([0.5, 0.5]), 0.0)
    bet.update(np.array([1, 0]))
    assert bet.log_e == pytest.approx(0.0, abs=1e-15)
    bet.update(np.array([1, 0]))
    expected = np.mean([(c + 2) / (c + 1) for c in CONCENTRATIONS])
    assert math.exp(bet.log_e) == pytest.approx(expected, abs=1e-12)


def test_learnt_bet_without_tolerance_is_the_dirichlet_e_value():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    rng = np.random.default_rng(4)
    bet, counts = LearntBet(probs, 0.0), np.zeros(4, dtype=np.int64)
    for cell in rng.choice(4, size=60, p=[0.3, 0.3, 0.2, 0.2]):
        one = np.eye(4, dtype=np.int64)[cell]
        bet.update(one)
        counts += one
    closed = [
        (gammaln(c * probs + counts) - gammaln(c * probs)).sum()
        + gammaln(c)
        - gammaln(c + 60)
        - counts @ np.log(probs)
        for c in CONCENTRATIONS
    ]
    # The closed form loses digits as c grows: 60 differences of gammaln(1e9) at 1e-16.
    assert bet.log_e == pytest.approx(logsumexp(closed) - math.log(9), abs=1e-4)


def test_learnt_bet_rests_while_it_has_learnt_nothing_beyond_the_tolerance():
    bet = LearntBet(np.array([0.5, 0.5]), 0.02)
    for _ in range(5):
        bet.update(np.array([51, 49]))
    assert bet.log_e == pytest.approx(0.0, abs=1e-12)


def test_hull_without_core_is_skipped_and_outside_is_counted():
    probs = np.array([0.6, 0.3, 0.1])
    core, hull = np.array([True, True, False, False]), np.array([True, True, True, False])
    case = LawCase.build(
        "edge", np.log([*probs, 1e-3]), core=core, hull=hull, delta=1e-4, floor=0.0
    )
    process, plain = LawProcess(case), LawProcess(whole_row(np.array([2 / 3, 1 / 3])))
    process.update(np.array([40, 20, 9, 2]))
    plain.update(np.array([40, 20]))
    assert (process.draws, process.skipped, process.outside) == (60, 9, 2)
    # The skipped and outside draws leave the e-value where the 60 others put it.
    assert process.log_e == pytest.approx(plain.log_e, abs=0.2)
    before = process.log_e
    process.update(np.array([0, 0, 1000, 0]))
    assert process.log_e == before


def test_rare_ids_are_judged_by_their_sum_alone():
    probs = np.array([0.9, 0.06, *[0.01] * 4])
    case = whole_row(probs, floor=0.02)
    one, other = LawProcess(case), LawProcess(case)
    one.update(np.array([900, 60, 40, 0, 0, 0]))
    other.update(np.array([900, 60, 10, 10, 10, 10]))
    assert one.log_e == other.log_e
    assert one.log_e < 1
    lost = LawProcess(case)
    lost.update(np.array([9400, 600, 0, 0, 0, 0]))
    assert lost.log_e > LOG_THRESHOLD


def test_weights_of_all_bets_are_a_sub_probability():
    for case in (whole_row(zipf(64)), whole_row(np.array([1.0]))):
        prior = LawProcess(case).components
        assert sum(math.exp(one.log_weighted) for one in prior) <= 1 + 1e-12
        assert [one.log_e for one in prior] == pytest.approx([0.0] * len(prior), abs=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"delta": 1.0}, "delta = 1.0"), ({"alternatives": BANK * 2}, "each name once")],
)
def test_bad_plan_is_named(change, words):
    mask = everything(2)
    given = {"core": mask, "hull": mask, "delta": 0.0, "floor": 0.0, **change}
    with pytest.raises(ValueError, match=words):
        LawCase.build("row", np.log([0.5, 0.5]), **given)


# ---- calibrated


LEVELS = (0.1, 0.03)


def assert_level(peaks):
    """P(sup E >= 1/a) <= a, within a binomial band that a right process leaves with P <= 1e-6."""
    for level in LEVELS:
        crossed = int((np.asarray(peaks) >= -math.log(level)).sum())
        assert crossed <= binom.isf(1e-6, len(peaks), level), (level, crossed)


def worst_law(process):
    """The law of the ball that raises the bank's mixture most, given its present e-values."""
    case = process.case
    stake = np.exp(process.log_components - process.log_components.max())
    score = (stake[:, None] * np.exp(case.log_ratios)).sum(0)
    return least_favourable_law(case.probs, score, case.delta)


def fixed_worst_law(process):
    """The least favourable law of one alternative."""
    case = process.case
    return least_favourable_law(case.probs, case.log_ratios[0], case.delta)


def exact_law(process):
    return process.case.probs


FEW = tuple(
    replace(BANK[index(name)], weight=1 / 3)
    for name in ("temperature +5 %", "temperature -5 %", "greedy mixture +1 %")
)


@pytest.mark.statistical
@pytest.mark.parametrize("choose", [exact_law, fixed_worst_law, worst_law])
def test_mixture_is_calibrated(choose):
    case = whole_row(zipf(32), delta=3e-3, bank=FEW)
    single = np.argsort(case.cells.ids)
    rng = np.random.default_rng(11)
    peaks, bank_peaks = [], []
    for _ in range(300):
        process, peak, bank_peak = LawProcess(case), 0.0, 0.0
        for size in (100, 100, 200, 400, 800, 1600, 3200, 6400):
            law = choose(process)[single]
            process.update(rng.multinomial(size, law / law.sum()))
            peak = max(peak, process.log_e)
            bank_peak = max(bank_peak, logsumexp(process.log_components) - math.log(3))
        peaks.append(peak)
        bank_peaks.append(bank_peak)
    assert_level(peaks)
    assert_level(bank_peaks)
    if choose is not exact_law:  # not vacuous: at the worst laws the bets do reach the levels
        assert np.mean(np.array(bank_peaks) >= -math.log(0.1)) > 0.01


@pytest.mark.statistical
def test_one_bet_is_tight_at_the_least_favourable_law_and_a_plain_ratio_is_not_valid():
    case = whole_row(zipf(64), delta=5e-3)
    bet = index("temperature +5 %")
    law = least_favourable_law(case.probs, case.log_ratios[bet], case.delta)
    draws = np.random.default_rng(5).choice(law.size, size=(2000, 1500), p=law / law.sum())
    clipped = case.log_ratios[bet][draws].cumsum(1).max(1)
    assert_level(clipped)
    # Not vacuous: the process really reaches the levels at this law.
    assert (clipped >= -math.log(0.1)).mean() > 0.02
    plain = clipped_log_ratio(case.probs, case.laws[bet], 0.0)[draws].cumsum(1).max(1)
    with pytest.raises(AssertionError):
        assert_level(plain)


@pytest.mark.statistical
def test_learnt_and_event_bets_are_calibrated_at_a_law_on_the_sphere():
    probs, delta = np.full(16, 1 / 16), 0.02
    law = probs + delta / 8 * np.where(np.arange(16) < 8, 1, -1)
    rng = np.random.default_rng(6)
    events = EventBets.build(probs, delta)
    learnt_peaks, event_peaks = [], []
    for _ in range(400):
        bet, peaks, total = LearntBet(probs, delta), [0.0], np.zeros(16, dtype=np.int64)
        event_peak = 0.0
        for _ in range(12):
            batch = rng.multinomial(400, law)
            bet.update(batch)
            total += batch
            peaks.append(bet.log_e)
            event_peak = max(event_peak, events.log_e(total, int(total.sum())))
        learnt_peaks.append(max(peaks))
        event_peaks.append(event_peak)
    assert_level(learnt_peaks)
    assert_level(event_peaks)


# ---- powerful


def looks(total):
    """Batches that grow by a tenth of the draws so far."""
    done = 0
    while done < total:
        size = min(max(200, done // 10), total - done)
        done += size
        yield size


def draws_until_rejected(case, law, limit, seed):
    rng, process = np.random.default_rng(seed), LawProcess(case)
    for size in looks(limit):
        process.update(rng.multinomial(size, law / law.sum()))
        if process.log_e >= LOG_THRESHOLD:
            return process
    return None


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("temperature +5 %", 2048),
        ("temperature +1 %", 2048),
        ("least probable kept id dropped", 50),  # top-k that keeps k - 1
        ("first kept id dropped", 50),
        ("greedy mixture +1 %", 2048),
        ("float16 running sum", 2048),
        ("16-bit uniform", 20000),
    ],
)
def test_declared_fault_is_seen_within_the_stated_draws(name, live):
    probs = zipf(live)
    case = whole_row(probs)
    at = index(name)
    prior = math.log(BANK_SHARE * BANK[at].weight)
    needed = draws_needed_directional(
        Direction(case.laws[at], case.log_ratios[at]), LOG_THRESHOLD - prior
    )
    assert needed < 3e6
    law = BANK[at].fault(case.cells.live)
    for seed in range(3):  # each misses with probability at most 1e-6
        found = draws_until_rejected(case, law, needed, seed)
        assert found is not None


UNDECLARED = {
    "id mod 32: bucket 5 too frequent": lambda ids: np.where(ids % 32 == 5, 1.2, 1.0),
    "id, 16 blocks: bucket 15 too rare": lambda ids: np.where(ids >= ids.size * 15 // 16, 0.8, 1.0),
    "id 77 too frequent": lambda ids: np.where(ids == 77, 3.0, 1.0),
    "learnt law": lambda ids: np.exp(0.03 * np.random.default_rng(9).standard_normal(ids.size)),
}


@pytest.mark.statistical
@pytest.mark.parametrize("best", UNDECLARED)
def test_undeclared_fault_is_seen_by_the_generic_bets(best):
    probs = zipf(2048)
    law = probs * UNDECLARED[best](np.arange(2048))
    law /= law.sum()
    # No test of level 1e-9 needs fewer than about ln(1e9)/KL draws; bets that do not know the fault
    # are allowed eight times that.
    bound = LOG_THRESHOLD / (law @ np.log(law / probs))
    found = draws_until_rejected(whole_row(probs), law, int(8 * bound), seed=1)
    assert found is not None
    assert best in found.best.name


@pytest.mark.statistical
def test_right_sampler_with_rounded_probabilities_is_not_rejected():
    probs = zipf(50)
    rounded = probs.astype(np.float16).astype(np.float64)  # TV below 2^-11
    case = whole_row(probs, delta=2.0**-11)
    assert draws_until_rejected(case, rounded, 3_000_000, seed=2) is None
    exact = whole_row(probs, delta=0.0)
    assert draws_until_rejected(exact, probs, 1_000_000, seed=3) is None

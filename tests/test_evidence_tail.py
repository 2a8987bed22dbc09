"""`draw.tail`: exact over the whole band, calibrated at its edge, powerful; designs and grades."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.conformance.evidence.grades import GRADES, grade_result, judge_resolution
from refsampler.conformance.evidence.guarantees import PowerError
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.evidence.sea import sea
from refsampler.conformance.evidence.tail import BAND, FACTORS, TAIL_BETS, TailCase, TailProcess
from refsampler.conformance.evidence.tail_guarantees import (
    assert_tail,
    draws_needed_tail,
    smallest_detectable_tail,
)

LOG_THRESHOLD = math.log(1e9)


def flat_sea(vocab, grade, name="sea"):
    design = sea(vocab, grade)
    tail = np.arange(vocab) != vocab - 1
    logits = np.where(tail, 0.0, design.gap)
    mask = np.ones(vocab, dtype=bool)
    return TailCase.build(name, logits, tail, core=mask, hull=mask)


def test_sea_has_its_grade_and_mass():
    design = sea(11, 0.01)
    assert design.ids == 10
    assert design.mass == pytest.approx(0.1, abs=1e-15)
    assert math.exp(design.gap) == pytest.approx(0.9 / 0.01, rel=1e-13)
    assert sea(131072, 1e-5).ids == 50000
    assert sea(131072, 1e-9).ids == 131071
    case = flat_sea(1001, 1e-6)
    assert case.mass == pytest.approx(1e-3, rel=1e-12)
    assert case.grade == pytest.approx(1e-6, rel=1e-12)


def test_bet_by_hand():
    process = TailProcess(flat_sea(11, 0.01))
    process.add(3, 10)
    at = FACTORS.index(2.0)
    # Bernoulli(0.2) against the upper edge Bernoulli(0.105), 3 of 10.
    expected = 3 * math.log(0.2 / 0.105) + 7 * math.log(0.8 / 0.895)
    assert process.log_components[at] == pytest.approx(expected, abs=1e-12)
    missing = process.log_components[FACTORS.index(0.0)]
    assert missing < -1000
    empty = TailProcess(flat_sea(11, 0.01))
    empty.add(0, 10)
    # Nothing seen: (1/0.905)^10, against the lower edge 0.095.
    assert math.exp(empty.log_components[0]) == pytest.approx(0.905**-10, rel=1e-12)


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("vocab", [1024, 131072])
def test_supremum_over_the_band_is_one(grade, vocab):
    case = flat_sea(vocab, grade)
    one_hit, one_miss = TailProcess(case), TailProcess(case)
    one_hit.add(1, 1)
    one_miss.add(0, 1)
    hit, miss = np.exp(one_hit.log_components), np.exp(one_miss.log_components)
    masses = case.mass * np.linspace(1 - BAND, 1 + BAND, 41)[:, None]
    mean = masses * hit + (1 - masses) * miss
    assert mean.max(axis=0) == pytest.approx(np.ones(len(FACTORS)), abs=1e-14)
    # Just beyond the band a bet is no e-value any more: the null is not wider than declared.
    beyond = case.mass * 1.06
    assert (beyond * hit + (1 - beyond) * miss).max() > 1


@pytest.mark.statistical
@pytest.mark.parametrize("edge", [1 - BAND, 1.0, 1 + BAND])
def test_level_at_the_edges_of_the_band(edge):
    rng = np.random.default_rng(7)
    case = flat_sea(1001, 1e-4)  # mass 0.1
    highest = np.zeros(3000)
    looks = [rng.binomial(size, case.mass * edge, 3000) for size in (50, 100, 300, 1000, 4000)]
    for run in range(3000):
        process = TailProcess(case)
        for size, hits in zip((50, 100, 300, 1000, 4000), looks, strict=True):
            process.add(int(hits[run]), size)
            highest[run] = max(highest[run], process.log_e)
    for level in (0.1, 0.03, 0.01):
        false = int((highest >= -math.log(level)).sum())
        assert false <= binom.isf(1e-9, 3000, level)


@pytest.mark.statistical
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8, 1.25, 2.0, 0.65])
def test_planned_draws_show_the_factor(factor):
    case = flat_sea(131072, 1e-6)  # mass 0.131
    needed = draws_needed_tail(case.mass, factor, LOG_THRESHOLD)
    rng = np.random.default_rng(3)
    hits = rng.binomial(int(needed), case.mass * factor, 300)
    for count in hits:  # each misses with probability 1e-6
        process = TailProcess(case)
        process.add(int(count), int(needed))
        assert process.log_e >= LOG_THRESHOLD
    assert_tail(case.mass, factor, int(needed), LOG_THRESHOLD)
    with pytest.raises(PowerError, match="x"):
        assert_tail(case.mass, factor, int(needed) - 1, LOG_THRESHOLD)


def test_missing_tail_needs_what_a_worked_number_says():
    # log e of N misses: -N ln(1 - 0.95 s) - ln 15 >= 20.72, and all draws miss.
    mass = 1e-3
    expected = math.ceil((LOG_THRESHOLD + math.log(len(FACTORS))) / -math.log1p(-0.95 * mass))
    needed = draws_needed_tail(mass, 0.0, LOG_THRESHOLD)
    assert needed == pytest.approx(expected, rel=0.35)  # Chernoff pays for beta, nothing is random
    assert needed >= expected
    assert draws_needed_tail(mass, 1.04, LOG_THRESHOLD) == math.inf


def test_smallest_detectable_agrees_with_the_draws_needed():
    mass, draws = 0.05, 100_000
    seen = smallest_detectable_tail(mass, draws, LOG_THRESHOLD)
    assert seen.low is not None
    assert seen.high is not None
    assert 0.7 < seen.low < 0.95
    assert 1.05 < seen.high < 1.4
    assert draws_needed_tail(mass, seen.low, LOG_THRESHOLD) <= draws
    assert draws_needed_tail(mass, seen.high, LOG_THRESHOLD) <= draws
    assert draws_needed_tail(mass, seen.low * 1.01, LOG_THRESHOLD) > draws
    assert draws_needed_tail(mass, seen.high / 1.01, LOG_THRESHOLD) > draws
    few = smallest_detectable_tail(1e-6, 100, LOG_THRESHOLD)
    assert few.low is None


def test_counts_are_sorted_by_core_and_hull():
    core = np.array([True, True, True, False, False])
    hull = np.array([True, True, True, True, False])
    tail = np.array([False, True, True, False, False])
    case = TailCase.build("t", np.log([0.8, 0.1, 0.1, 0.5, 1.0]), tail, core=core, hull=hull)
    assert case.mass == pytest.approx(0.2)
    process = TailProcess(case)
    process.update(np.array([80, 11, 9, 5, 2]))
    assert (process.hits, process.draws, process.skipped, process.outside) == (20, 100, 5, 2)
    with pytest.raises(ValueError, match="tail"):
        TailCase.build("t", np.zeros(5), ~tail, core=core, hull=hull)


def test_grades_feed_a_pool_and_are_told_apart():
    cases = [flat_sea(131072, grade, f"{grade:g}") for grade in GRADES]
    processes = [TailProcess(case) for case in cases]
    pool = ClausePool(equal_weights(one.name for one in cases), TAIL_BETS, LOG_THRESHOLD)
    draws = 3_000_000
    for process in processes:  # a sampler whose noise stops at 2^-24 starves what lies below
        grade = process.case.grade
        process.add(round(draws * process.case.mass * math.exp(-(2.0**-24) / grade)), draws)
        pool.update(process.evidence())
    lines = [
        grade_result(one, grade, 1e-6, LOG_THRESHOLD)
        for one, grade in zip(processes, GRADES, strict=True)
    ]
    assert [one.reached for one in lines] == [True, True, False, False, False]
    assert [one.required for one in lines] == [True, True, False, False, False]
    assert pool.failed
    idle = grade_result(TailProcess(cases[4]), 1e-9, 1e-6, LOG_THRESHOLD)
    assert idle.reached is None


def resolved(counts):
    result = judge_resolution(counts, 1e-10)
    assert result is not None
    return result


@pytest.mark.statistical
def test_resolution_sees_half_of_the_ids_missing():
    rng = np.random.default_rng(5)
    ids = 3000
    right = np.bincount(rng.integers(0, ids, 2000), minlength=ids)
    assert not resolved(right).failed
    half = np.bincount(rng.integers(0, ids // 2, 2000), minlength=ids)
    result = resolved(half)
    assert result.failed
    assert result.few < 1e-10 < result.many
    spread = np.bincount(np.arange(2000), minlength=ids)
    result = resolved(spread)
    assert result.failed
    assert result.many < 1e-10 < result.few
    assert judge_resolution(np.eye(ids, dtype=np.int64)[0], 1e-10) is None

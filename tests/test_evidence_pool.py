"""The clause's e-process over planned cases, worked by hand and calibrated."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.conformance.evidence.alternatives import Alternative
from refsampler.conformance.evidence.law import CaseEvidence, Component, LawCase, LawProcess
from refsampler.conformance.evidence.pool import (
    NO_BET,
    ClausePool,
    PlannedCase,
    case_log_threshold,
    equal_weights,
    fuzz_weight,
)


def fault(row):
    return row.probs


TWO = (Alternative("low", 0.0, 0.5, fault), Alternative("high", 0.0, 0.25, fault))


def says(case, log_e, *components):
    best = Component("bet", log_e, log_e)
    return CaseEvidence(case, log_e, components, best, draws=10, skipped=0, outside=0)


def test_by_hand():
    pool = ClausePool((PlannedCase("a", 0.5), PlannedCase("b", 0.25)), TWO, math.log(1e3))
    assert pool.log_e == pytest.approx(0.0, abs=1e-15)  # nothing started: all count 1
    pool.update(says("a", math.log(6), math.log(8), math.log(2)))
    # 1/2 (0.5 x 8 + 0.25 x 2 + 0.25 x 1) + 1/2 (0.5 x 6 + 0.25 x 1 + 0.25 x 1)
    assert math.exp(pool.log_e) == pytest.approx(0.5 * 4.75 + 0.5 * 3.5)
    pool.update(says("b", math.log(4), math.log(0.5), math.log(100)))
    # 1/2 (0.5 x 8 x 0.5 + 0.25 x 2 x 100 + 0.25) + 1/2 (0.5 x 6 + 0.25 x 4 + 0.25)
    assert math.exp(pool.log_e) == pytest.approx(0.5 * 52.25 + 0.5 * 4.25)
    assert pool.best.name == "all cases: high"
    assert not pool.failed


def test_a_later_look_replaces_the_case_and_failure_latches():
    pool = ClausePool(equal_weights(["a"]), TWO, math.log(100))
    pool.update(says("a", math.log(1000), 0.0, 0.0))
    assert pool.failed
    pool.update(says("a", math.log(0.1), math.log(0.1), math.log(0.1)))
    assert math.exp(pool.log_e) == pytest.approx(0.5 * (0.75 * 0.1 + 0.25) + 0.5 * 0.1)
    assert pool.failed
    assert math.exp(pool.log_e_max) == pytest.approx(0.5 + 0.5 * 1000)
    assert pool.best.name == "a: bet"


def test_a_case_fails_alone_at_its_own_threshold():
    for extra, failed in ((1e-9, True), (-0.1, False)):
        pool = ClausePool(equal_weights(["a", "b", "c", "d"]), TWO, math.log(1e9))
        pool.update(says("a", case_log_threshold(math.log(1e9), 0.25) + extra, -50.0, -50.0))
        assert pool.failed is failed
    assert case_log_threshold(math.log(1e9), 0.25) == pytest.approx(math.log(8e9))


def test_one_bad_case_is_named():
    pool = ClausePool(equal_weights(["a", "b"]), TWO, math.log(100))
    pool.update(says("a", -1.0, 0.0, 0.0))
    assert pool.best is NO_BET
    pool.update(says("b", 20.0, 0.0, 0.0))
    assert pool.best.name == "b: bet"


def test_fuzzed_cases_are_weighted_by_arrival():
    pool = ClausePool((), TWO, math.log(1e6))
    pool.update(says("first", math.log(3), 0.0, 0.0))
    pool.update(says("second", math.log(7), 0.0, 0.0))
    pool.update(says("first", math.log(5), 0.0, 0.0))
    # 1/2 + 1/2 (5/2 + 7/6 + the 1/3 that has not arrived)
    assert math.exp(pool.log_e) == pytest.approx(0.5 + 0.5 * (5 / 2 + 7 / 6 + 1 / 3))
    assert math.fsum(fuzz_weight(k) for k in range(1, 1000)) == pytest.approx(0.999)


def test_bad_plan_or_evidence_is_named():
    with pytest.raises(ValueError, match="each case once"):
        ClausePool((PlannedCase("a", 0.1), PlannedCase("a", 0.1)), TWO, 1.0)
    with pytest.raises(ValueError, match=r"case weights of sum 1\.5"):
        ClausePool((PlannedCase("a", 0.5), PlannedCase("b", 1.0)), TWO, 1.0)
    pool = ClausePool(equal_weights(["a"]), TWO, 1.0)
    with pytest.raises(ValueError, match="case b is refused"):
        pool.update(says("b", 0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="1 alternatives"):
        pool.update(says("a", 0.0, 0.0))


def rows(count, vocab=24):
    rng = np.random.default_rng(3)
    mask = np.ones(vocab, dtype=bool)
    for k in range(count):
        probs = rng.dirichlet(np.ones(vocab)) + 1e-3
        yield LawCase.build(f"row {k}", np.log(probs), core=mask, hull=mask, delta=1e-3, floor=1e-5)


@pytest.mark.statistical
def test_pool_is_calibrated_and_a_shared_fault_accumulates():
    cases = tuple(rows(6))
    rng = np.random.default_rng(8)
    peaks = []
    for _ in range(100):
        pool = ClausePool(equal_weights(c.name for c in cases), cases[0].alternatives, 99.0)
        for case in cases:
            process = LawProcess(case)
            for size in (50, 200, 600):
                process.update(rng.multinomial(size, case.cells.live.probs))
                pool.update(process.evidence())
        peaks.append(pool.log_e_max)
    for level in (0.1, 0.03):
        crossed = int((np.array(peaks) >= -math.log(level)).sum())
        assert crossed <= binom.isf(1e-6, len(peaks), level)

    # Temperature +5 % in 60 rows of 24 ids: no row shows it alone, all of them do together.
    many = tuple(rows(60))
    pool = ClausePool(equal_weights(c.name for c in many), many[0].alternatives, math.log(1e9))
    alone = []
    for case in many:
        process = LawProcess(case)
        law = case.cells.live.probs ** (1 / 1.05)
        process.update(rng.multinomial(1500, law / law.sum()))
        alone.append(process.log_e)
        pool.update(process.evidence())
    assert max(alone) < math.log(1e9)
    assert pool.failed
    assert pool.best.name == "all cases: temperature +5 %"

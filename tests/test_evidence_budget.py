"""The split of the promise: it adds up, overflows loudly, and closes at the first draw."""

import math

import pytest

from refsampler.conformance.evidence.budget import (
    FIXED_DRAWS,
    NEAR_CERTAIN,
    SEQUENTIAL,
    TOTAL,
    Budget,
    BudgetExceededError,
    ClauseShare,
    Ledger,
)


def test_parts_are_the_whole():
    assert math.fsum([NEAR_CERTAIN, FIXED_DRAWS, SEQUENTIAL]) == pytest.approx(TOTAL, rel=1e-15)


def test_clauses_share_by_weight():
    budget = Budget((ClauseShare("draw.law", 3.0), ClauseShare("independence.rows")))
    assert budget.alpha("draw.law") == pytest.approx(0.75 * 7.5e-10, rel=1e-15)
    assert budget.alpha("independence.rows") == pytest.approx(0.25 * 7.5e-10, rel=1e-15)
    assert budget.log_threshold("draw.law") == pytest.approx(math.log(1 / 5.625e-10))
    with pytest.raises(KeyError):
        budget.alpha("draw.tail")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clauses": (ClauseShare("a"), ClauseShare("a"))}, "each clause once"),
        ({"clauses": (ClauseShare("a", 0.0),)}, "share of a = 0.0"),
        ({"clauses": (ClauseShare("a"),), "total": 1e-9}, "total = 1e-09"),
    ],
)
def test_bad_split_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        Budget(**given)


def test_ledger_fills_to_the_brim_and_no_further():
    ledger = Ledger(NEAR_CERTAIN)
    for k in range(10):
        ledger.charge(f"check {k}", 1e-11)
    assert ledger.spent == pytest.approx(1e-10, rel=1e-12)
    assert ledger.left == pytest.approx(0.0, abs=1e-24)
    ledger.charge("certain", 0.0)
    with pytest.raises(BudgetExceededError, match="one more asks for 1e-20"):
        ledger.charge("one more", 1e-20)
    assert ledger.charges[-1].check == "certain"


def test_ledger_closes_at_the_first_draw():
    ledger = Ledger(FIXED_DRAWS)
    ledger.charge("planned", 1e-11)
    ledger.seal()
    with pytest.raises(BudgetExceededError, match="sealed by the first draw"):
        ledger.charge("late", 1e-12)


@pytest.mark.parametrize("bad", [-1e-12, math.nan, math.inf])
def test_ledger_refuses_what_is_no_probability(bad):
    with pytest.raises(ValueError, match="false_alarm of odd"):
        Ledger(NEAR_CERTAIN).charge("odd", bad)

"""Sizes of laws: what is planned to show does, for the fewest seconds, and the rest is named."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from refsampler.backends.native import NativeKernel
from refsampler.conformance.checks.law import prepare
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.designed.laws import law_cases
from refsampler.conformance.evidence.guarantees import BETA, draws_needed_tv
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.lawsize import draw_seconds, size_laws
from refsampler.conformance.plan import LAW, make_plan, sure
from refsampler.conformance.sequential import L1_ALPHA, SPLIT, coarse

THRESHOLD = SPLIT.log_threshold(LAW)
CAPABILITIES = NativeKernel().capabilities


def prepared(*cases):
    return [(case, prepare(case, CAPABILITIES)) for case in cases]


def sized(rows, seconds=30.0, least_seconds=0.5):
    return size_laws(rows, LAW, THRESHOLD, seconds, least_seconds)


@pytest.fixture(scope="module")
def narrow():
    return prepared(*(case for case in law_cases() if case.logits.vocab < 100))


def test_of_two_ids_the_binomial_law_confirms_every_power():
    rows = prepared(batch(2, [(row({0: -2.25, 1: 0.0}), request())], "draw.law"))
    (_, law), found = rows[0], sized(rows, seconds=1.2, least_seconds=0.1)
    (size,) = found.rows
    assert len(size.carried) > 2
    assert size.least < size.most
    for name in size.carried:
        at = [one.name for one in law.alternatives].index(name)
        (first, second), q = law.log_ratios[at], law.laws[at]
        limit = THRESHOLD + math.log(2 * 40)  # half of the evidence, one of 40 alternatives

        def missed(draws, limit=limit, first=first, second=second, q=q):
            # log E = X first + (N - X) second, X binomial
            hits = np.arange(draws + 1)
            short = hits * first + (draws - hits) * second < limit
            return float(binom.pmf(hits[short], draws, q[0]).sum())

        assert missed(size.most) < BETA / 2
    # and the dearest of them is not sized for much more than it needs
    assert missed(int(0.7 * size.most)) > BETA / 2


def test_no_alternative_loses_by_more_draws(narrow):
    # E_q[1/e] <= 1: what Chernoff's bound with s <= 1 rests on
    for _, law in narrow:
        means = (law.laws * np.exp(-law.log_ratios)).sum(axis=1)
        assert (means <= 1 + 1e-9).all()


def test_least_draws_show_the_smallest_distance_that_can_be_paid(narrow):
    for (case, law), size in zip(narrow, sized(narrow).rows, strict=True):
        alpha = L1_ALPHA / len(narrow)
        each = draw_seconds(case)
        needed = [
            draws_needed_tv(law.probs, eps, alpha, delta=law.delta) for eps in (0.01, 0.02, 0.05)
        ]
        assert size.least == next(draws for draws in needed if draws * each <= 0.5)
    wide = prepared(batch(4096, [(row({}, base=0.0), request())], "draw.law"))
    assert coarse(wide[0][1]).probs.size == 16
    assert draw_seconds(wide[0][0]) == pytest.approx(4096 * 21e-9, rel=0.02)
    ranked = batch(4096, [(row({}, base=0.0), request(top_p=0.5))], "draw.law")
    assert draw_seconds(ranked) == pytest.approx(4096 * 70e-9, rel=0.02)


def test_seconds_are_kept_the_cheapest_comes_first_and_the_rest_is_named(narrow):
    names = {one.name for one in narrow[0][1].alternatives}
    before: set[str] = set()
    for seconds in (0.0, 4.0, 20.0, 300.0):
        found = sized(narrow, seconds)
        spent = [
            (size.most - size.least) * draw_seconds(case)
            for (case, _), size in zip(narrow, found.rows, strict=True)
        ]
        least = sum(
            size.least * draw_seconds(case)
            for (case, _), size in zip(narrow, found.rows, strict=True)
        )
        assert sum(spent) <= max(seconds - least, 0.0)
        shown = {one.bias for one in found.powers if one.probability >= 1 - BETA}
        left = {one.words.partition(":")[0] for one in found.unplanned}
        assert shown | left == names
        assert not shown & left
        assert before <= shown
        before = shown
    carried = [name for size in found.rows for name in size.carried]
    assert len(set(carried)) == len(carried)
    assert sum(spent) > 0
    # twice the temperature fault costs a quarter: a row of one id against a sea carries it
    at = [case.requests[0].params.temperature for case, _ in narrow].index(0.5)
    assert "temperature -0.1 %" in found.rows[at].carried


def test_the_quick_profile_sees_a_draw_in_a_thousand_that_is_greedy():
    plan = make_plan(CAPABILITIES, glob="draw.law", run_seed=1)
    assert "greedy mixture +0.1 %" in {one.bias for one in sure(plan)}
    carrying = [one for one in plan.laws if "greedy mixture +0.1 %" in one.carried]
    # the likeliest of 256 nearly equal ids: a thousandth is a quarter of its own mass
    assert [one.law.probs.size for one in carrying] == [256]
    assert 0.001 / carrying[0].law.probs.max() == pytest.approx(0.24, abs=0.005)
    assert sum(one.draws * draw_seconds(one.case) for one in plan.laws) <= 24.0


def test_the_full_profile_sees_probabilities_of_8_bits_where_they_are_most_wrong():
    plan = make_plan(CAPABILITIES, profile="full", glob="draw.law", run_seed=1)
    assert "bfloat16 probabilities" in {one.bias for one in sure(plan)}
    (one,) = [one for one in plan.laws if "bfloat16 probabilities" in one.carried]
    at = [bet.name for bet in one.law.alternatives].index("bfloat16 probabilities")
    wrong = one.law.laws[at] / one.law.probs - 1
    # seven bits behind the leading one: half of the last is 2^-8 of what begins with 1.000
    assert np.sort(np.abs(wrong))[1:] == pytest.approx(2.0**-8, rel=0.15)
    assert 4 * one.draws < 8e7


def test_the_plan_depends_on_no_clock_and_shrinks_with_a_time_budget():
    plans = [
        make_plan(RightKernel.capabilities, glob="draw.law", run_seed=1, time_budget=budget)
        for budget in (None, None, 10.0)
    ]
    sizes = [[(one.draws, one.least, one.carried) for one in plan.laws] for plan in plans]
    assert sizes[0] == sizes[1] != sizes[2]
    nominal = sum(one.draws * draw_seconds(one.case) for one in plans[2].laws)
    assert nominal <= 0.4 * 10
    assert len(sure(plans[2])) < len(sure(plans[0]))
    vocabs = {one.case.logits.vocab for one in plans[0].laws}
    assert {2, 262144} <= vocabs
    full = make_plan(RightKernel.capabilities, profile="full", glob="draw.law", run_seed=1)
    assert {"temperature +0.1 %", "noise that can be 0 (24 bits)"} <= {
        one.bias for one in sure(full)
    }
    assert any(one.words.startswith("24-bit uniform") for one in full.unplanned)

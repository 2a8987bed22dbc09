"""Steering: margins by hand, and a planted margin fault that the target finds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from refsampler.backends.protocol import Feature
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.designed.build import batch, masses, request, row
from refsampler.conformance.examples import same_everywhere
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.steering import check_batch, effect, margins, near_batches
from refsampler.conformance.threads import one_thread
from refsampler.draw import Drawn
from refsampler.semantics import Semantics, Step
from tests.shapes import unchecked

LIVE = masses({0: 0.5, 3: 0.25, 5: 0.25})


def near(asked, recipe=LIVE):
    return {one.of: one.distance for one in margins(batch(8, [(recipe, asked)]))}


def test_margins_of_one_row_by_hand():
    # 0.5 lies above id 3, 0.75 above id 5
    assert near(request(top_p=0.6)) == {Step.TOP_P: pytest.approx(0.1)}
    assert near(request(top_p=0.76)) == {Step.TOP_P: pytest.approx(0.01)}
    assert near(request(top_k=1)) == {Step.TOP_K: pytest.approx(math.log(2))}
    assert near(request(min_p=0.4)) == {Step.MIN_P: pytest.approx(math.log(0.5 / 0.4))}
    # the second and the third are equal: a tie has no margin
    assert near(request(top_k=2)) == {}
    # of what top-k left 2/3 lie above id 3
    steps = near(request(top_k=2, top_p=0.6), row({0: math.log(2), 3: 0.0, 5: -1.0}))
    assert steps == {Step.TOP_K: pytest.approx(1), Step.TOP_P: pytest.approx(2 / 3 - 0.6)}
    # a temperature of 2 halves what lies between
    assert near(request(temperature=2.0, min_p=0.5)) == {
        Step.MIN_P: pytest.approx(math.log(2) - math.log(2) / 2)
    }
    assert near(request(temperature=0.0, top_p=0.6)) == near(request()) == {}


def test_the_least_margin_of_a_batch_counts_and_nearness_ends_where_rounding_begins():
    case = batch(8, [(LIVE, request(top_p=p)) for p in (0.6, 0.51, 0.9)])
    (one,) = margins(case)
    assert one.distance == pytest.approx(0.01)
    assert one.score == pytest.approx(-math.log2(0.01))
    assert replace(one, distance=0.0).score == replace(one, distance=2e-5).score


def test_the_effect_of_equal_rows_by_hand():
    case = batch(8, [(masses({0: 0.5, 1: 0.5}), request())] * 32)
    expected = Expected.of(case, Semantics())
    unseeded = np.zeros(32, bool)
    ids = np.array([0] * 25 + [1] * 7)
    # 16 expected of each: (25 + 1) / (16 + 1), and (7 + 1) / (16 + 1)
    assert effect(expected, ids, unseeded) == pytest.approx(math.log(17 / 8), abs=1e-4)
    assert effect(expected, np.array([0, 1] * 16), unseeded) == pytest.approx(0, abs=1e-4)
    assert effect(expected, ids, ~unseeded) == 0


class ALittleMore(RightKernel):
    """Keeps one id more where the mass above it exceeds top-p by less than 2e-4."""

    capabilities = replace(
        RightKernel.capabilities, features=frozenset({Feature.SEED, Feature.PROCESSED})
    )

    def kept_top_p(self, x, top_p):
        return super().kept_top_p(x, top_p + 2e-4)

    def draw(self, logits, rows):
        kept = self.filtered(self.scaled(logits.float(), rows, rows.temperature == 0), rows)
        return Drawn(super().draw(logits, rows), kept)


class Right(ALittleMore):
    def kept_top_p(self, x, top_p):
        return RightKernel.kept_top_p(self, x, top_p)


def examples_until_found(kernel, run_seed, most, phases):
    """How many batches were judged until one failed; None if none did."""
    judged = 0

    @seed(run_seed)
    @settings(
        max_examples=most,
        phases=phases,
        derandomize=False,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(near_batches(most_rows=2, filters=(Step.TOP_P,)))
    def run(case):
        nonlocal judged
        judged += 1
        check_batch(case, kernel)

    with same_everywhere(), one_thread(), unchecked():
        try:
            run()
        except AssertionError:
            return judged
    return None


BLIND = (Phase.generate,)
STEERED = (Phase.generate, Phase.target)


def test_a_fault_of_the_margin_is_found_where_the_target_leads():
    steered = examples_until_found(ALittleMore(), 5, 200, STEERED)
    assert steered is not None
    assert examples_until_found(ALittleMore(), 5, steered, BLIND) is None


def test_a_right_kernel_passes_at_every_margin_that_is_climbed_to():
    assert examples_until_found(Right(), 5, 100, STEERED) is None

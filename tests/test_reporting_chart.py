"""Places in a chart worked by hand: the box goes from 46 to 252 across and from 140 up to 10."""

import numpy as np
import pytest

from refsampler.conformance.reporting.chart import (
    across,
    band,
    decades,
    dots,
    line,
    linear,
    stems,
    upwards,
)
from refsampler.conformance.reporting.plots import evidence_plot


def test_scales_place_numbers_in_the_box():
    assert across(0, 2)(np.array([0.0, 1.0, 2.0])) == pytest.approx([46, 149, 252])
    # a factor of 10 is half of a range of two powers
    assert across(1e-4, 1e-2, log=True)(np.array([1e-3])) == pytest.approx([149])
    # 0 and 50, and 8 % of 50 at each end: 58 units on 130
    y = upwards(np.array([50.0, 20.0]))
    assert y(np.array([0.0, 50.0])) == pytest.approx([140 - 130 * 4 / 58, 10 + 130 * 4 / 58])


@pytest.mark.parametrize(
    ("low", "high", "labels", "unit"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"], ""),
        (-0.0003, 0.0002, ["-3", "-2", "-1", "0", "1", "2"], " × 1e-4"),
        (0, 230_000, ["0", "0.5", "1", "1.5", "2"], " × 1e5"),
        (-7, 13, ["-5", "0", "5", "10"], ""),
    ],
)
def test_ticks_are_at_round_numbers(low, high, labels, unit):
    ticks, times = linear(across(low, high))
    assert [one.label for one in ticks] == labels
    assert times == unit
    assert all(45.99 < one.at < 252.01 for one in ticks)


def test_ticks_of_a_logarithmic_axis():
    assert [one.label for one in decades(across(2e-7, 0.5, log=True))] == ["1e-6", "1e-4", "1e-2"]
    assert [one.label for one in decades(across(0.2, 0.5, log=True))] == ["0.2", "0.5"]


def test_paths_say_what_svg_draws():
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.04])
    assert line("curve", x, y).d == "M1.0 3.0L2.0 4.0"
    assert band("surface", x, y, y + 1).d == "M1.0 4.0L2.0 5.0L2.0 4.0L1.0 3.0Z"
    assert dots("dots", x, y).d == "M1.0 3.0h0M2.0 4.0h0"
    assert stems("stems", x, y, y + 1).d == "M1.0 3.0V4.0M2.0 4.0V5.0"


def test_the_limit_is_drawn_where_the_evidence_comes_near():
    path = [(100, 0.0), (200, 7.0)]
    near, far = evidence_plot(path, 20.0), evidence_plot(path, 200.0)
    assert near is not None
    assert far is not None
    assert [one.kind for one in near.paths] == ["rule", "limit", "curve"]
    assert [one.kind for one in far.paths] == ["rule", "curve"]
    assert evidence_plot(path[:1], 20.0) is None

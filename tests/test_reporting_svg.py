"""Plots of a page: what is drawn on a sheet is on no later one, and labels say what ticks are."""

import re
from functools import partial

import pytest

from refsampler.conformance.reporting.plots import evidence_plot

pytest.importorskip("matplotlib", reason="the extra `report` is not installed")

from refsampler.conformance.reporting.svg import Sheet

SMALL = ([0.0, 0.5, 1.0], [0.0, 0.00045, 0.0])


@pytest.fixture(scope="module")
def sheet():
    return Sheet()


def curve(points, axes):
    axes.axhspan(-1e-4, 1e-4)
    axes.plot(*points, color="#030303")
    axes.set(xlabel="x", ylabel="y")


def named(axes):
    axes.plot([0, 1], [1e6, 2e6], ".")
    axes.set_xticks([0, 1], ["1", "65,537"])
    axes.yaxis.set_major_formatter(lambda ten, _: f"{ten:.2g}!")
    axes.set(xlabel="z", ylabel="w")


def labels(svg):
    return re.findall("<text[^>]*>([^<]*)</text>", svg)


def test_a_sheet_keeps_nothing_of_the_plot_before(sheet):
    sheet.draw("one", "one", named)
    later = sheet.draw("two", "two", partial(curve, SMALL))
    assert later == Sheet().draw("two", "two", partial(curve, SMALL))


def test_labels_are_not_rounded_as_places_are(sheet):
    svg = sheet.draw("n", "n", partial(curve, ([0.0, 2.0], [0.0, 0.9])))
    assert {"0.00", "0.25", "0.50", "0.75"} <= set(labels(svg))
    assert not re.search(r"<[^>]*\d\.\d\d", svg)


def test_small_numbers_have_their_power_of_ten_beside_the_axis(sheet):
    said = labels(sheet.draw("n", "n", partial(curve, SMALL)))
    assert "1e−4" in said
    assert {"0", "2", "4"} <= set(said)


def test_names_are_text_and_ids_differ_between_figures(sheet):
    one, other = (sheet.draw(name, '<b> & "c"', partial(curve, SMALL)) for name in ("one", "other"))
    assert 'aria-label="&lt;b&gt; &amp; &#34;c&#34;"' in one
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert "metadata" not in one


def test_the_limit_is_drawn_where_the_evidence_comes_near(sheet):
    path = [(100, 0.0), (200, 7.0)]
    near, far = (evidence_plot("a", path, limit, sheet) for limit in (20.0, 200.0))
    assert near is not None
    assert far is not None
    assert "var(--off)" in near.svg
    assert "var(--off)" not in far.svg
    assert evidence_plot("a", path[:1], 20.0, sheet) is None

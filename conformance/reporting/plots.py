"""The four plots of a law, from its stored counts and its stored evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from refsampler.conformance.reporting.curves import BAND, buckets, difference, ratios
from refsampler.conformance.reporting.stored_law import StoredLaw
from refsampler.conformance.reporting.svg import COLOURS, new_figure, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plot", "evidence_plot", "law_plots"]

_CHANCE: Final = f"{100 * BAND:g} %"
_TENS: Final = math.log(10)


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure.

    Attributes:
        title: what it shows, in words.
        svg: the element.

    """

    title: str
    svg: str


def law_plots(one: StoredLaw) -> tuple[Plot, ...]:
    """Return the plots of a law's counts; none without a draw.

    Raises:
        ImportError: matplotlib, the extra `report`, is not installed.

    """
    if one.counts.sum() == 0 or one.probs.size < 2:
        return ()
    made = (
        ("Summed frequency minus summed probability, from the top rank", _difference),
        ("Observed over expected, against expected probability", _ratios),
        ("Mass off by rank bucket", _buckets),
    )
    name = one.record.id
    return tuple(
        _drawn(f"{name}-{place}", title, lambda axes, draw=draw: draw(one, axes))  # type: ignore[misc]
        for place, (title, draw) in enumerate(made)
    )


def evidence_plot(
    name: str, path: Sequence[tuple[int, float]], log_threshold: float | None
) -> Plot | None:
    """Return the e-value against draws; None if the report has no path.

    Args:
        name: unique in the page.
        path: [draws, log e] of every look.
        log_threshold: where the clause fails by this case alone; None if unknown.

    Raises:
        ImportError: matplotlib, the extra `report`, is not installed.

    """
    if len(path) < 2:
        return None

    def draw(axes: Axes) -> None:
        draws, log_e = np.array(path).T
        tens = np.maximum(log_e / _TENS, -6.0)
        axes.plot(draws, tens, color=COLOURS["line"], linewidth=1.4)
        axes.axhline(0, color=COLOURS["soft"], linewidth=0.6)
        needed = None if log_threshold is None else log_threshold / _TENS
        if needed is not None and tens.max() > needed / 4:
            axes.axhline(needed, color=COLOURS["off"], linewidth=0.9, linestyle="--")
        axes.set_xlabel("draws")
        axes.set_ylabel("log10 of the e-value")
        axes.ticklabel_format(axis="x", scilimits=(0, 4))

    return _drawn(f"{name}-e", "Evidence against draws", draw)


def _drawn(name: str, title: str, draw: Callable[[Axes], None]) -> Plot:
    figure = new_figure()
    draw(figure.add_subplot())
    return Plot(title, to_svg(figure, name, title))


def _difference(one: StoredLaw, axes: Axes) -> None:
    curve = difference(one.probs, one.counts)
    axes.axhspan(-curve.band, curve.band, color=COLOURS["band"], linewidth=0)
    axes.axhline(0, color=COLOURS["soft"], linewidth=0.6)
    axes.plot(curve.at, curve.off, color=COLOURS["line"], linewidth=1.2)
    axes.set_xlabel("summed probability from the top rank")
    axes.set_ylabel("frequency − probability")
    axes.ticklabel_format(axis="y", scilimits=(-2, 3))


def _ratios(one: StoredLaw, axes: Axes) -> None:
    points = ratios(one.probs, one.counts)
    order = np.argsort(points.prob)
    prob, ratio, low, high = (
        getattr(points, name)[order] for name in ("prob", "ratio", "low", "high")
    )
    shown = np.log2([np.maximum(row, 2.0**-6) for row in (ratio, low, high)])
    if prob[-1] > 1.05 * prob[0]:
        axes.set_xscale("log")
        axes.fill_between(prob, shown[1], shown[2], color=COLOURS["band"], linewidth=0)
    else:
        axes.vlines(prob, shown[1], shown[2], color=COLOURS["band"], linewidth=6)
        axes.set_xticks(prob[:1], [f"{prob[0]:.3g}"])
    axes.axhline(0, color=COLOURS["soft"], linewidth=0.6)
    outside = (ratio < low) | (ratio > high)
    for mask, colour in ((~outside, "line"), (outside, "off")):
        axes.plot(prob[mask], shown[0][mask], ".", markersize=4, color=COLOURS[colour])
    axes.set_xlabel("expected probability of an id")
    axes.set_ylabel("log2 observed / expected")


def _buckets(one: StoredLaw, axes: Axes) -> None:
    bars = buckets(one.probs, one.counts)
    at = np.arange(bars.first.size)
    axes.axhline(0, color=COLOURS["soft"], linewidth=0.6)
    axes.vlines(at, bars.low, bars.high, color=COLOURS["line"], linewidth=2)
    outside = (bars.low > 0) | (bars.high < 0)
    for mask, colour in ((~outside, "line"), (outside, "off")):
        axes.plot(at[mask], bars.off[mask], "o", markersize=4, color=COLOURS[colour])
    step = max(1, math.ceil(at.size / 7))
    axes.set_xticks(at[::step], [f"{rank:,}" for rank in bars.first[::step]])
    axes.set_xlabel("from rank")
    axes.set_ylabel("observed − expected mass")
    axes.ticklabel_format(axis="y", scilimits=(-2, 3))

"""The four plots of a law, from its stored counts and its stored evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.reporting.curves import buckets, difference, ratios
from refsampler.conformance.reporting.stored_law import StoredLaw
from refsampler.conformance.reporting.svg import COLOURS, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plot", "evidence_plot", "law_plots"]

_TENS: Final = math.log(10)
_LEAST_RATIO: Final = 2.0**-6
_TENS_SHOWN: Final = (-6.0, 300.0)


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure.

    Attributes:
        title: what it shows, in words.
        svg: the element.

    """

    title: str
    svg: str


def law_plots(one: StoredLaw, sheet: Sheet) -> tuple[Plot, ...]:
    """Return the plots of a law's counts; none without a draw."""
    if one.counts.sum() == 0 or one.probs.size < 2:
        return ()
    made: tuple[tuple[str, Callable[[StoredLaw, Axes], None]], ...] = (
        ("Summed frequency minus summed probability, from the top rank", _difference),
        ("Observed over expected, against expected probability", _ratios),
        ("Mass off by rank bucket", _buckets),
    )
    return tuple(
        Plot(title, sheet.draw(f"{one.record.id}-{place}", title, partial(draw, one)))
        for place, (title, draw) in enumerate(made)
    )


def evidence_plot(
    name: str, path: Sequence[tuple[int, float]], log_threshold: float | None, sheet: Sheet
) -> Plot | None:
    """Return the e-value against draws; None if the report has no path.

    Args:
        name: unique in the page.
        path: [draws, log e] of every look.
        log_threshold: where the clause fails by this case alone; None if unknown.
        sheet: to draw on.

    """
    if len(path) < 2:
        return None
    draws, log_e = np.array(path, dtype=float).T
    tens = np.clip(log_e / _TENS, *_TENS_SHOWN)
    needed = math.inf if log_threshold is None else log_threshold / _TENS

    def draw(axes: Axes) -> None:
        _zero(axes)
        if float(tens.max()) > needed / 4:
            axes.axhline(needed, color=COLOURS["off"], linewidth=0.9, linestyle="--")
        axes.plot(draws, tens, color=COLOURS["line"], linewidth=1.4)
        axes.set(xlabel="draws", ylabel="log10 of the e-value")

    title = "Evidence against draws"
    return Plot(title, sheet.draw(f"{name}-e", title, draw))


def _difference(one: StoredLaw, axes: Axes) -> None:
    curve = difference(one.probs, one.counts)
    axes.axhspan(-curve.band, curve.band, color=COLOURS["band"], linewidth=0)
    _zero(axes)
    axes.plot(curve.at, curve.off, color=COLOURS["line"], linewidth=1.2)
    axes.set(xlabel="summed probability from the top rank", ylabel="frequency − probability")


def _ratios(one: StoredLaw, axes: Axes) -> None:
    points = ratios(one.probs, one.counts)
    order = np.argsort(points.prob)
    order = order[points.prob[order] > 0]
    prob, ratio, low, high = (
        getattr(points, name)[order] for name in ("prob", "ratio", "low", "high")
    )
    seen, least, most = np.log2([np.maximum(row, _LEAST_RATIO) for row in (ratio, low, high)])
    # Tens on a plain axis: matplotlib's logarithmic one takes the time of two plots.
    tens = np.log10(prob)
    if prob[-1] > 1.05 * prob[0]:
        around = np.append(tens, tens[::-1]), np.append(most, least[::-1])
        axes.fill(*around, color=COLOURS["band"], linewidth=0)
    else:
        _bars(axes, tens, least, most, color=COLOURS["band"], linewidth=6)
        axes.set_xticks(tens[:1])
    _zero(axes)
    _points(axes, tens, seen, (ratio < low) | (ratio > high))
    axes.xaxis.set_major_formatter(lambda ten, _: f"{10**ten:.2g}")
    axes.set(xlabel="expected probability of an id", ylabel="log2 observed / expected")


def _buckets(one: StoredLaw, axes: Axes) -> None:
    bars = buckets(one.probs, one.counts)
    at = np.arange(bars.first.size, dtype=float)
    _zero(axes)
    _bars(axes, at, bars.low, bars.high, color=COLOURS["line"], linewidth=2)
    _points(axes, at, bars.off, (bars.low > 0) | (bars.high < 0))
    step = max(1, math.ceil(at.size / 6))
    axes.set_xticks(at[::step], [f"{rank:,}" for rank in bars.first[::step]])
    axes.set(xlabel="from rank", ylabel="observed − expected")


def _zero(axes: Axes) -> None:
    axes.axhline(0, color=COLOURS["soft"], linewidth=0.6)


def _points(axes: Axes, x: FloatArray, y: FloatArray, outside: np.ndarray) -> None:
    """Plot points, in a colour of their own where chance does not allow them."""
    for mask, colour in ((~outside, "line"), (outside, "off")):
        axes.plot(x[mask], y[mask], ".", color=COLOURS[colour], markersize=5)


def _bars(
    axes: Axes, x: FloatArray, low: FloatArray, high: FloatArray, *, color: str, linewidth: float
) -> None:
    """Plot upright bars as one line with gaps: matplotlib's vlines has a path for each."""
    ends = np.stack([low, high, np.full(x.size, np.nan)], axis=1)
    axes.plot(
        np.repeat(x, 3), ends.ravel(), color=color, linewidth=linewidth, solid_capstyle="butt"
    )

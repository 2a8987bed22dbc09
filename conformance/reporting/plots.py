"""The four plots of a law, from its stored counts and its stored evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.reporting.chart import (
    Chart,
    Path,
    Scale,
    Tick,
    across,
    band,
    decades,
    dots,
    line,
    linear,
    stems,
    upwards,
)
from refsampler.conformance.reporting.curves import buckets, difference, ratios
from refsampler.conformance.reporting.stored_law import StoredLaw

__all__ = ["evidence_plot", "law_plots"]

_TENS: Final = math.log(10)
_LEAST_RATIO: Final = 2.0**-6
_TENS_SHOWN: Final = (-6.0, 300.0)


def law_plots(one: StoredLaw) -> tuple[Chart, ...]:
    """Return the plots of a law's counts; none without a draw."""
    if one.counts.sum() == 0 or one.probs.size < 2:
        return ()
    return (_difference(one), _ratios(one), _buckets(one))


def evidence_plot(path: Sequence[tuple[int, float]], log_threshold: float | None) -> Chart | None:
    """Return the e-value against draws; None if the report has no path.

    Args:
        path: [draws, log e] of every look.
        log_threshold: where the clause fails by this case alone; None if unknown.

    """
    if len(path) < 2:
        return None
    draws, log_e = np.array(path, dtype=float).T
    tens = np.clip(log_e / _TENS, *_TENS_SHOWN)
    needed = math.inf if log_threshold is None else log_threshold / _TENS
    near = float(tens.max()) > needed / 4
    x, y = across(0, draws[-1]), upwards(np.append(tens, needed) if near else tens)
    limit = (_level("limit", y, needed),) if near else ()
    return _chart(
        "Evidence against draws",
        ("draws", "log10 of the e-value"),
        (x, y),
        (_level("rule", y), *limit, line("curve", x(draws), y(tens))),
    )


def _difference(one: StoredLaw) -> Chart:
    curve = difference(one.probs, one.counts)
    x, y = across(0, 1), upwards(np.append(curve.off, [-curve.band, curve.band]))
    ends = np.array([0.0, 1.0])
    inside = np.full(2, curve.band)
    return _chart(
        "Summed frequency minus summed probability, from the top rank",
        ("summed probability from the top rank", "frequency − probability"),
        (x, y),
        (
            band("surface", x(ends), y(-inside), y(inside)),
            _level("rule", y),
            line("curve", x(curve.at), y(curve.off)),
        ),
    )


def _ratios(one: StoredLaw) -> Chart:
    points = ratios(one.probs, one.counts)
    order = np.argsort(points.prob)
    order = order[points.prob[order] > 0]
    prob, ratio, low, high = (
        getattr(points, name)[order] for name in ("prob", "ratio", "low", "high")
    )
    seen, least, most = np.log2([np.maximum(row, _LEAST_RATIO) for row in (ratio, low, high)])
    y = upwards(np.concatenate([seen, least, most]))
    spread = prob[-1] > 1.05 * prob[0]
    x = across(prob[0] / 1.2, prob[-1] * 1.2, log=True)
    kind, drawn = ("surface", band) if spread else ("stems thick", stems)
    allowed = drawn(kind, x(prob), y(least), y(most))
    return _chart(
        "Observed over expected, against expected probability",
        ("expected probability of an id", "log2 observed / expected"),
        (x, y),
        (allowed, _level("rule", y), *_dots(x(prob), y(seen), (ratio < low) | (ratio > high))),
        x_ticks=None if spread else (Tick(float(x(prob[:1])[0]), f"{prob[0]:.3g}"),),
    )


def _buckets(one: StoredLaw) -> Chart:
    bars = buckets(one.probs, one.counts)
    at = np.arange(bars.first.size, dtype=float)
    x = across(-0.5, at.size - 0.5)
    y = upwards(np.concatenate([bars.off, bars.low, bars.high]))
    step = max(1, math.ceil(at.size / 6))
    ticks = tuple(
        Tick(float(place), f"{rank:,}")
        for place, rank in zip(x(at[::step]), bars.first[::step], strict=True)
    )
    outside = (bars.low > 0) | (bars.high < 0)
    return _chart(
        "Mass off by rank bucket",
        ("from rank", "observed − expected"),
        (x, y),
        (
            _level("rule", y),
            stems("stems", x(at), y(bars.low), y(bars.high)),
            *_dots(x(at), y(bars.off), outside),
        ),
        x_ticks=ticks,
    )


def _dots(x: FloatArray, y: FloatArray, outside: np.ndarray) -> tuple[Path, ...]:
    """Return the points, those outside of what chance allows by themselves."""
    both = (("dots", ~outside), ("dots off", outside))
    return tuple(dots(kind, x[mask], y[mask]) for kind, mask in both if mask.any())


def _level(kind: str, y: Scale, value: float = 0.0) -> Path:
    """Return a level line through the whole box."""
    ends = across(0, 1)(np.array([0.0, 1.0]))
    return line(kind, ends, y(np.full(2, value)))


def _chart(
    title: str,
    labels: tuple[str, str],
    scales: tuple[Scale, Scale],
    paths: tuple[Path, ...],
    x_ticks: tuple[Tick, ...] | None = None,
) -> Chart:
    x, y = scales
    below, times = (
        (x_ticks, "") if x_ticks is not None else (decades(x), "") if x.log else linear(x)
    )
    left, high = linear(y)
    return Chart(title, labels[0] + times, labels[1] + high, below, left, paths)

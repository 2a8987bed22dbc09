"""Small charts as data: paths in a box of fixed size and ticks with plain labels; a template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray

__all__ = [
    "Chart",
    "Path",
    "Scale",
    "Tick",
    "across",
    "band",
    "decades",
    "dots",
    "line",
    "linear",
    "stems",
    "upwards",
]

_WIDTH: Final = 260
_HEIGHT: Final = 176
_LEFT: Final = 46
_RIGHT: Final = 252
_TOP: Final = 10
_BOTTOM: Final = 140

_MOST_TICKS: Final = 5
_PLAIN: Final = range(-2, 4)
"""Powers of ten of an axis's largest number that its labels spell out."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, in units of the box, and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Path:
    """One shape: its class in the style sheet, and the path of SVG."""

    kind: str
    d: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: what it shows, in words.
        x_label: below.
        y_label: at the left.
        x_ticks: below.
        y_ticks: at the left.
        paths: drawn in this order.

    """

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    paths: tuple[Path, ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _RIGHT
    top: int = _TOP
    bottom: int = _BOTTOM


@dataclass(frozen=True, slots=True)
class Scale:
    """From numbers to places in the box: linear, or in the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return the places of values [points]."""
        low, high = (math.log(one) if self.log else one for one in (self.low, self.high))
        shown = np.log(values) if self.log else np.asarray(values, dtype=float)
        placed: FloatArray = self.start + (shown - low) / (high - low) * (self.end - self.start)
        return placed


def across(low: float, high: float, *, log: bool = False) -> Scale:
    """Return the horizontal scale of a range."""
    return Scale(low, high, _LEFT, _RIGHT, log)


def upwards(values: FloatArray) -> Scale:
    """Return a vertical scale that holds all values and 0, with room at both ends."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = 0.08 * (high - low) or 1.0
    return Scale(low - room, high + room, _BOTTOM, _TOP)


def linear(scale: Scale) -> tuple[tuple[Tick, ...], str]:
    """Return ticks at round numbers, and the power of ten they are multiplied by, as " × 1e-4"."""
    step = _step((scale.high - scale.low) / _MOST_TICKS)
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    numbers = np.arange(first, last + 1, dtype=np.float64) * step
    power = math.floor(math.log10(max(np.abs(numbers).max(), step)) + 1e-9)
    unit = 1.0 if power in _PLAIN else 10.0**power
    places = scale(numbers)
    ticks = tuple(
        Tick(float(at), f"{round(float(number / unit), 6) + 0.0:g}")
        for at, number in zip(places, numbers, strict=True)
    )
    return ticks, "" if unit == 1 else f" × 1e{power}"


def _step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is no less."""
    ten = 10.0 ** math.floor(math.log10(least))
    return next(times * ten for times in (1, 2, 5, 10) if times * ten >= least * (1 - 1e-9))


def decades(scale: Scale) -> tuple[Tick, ...]:
    """Return ticks at powers of ten of a logarithmic scale, or its ends if it holds none."""
    low, high = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    if high <= low:
        ends = np.array([scale.low, scale.high])
        return tuple(
            Tick(float(at), f"{number:.2g}") for at, number in zip(scale(ends), ends, strict=True)
        )
    powers = range(low, high + 1, math.ceil((high - low + 1) / _MOST_TICKS))
    places = scale(np.array([10.0**power for power in powers]))
    return tuple(Tick(float(at), f"1e{power}") for at, power in zip(places, powers, strict=True))


def line(kind: str, x: FloatArray, y: FloatArray) -> Path:
    """Return points [points] joined by a line."""
    return Path(kind, "M" + "L".join(_points(x, y)))


def band(kind: str, x: FloatArray, low: FloatArray, high: FloatArray) -> Path:
    """Return the surface between two lines [points]."""
    around = (np.append(x, x[::-1]), np.append(high, low[::-1]))
    return Path(kind, "M" + "L".join(_points(*around)) + "Z")


def dots(kind: str, x: FloatArray, y: FloatArray) -> Path:
    """Return a dot for each point [points]: lines of no length with round ends."""
    return Path(kind, "".join(f"M{point}h0" for point in _points(x, y)))


def stems(kind: str, x: FloatArray, low: FloatArray, high: FloatArray) -> Path:
    """Return an upright bar at each of x [points]."""
    ends = zip(_points(x, low), high, strict=True)
    return Path(kind, "".join(f"M{point}V{top:.1f}" for point, top in ends))


def _points(x: FloatArray, y: FloatArray) -> Sequence[str]:
    return [f"{one:.1f} {other:.1f}" for one, other in zip(x, y, strict=True)]

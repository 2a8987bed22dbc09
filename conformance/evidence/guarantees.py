"""What a planned number of draws is sure to see, computed before sampling.

Three kinds of bias, each with three questions (how many draws are needed, how small a bias do these
draws show, and an assertion for a plan):

* *directional*: the law is a declared alternative.  P(sum of log e < L after N draws) <=
  exp(s L) E_q[e^-s]^N for every s > 0 (Chernoff), hence N >= (b + s L) / -ln E_q[e^-s], b = ln(1/beta);
* *total variation*: the law is any at a distance of at least eps (`l1`);
* *support*: ids outside the support are drawn with probability m: N >= b / m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.l1 import null_spread
from refsampler.conformance.evidence.tolerance import clipped_log_ratio

__all__ = [
    "BETA",
    "Direction",
    "PowerError",
    "assert_directional",
    "assert_support",
    "assert_tv",
    "directional_power",
    "draws_needed_directional",
    "draws_needed_support",
    "draws_needed_tv",
    "smallest_detectable_directional",
    "smallest_detectable_support",
    "smallest_detectable_tv",
]

BETA: Final = 1e-6
"""Probability of missing a bias that the plan lists."""

_S_RANGE: Final = (-9.0, 1.5)  # of ln s: from far below any optimum to beyond s = 1

_FAR: Final = 1e300


class PowerError(ValueError):
    """The planned draws would not show the bias that the plan lists."""


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """A true law and the bet that is to find it.

    Attributes:
        law: [cells] what the backend draws from.
        log_e: [cells] log e of one draw.

    """

    law: FloatArray
    log_e: FloatArray

    def exponent(self, s: float) -> float:
        """Return ln E_law[e^-s], convex in s."""
        return float(self.exponents(np.array([s]))[0])

    def exponents(self, s: FloatArray) -> FloatArray:
        """Return ln E_law[e^-s] of every s."""
        live = self.law > 0
        shift = -np.outer(s, self.log_e[live])
        top = shift.max(axis=1)
        means = np.exp(shift - top[:, None]) @ self.law[live]
        found: FloatArray = top + np.log(means)
        return found


# ---- directional


def draws_needed_directional(
    direction: Direction, log_threshold: float, beta: float = BETA
) -> float:
    """Return N after which log e >= log_threshold but for probability beta; inf if never."""

    def needed(log_s: FloatArray) -> FloatArray:
        s = np.exp(log_s)
        rate = -direction.exponents(s)
        with np.errstate(divide="ignore"):
            found: FloatArray = (-math.log(beta) + s * log_threshold) / np.maximum(rate, 0.0)
        return found

    # The ratio of a line to a concave function has one minimum where the rate is positive.
    grid = np.linspace(*_S_RANGE, 43)
    values = needed(grid)
    at = int(np.argmin(values))
    if math.isinf(values[at]):
        return math.inf
    near = (float(grid[max(at - 1, 0)]), float(grid[min(at + 1, grid.size - 1)]))
    # where the rate is not positive the parabola of the search must stay finite
    best = minimize_scalar(
        lambda log_s: math.log(min(float(needed(np.array([log_s]))[0]), _FAR)),
        bounds=near,
        method="bounded",
    )
    return math.ceil(min(float(values[at]), math.exp(float(best.fun))))


def directional_power(direction: Direction, draws: int, log_threshold: float) -> float:
    """Return a lower bound on P(log e >= log_threshold after the draws)."""

    def log_miss(log_s: float) -> float:
        s = math.exp(log_s)
        return s * log_threshold + draws * direction.exponent(s)

    best = minimize_scalar(log_miss, bounds=_S_RANGE, method="bounded", options={"xatol": 1e-3})
    return max(0.0, -math.expm1(float(best.fun)))


def smallest_detectable_directional(
    probs: FloatArray,
    delta: float,
    family: Callable[[float], FloatArray],
    largest: float,
    draws: int,
    log_threshold: float,
    beta: float = BETA,
) -> float:
    """Return the smallest magnitude in (0, largest] whose own bet shows it; inf if none does.

    Args:
        probs: [cells] exact law.
        delta: radius of the null.
        family: magnitude -> law [cells], equal to probs at 0 and further away as it grows.
        largest: magnitude to search up to.
        draws: N.
        log_threshold: that the bet must reach.
        beta: probability of missing it.

    """

    def excess(log_size: float) -> float:
        law = family(math.exp(log_size))
        bet = Direction(law, clipped_log_ratio(probs, law, delta))
        needed = draws_needed_directional(bet, log_threshold, beta)
        return math.log(min(needed, 1e300) / draws)

    if excess(math.log(largest)) > 0:
        return math.inf
    low = math.log(largest * 1e-9)
    return math.exp(float(brentq(excess, low, math.log(largest), xtol=1e-4)))


def assert_directional(
    direction: Direction, draws: int, log_threshold: float, beta: float = BETA
) -> None:
    """Raise PowerError unless the draws show the direction."""
    _require("directional bias", draws, draws_needed_directional(direction, log_threshold, beta))


# ---- total variation


def draws_needed_tv(
    probs: FloatArray, eps: float, alpha: float, beta: float = BETA, delta: float = 0.0
) -> float:
    """Return N after which every law with TV >= eps fails but for beta; inf if eps <= delta."""
    if eps <= delta:
        return math.inf
    return math.ceil((_tv_noise(probs, alpha, beta, delta) / (eps - delta)) ** 2)


def smallest_detectable_tv(
    probs: FloatArray, draws: int, alpha: float, beta: float = BETA, delta: float = 0.0
) -> float:
    """Return the smallest TV that the draws are sure to show."""
    return delta + _tv_noise(probs, alpha, beta, delta) / math.sqrt(draws)


def assert_tv(
    probs: FloatArray,
    eps: float,
    draws: int,
    alpha: float,
    beta: float = BETA,
    delta: float = 0.0,
) -> None:
    """Raise PowerError unless the draws show every law at distance eps."""
    _require(f"a TV of {eps:.3g}", draws, draws_needed_tv(probs, eps, alpha, beta, delta))


def _tv_noise(probs: FloatArray, alpha: float, beta: float, delta: float) -> float:
    chance = math.sqrt(-math.log(alpha) / 2) + math.sqrt(-math.log(beta) / 2)
    return null_spread(probs, delta) + chance


# ---- support


def draws_needed_support(mass: float, beta: float = BETA) -> float:
    """Return N after which an id outside the support has been seen but for beta."""
    return math.ceil(-math.log(beta) / mass)


def smallest_detectable_support(draws: int, beta: float = BETA) -> float:
    """Return the smallest mass outside the support that the draws are sure to show."""
    return -math.log(beta) / draws


def assert_support(mass: float, draws: int, beta: float = BETA) -> None:
    """Raise PowerError unless the draws show a mass outside the support."""
    _require(f"a mass of {mass:.3g} outside the support", draws, draws_needed_support(mass, beta))


def _require(bias: str, draws: int, needed: float) -> None:
    if draws < needed:
        raise PowerError(f"{draws} draws are refused: {bias} needs {needed:.4g}")

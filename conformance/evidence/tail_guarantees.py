"""What a planned number of draws is sure to see of a wrong tail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refsampler.conformance.evidence.guarantees import (
    BETA,
    Direction,
    PowerError,
    draws_needed_directional,
)
from refsampler.conformance.evidence.tail import BAND, FACTORS, log_bets

__all__ = ["Detectable", "assert_tail", "draws_needed_tail", "smallest_detectable_tail"]


@dataclass(frozen=True, slots=True)
class Detectable:
    """Factors on the tail's mass that are sure to be seen; None where none is.

    Attributes:
        low: every factor up to it.
        high: every factor from it on.

    """

    low: float | None
    high: float | None


def draws_needed_tail(
    mass: float, factor: float, log_threshold: float, beta: float = BETA, band: float = BAND
) -> float:
    """Return N after which a mass off by the factor is seen but for beta; inf inside the band.

    Args:
        mass: exact mass of the tail: ids times grade for a `sea`.
        factor: true mass over exact mass.
        log_threshold: that the mixture must reach.
        beta: probability of missing it.
        band: relative half-width of the null.

    """
    true = factor * mass
    if not 0 <= true < 1 or abs(factor - 1) <= band:
        return math.inf
    hit, miss = log_bets(mass, band)
    law = np.array([true, 1 - true])
    bets = (Direction(law, np.array(pair)) for pair in zip(hit, miss, strict=True))
    needed = log_threshold + math.log(len(FACTORS))
    return min(draws_needed_directional(bet, needed, beta) for bet in bets)


def smallest_detectable_tail(
    mass: float, draws: int, log_threshold: float, beta: float = BETA, band: float = BAND
) -> Detectable:
    """Return the factors nearest 1 that the draws are sure to show."""

    def seen(factor: float) -> bool:
        return draws_needed_tail(mass, factor, log_threshold, beta, band) <= draws

    largest = min(0.999 / mass, 1e6)
    return Detectable(
        low=_nearest(seen, 0.0, 1 - band) if seen(0.0) else None,
        high=_nearest(seen, largest, 1 + band) if seen(largest) else None,
    )


def _nearest(seen: Callable[[float], bool], sure: float, edge: float) -> float:
    """Return the factor next to the edge that is still seen: further away is easier."""
    near = edge
    while abs(sure - near) > max(1e-3 * max(sure, near), 1e-6):
        middle = (sure + near) / 2 if min(sure, near) < 0.1 else math.sqrt(sure * near)
        sure, near = (middle, near) if seen(middle) else (sure, middle)
    return sure


def assert_tail(
    mass: float,
    factor: float,
    draws: int,
    log_threshold: float,
    beta: float = BETA,
    band: float = BAND,
) -> None:
    """Raise PowerError unless the draws show a mass off by the factor."""
    needed = draws_needed_tail(mass, factor, log_threshold, beta, band)
    if draws < needed:
        msg = f"{draws} draws are refused: a tail of mass {mass:.3g} off by x{factor:g} needs "
        raise PowerError(msg + f"{needed:.4g}")

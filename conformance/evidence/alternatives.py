"""The declared alternatives: wrong laws made from the right one, which the e-process bets on.

Each maps the exact law of a row on single ids to the law of a sampler with one fault.  A bet on a
law that no fault has costs ln(1/weight) and nothing else; a fault between two magnitudes is found
with a few per cent more draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.cells import RowLaw

__all__ = [
    "BANK",
    "Alternative",
    "Bet",
    "Fault",
    "Place",
    "Weighted",
    "bfloat16_probs",
    "dropped",
    "favoured",
    "greedy_mixture",
    "id_tilt",
    "log_rank_tilt",
    "narrow_cumsum",
    "noise_floor",
    "parity_tilt",
    "temperature",
    "uniform_grid",
    "uniform_mixture",
    "zero_noise",
]

Fault = Callable[[RowLaw], FloatArray]
"""Law of a row -> the faulty law [live], non-negative, with positive sum."""


class Weighted(Protocol):
    """A bet that cases share, as a pool sees it."""

    @property
    def name(self) -> str:
        """What is wrong, in words; unique in a bank."""

    @property
    def weight(self) -> float:
        """Prior weight; the weights of a bank sum to at most 1."""


@dataclass(frozen=True, slots=True)
class Bet:
    """A shared bet that is no law on single ids."""

    name: str
    weight: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """One declared fault.

    Attributes:
        name: in words, with the magnitude; unique in a bank.
        magnitude: relative size of the fault, signed where it has a direction.
        weight: prior weight; the weights of a bank sum to at most 1.
        fault: the faulty law.

    """

    name: str
    magnitude: float
    weight: float
    fault: Fault


def temperature(row: RowLaw, change: float) -> FloatArray:
    """Temperature off by a relative change."""
    log_q = np.log(row.probs) / (1 + change)
    law: FloatArray = np.exp(log_q - log_q.max())
    return law


def uniform_mixture(row: RowLaw, rate: float) -> FloatArray:
    """A share of draws takes any live id."""
    return (1 - rate) * row.probs + rate / row.probs.size


def greedy_mixture(row: RowLaw, rate: float) -> FloatArray:
    """A share of draws takes the most probable id."""
    law = (1 - rate) * row.probs
    law[np.argmax(row.probs)] += rate
    return law


def bfloat16_probs(row: RowLaw) -> FloatArray:
    """Probabilities rounded to bfloat16, to nearest even."""
    bits = row.probs.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + odd)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def uniform_grid(row: RowLaw, bits: int) -> FloatArray:
    """Inverse CDF in id order with a uniform on multiples of 2^-bits."""
    steps = 2.0**bits
    cdf = np.concatenate([[0.0], np.cumsum(row.probs)])
    cdf[-1] = 1.0
    # Rounded first: a product that float64 puts just above a step reaches no new step.
    law: FloatArray = np.diff(np.ceil(np.round(cdf * steps, 6)))
    return law


def narrow_cumsum(row: RowLaw, dtype: npt.DTypeLike) -> FloatArray:
    """Inverse CDF on a cumulative sum kept in a narrow float, added one id at a time."""
    sums = np.cumsum(row.probs.astype(dtype), dtype=dtype).astype(np.float64)
    law: FloatArray = np.diff(sums, prepend=0.0)
    return law if law.sum() > 0 else row.probs


def zero_noise(row: RowLaw, bits: int) -> FloatArray:
    """Exponential noise of `bits` bits that can be 0: that id wins whatever its probability."""
    return uniform_mixture(row, min(row.probs.size * 2.0**-bits, 0.5))


def noise_floor(row: RowLaw, bits: int) -> FloatArray:
    """Exponential noise that is never below 2^-bits: rare ids starve."""
    law: FloatArray = row.probs * np.exp(-(2.0**-bits) / row.probs)
    return law


def id_tilt(row: RowLaw, slope: float) -> FloatArray:
    """A linear preference for low ids (or, negative, high ids)."""
    height = row.ids / max(row.vocab - 1, 1)
    law: FloatArray = row.probs * (1 + slope * (1 - 2 * height))
    return law


def log_rank_tilt(row: RowLaw, slope: float) -> FloatArray:
    """A preference for probable ids that is linear in the logarithm of the rank."""
    position = np.empty(row.probs.size)
    position[_by_rank(row)] = np.log1p(np.arange(row.probs.size))
    position /= max(position.max(), 1.0)
    return row.probs * (1 + slope * (1 - 2 * position))


def parity_tilt(row: RowLaw, slope: float) -> FloatArray:
    """A preference for even ids."""
    law: FloatArray = row.probs * (1 + slope * (1 - 2.0 * (row.ids % 2)))
    return law


Place = Literal["first id", "last id", "last rank", "first rank"]


def dropped(row: RowLaw, place: Place) -> FloatArray:
    """One id is never drawn."""
    return row.probs if row.probs.size == 1 else _scaled(row, place, 0.0)


def favoured(row: RowLaw, place: Place, factor: float) -> FloatArray:
    """One id is drawn more often than it should by a factor."""
    return _scaled(row, place, factor)


def _scaled(row: RowLaw, place: Place, factor: float) -> FloatArray:
    if place == "first id":
        at = 0
    elif place == "last id":
        at = row.probs.size - 1
    else:
        at = int(_by_rank(row)[0 if place == "first rank" else -1])
    law = row.probs.copy()
    law[at] *= factor
    return law


def _by_rank(row: RowLaw) -> IntArray:
    """Return positions from most to least probable; of equal ones the low id comes first."""
    return np.argsort(-row.probs, kind="stable")


_WEIGHT: Final = 1 / 40


def _signed(
    words: str, fault: Callable[[RowLaw, float], FloatArray], sizes: tuple[float, ...]
) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(
            f"{words} {size:+.2g} %", size / 100, _WEIGHT, partial(_call, fault, size / 100)
        )
        for size in sizes
    )


def _call(fault: Callable[[RowLaw, float], FloatArray], size: float, row: RowLaw) -> FloatArray:
    return fault(row, size)


def _one(words: str, magnitude: float, fault: Fault) -> Alternative:
    return Alternative(words, magnitude, _WEIGHT, fault)


BANK: Final[tuple[Alternative, ...]] = (
    *_signed("temperature", temperature, (-20, -5, -1, -0.1, 0.1, 1, 5, 25)),
    *_signed("uniform mixture", uniform_mixture, (0.01, 0.1, 1)),
    *_signed("greedy mixture", greedy_mixture, (0.1, 1)),
    *_signed("low-id tilt", id_tilt, (-5, -1, 1, 5)),
    *_signed("log-rank tilt", log_rank_tilt, (-5, -1, 1, 5)),
    *_signed("even-id tilt", parity_tilt, (-1, 1)),
    _one("bfloat16 probabilities", 2.0**-9, bfloat16_probs),
    _one("24-bit uniform", 2.0**-24, partial(uniform_grid, bits=24)),
    _one("16-bit uniform", 2.0**-16, partial(uniform_grid, bits=16)),
    _one("float32 running sum", 2.0**-24, partial(narrow_cumsum, dtype=np.float32)),
    _one("float16 running sum", 2.0**-11, partial(narrow_cumsum, dtype=np.float16)),
    _one("noise that can be 0 (24 bits)", 2.0**-24, partial(zero_noise, bits=24)),
    _one("noise floor 2^-24", 2.0**-24, partial(noise_floor, bits=24)),
    _one("least probable kept id dropped", -1.0, partial(dropped, place="last rank")),
    _one("last kept id dropped", -1.0, partial(dropped, place="last id")),
    _one("first kept id dropped", -1.0, partial(dropped, place="first id")),
    _one("first kept id +5 %", 0.05, partial(favoured, place="first id", factor=1.05)),
    _one("last kept id +5 %", 0.05, partial(favoured, place="last id", factor=1.05)),
    _one("most probable id +1 %", 0.01, partial(favoured, place="first rank", factor=1.01)),
    _one("most probable id -1 %", -0.01, partial(favoured, place="first rank", factor=0.99)),
)
"""What every law case bets on; the fault bank adds to it."""

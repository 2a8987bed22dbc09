"""Which draws are compared for independence: disjoint pairs at declared lags.

Rows of one call, rows of two calls, or two streams that are given as two calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsampler.conformance.evidence.arrays import IntArray

__all__ = ["Lag", "call_lags", "row_lags", "stream_lags"]


@dataclass(frozen=True, slots=True)
class Lag:
    """Which draws are paired.

    Attributes:
        calls: 0 within a call, else the distance between the calls.
        rows: distance between the rows, may be negative between calls.

    """

    calls: int
    rows: int

    def __post_init__(self) -> None:
        """Refuse a draw paired with itself or with the past."""
        if self.calls < 0 or (self.calls == 0 and self.rows < 1):
            msg = f"calls = {self.calls}, rows = {self.rows} is refused: allowed are later draws"
            raise ValueError(msg)

    @property
    def name(self) -> str:
        """The pairing in words."""
        where = f"row {self.rows:+d}" if self.rows else "same row"
        return where if self.calls == 0 else f"{where}, call +{self.calls}"

    def within(self, draws: IntArray) -> tuple[IntArray, IntArray]:
        """Pair the draws [rows] of one call: blocks of `rows`, the first with the second, .."""
        first = np.arange(max(draws.size - self.rows, 0))
        first = first[(first // self.rows) % 2 == 0]
        return draws[first], draws[first + self.rows]

    def between(self, early: IntArray, late: IntArray) -> tuple[IntArray, IntArray]:
        """Pair the draws [rows] of two calls."""
        start, stop = max(-self.rows, 0), min(early.size, late.size - self.rows)
        if stop <= start:
            return early[:0], late[:0]
        return early[start:stop], late[start + self.rows : stop + self.rows]


def row_lags(rows: int, vocab: int) -> tuple[Lag, ...]:
    """Return lags within a call: small ones, powers of two, half the call, and 2^32/V.

    A 32-bit counter that runs over row x V repeats after 2^32/V rows.
    """
    powers = [2**power for power in range(3, 31)]
    wanted = {1, 2, 3, 4, *powers, rows // 2, 2**32 // vocab}
    return tuple(Lag(0, lag) for lag in sorted(wanted) if 0 < lag < rows)


def call_lags() -> tuple[Lag, ...]:
    """Return lags between calls: the next ones, and rows that moved by one."""
    return (Lag(1, 0), Lag(1, 1), Lag(1, -1), Lag(2, 0))


def stream_lags(furthest: int = 64) -> tuple[Lag, ...]:
    """Return lags between two streams that are given as two calls."""
    return tuple(Lag(1, lag) for lag in range(-furthest, furthest + 1))

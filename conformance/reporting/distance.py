"""Distances of two samplers from the exact law and from each other, with intervals of one look.

Cells are the ids of a law of few, else 16 buckets of equal mass by rank, and one more cell for ids
outside the law.  For N draws, k cells and L = ln(1/`CHANCE`):

* one draw moves a TV of frequencies by at most 1/N, so it leaves its mean by sqrt(L sum(1/N) / 2)
  with probability at most `CHANCE` (McDiarmid), the sum being over both samples if there are two;
* its mean is at least the true TV (Jensen), and at most that plus 1/2 sqrt((k - 1) / N) a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.evidence.partitions import Partition
from refsampler.conformance.sequential import coarse

__all__ = ["CHANCE", "Buckets", "Interval", "between", "from_law"]

CHANCE: Final = 1e-6
"""Probability with which an end of an interval is wrong."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A total variation distance.

    Attributes:
        observed: of the frequencies, which is too high by noise.
        low: the true distance is at least that with probability 1 - `CHANCE`.
        high: it is at most that with probability 1 - `CHANCE`.
        detectable: a true distance of that size leaves low above 0 with probability 1 - `CHANCE`.

    """

    observed: float
    low: float
    high: float
    detectable: float


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """The cells at which distances are looked at.

    Attributes:
        probs: [cells] exact law; the last cell, ids outside the law, has none.
        of_id: [vocab] the cell of each id.

    """

    probs: FloatArray
    of_id: IntArray

    @classmethod
    def of(cls, law: LawCase) -> Buckets:
        """Return the cells of a law."""
        view = coarse(law)
        outside = view.probs.size
        cells = law.cells.cell_of_id
        inside = cells >= 0
        of_id = np.full(cells.size, outside, dtype=np.int64)
        of_id[inside] = _bucket(view.view, cells[inside])
        return cls(np.append(view.probs, 0.0), of_id)

    def fold(self, counts: IntArray) -> IntArray:
        """Return the counts [cells] of counts [vocab]."""
        return np.bincount(self.of_id, counts, self.probs.size).astype(np.int64)


def _bucket(view: Partition | None, cells: IntArray) -> IntArray:
    return cells if view is None else view.bucket_of_cell[cells]


def from_law(probs: FloatArray, counts: IntArray, chance: float = CHANCE) -> Interval:
    """Return the distance of frequencies of counts [cells], at least one draw, from a law [cells].

    Args:
        probs: of the law.
        counts: drawn.
        chance: with which an end may be wrong; less where several are looked at together.

    """
    frequencies = counts / counts.sum()
    return _interval(frequencies, probs, (int(counts.sum()),), chance)


def between(first: IntArray, second: IntArray, chance: float = CHANCE) -> Interval:
    """Return the distance of two samplers, from independent counts [cells] of at least one draw."""
    draws = (int(first.sum()), int(second.sum()))
    return _interval(first / draws[0], second / draws[1], draws, chance)


def _interval(one: FloatArray, other: FloatArray, draws: Sequence[int], chance: float) -> Interval:
    observed = 0.5 * float(np.abs(one - other).sum())
    swing = math.sqrt(-math.log(chance) * sum(1 / n for n in draws) / 2)
    noise = sum(0.5 * math.sqrt((one.size - 1) / n) for n in draws)
    low = max(observed - noise - swing, 0.0)
    return Interval(observed, low, min(observed + swing, 1.0), min(noise + 2 * swing, 1.0))

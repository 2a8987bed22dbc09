"""Pairs of laws, right and faulty, and the small float64 sampler they are computed with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray, FloatArray
from refsampler.conformance.evidence.cells import RowLaw

__all__ = [
    "TEMPERATURE",
    "VOCAB",
    "FaultCase",
    "LawPair",
    "keep",
    "law_of_fault",
    "llm_logits",
    "min_p",
    "most_probable",
    "nucleus",
    "prefix_length",
    "sea_law",
    "softmax",
]

VOCAB: Final = 128256
TEMPERATURE: Final = 0.8
"""Of the LLM-like rows."""


@dataclass(frozen=True, slots=True, eq=False)
class LawPair:
    """A right law and a faulty one, on the ids that either can give.

    Attributes:
        right: [ids].
        faulty: [ids].

    """

    right: FloatArray
    faulty: FloatArray

    @classmethod
    def of(cls, right: FloatArray, faulty: FloatArray) -> LawPair:
        """Normalise two laws [vocab] and drop what neither gives."""
        live = (right > 0) | (faulty > 0)
        p, q = right[live], faulty[live]
        return cls(p / p.sum(), q / q.sum())

    @property
    def outside(self) -> float:
        """Return the mass of ids that a right sampler never gives."""
        return float(self.faulty[self.right <= 0].sum())

    @property
    def divergence(self) -> float:
        """Return KL(faulty || right); inf if the fault leaves the support."""
        if self.outside > 0:
            return math.inf
        live = self.faulty > 0
        ratio = self.faulty[live] / self.right[live]
        return float(self.faulty[live] @ np.log(ratio))

    @property
    def total_variation(self) -> float:
        """Return TV(faulty, right)."""
        return 0.5 * float(np.abs(self.faulty - self.right).sum())


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault.

    Attributes:
        name: short.
        typical: on an LLM-like row.
        designed: on the row made for it; None without a design.
        design: that row in words.

    """

    name: str
    typical: LawPair
    designed: LawPair | None
    design: str


def llm_logits(seed: int, vocab: int = VOCAB) -> FloatArray:
    """Return logits [vocab] with a Zipf body, jitter, and ids in random order."""
    rng = np.random.default_rng(seed)
    body = 18.0 - 1.15 * np.log(np.arange(vocab) + 1.5) + 0.4 * rng.standard_normal(vocab)
    shuffled: FloatArray = body[rng.permutation(vocab)]
    return shuffled


def softmax(logits: FloatArray) -> FloatArray:
    """Return the law of logits."""
    weight = np.exp(logits - logits.max())
    law: FloatArray = weight / weight.sum()
    return law


def keep(law: FloatArray, kept: BoolArray) -> FloatArray:
    """Return the law on the kept ids, renormalised."""
    cut = np.where(kept, law, 0.0)
    kept_law: FloatArray = cut / cut.sum()
    return kept_law


def most_probable(law: FloatArray, count: int) -> BoolArray:
    """Return the `count` most probable ids."""
    kept = np.zeros(law.size, dtype=bool)
    kept[np.argsort(-law, kind="stable")[:count]] = True
    return kept


def prefix_length(law: FloatArray, top_p: float) -> int:
    """Return the length of the smallest descending prefix of mass >= top_p."""
    return int(np.searchsorted(np.cumsum(np.sort(law)[::-1]), top_p)) + 1


def nucleus(law: FloatArray, top_p: float, extra: int = 0) -> FloatArray:
    """Return what top-p leaves, with so many ids more."""
    return keep(law, most_probable(law, prefix_length(law, top_p) + extra))


def min_p(law: FloatArray, share: float) -> FloatArray:
    """Return what min-p leaves."""
    return keep(law, law >= share * law.max())


def law_of_fault(law: FloatArray, fault: Callable[[RowLaw], FloatArray]) -> FloatArray:
    """Return the faulty law [vocab] of an alternative of the bank, on the live ids."""
    live = np.flatnonzero(law > 0)
    faulty = np.zeros(law.size)
    faulty[live] = fault(RowLaw(live, law[live] / law[live].sum(), law.size))
    return faulty


def sea_law(ids: int, each: float) -> FloatArray:
    """Return one likely id at the front and a sea of unlikely ones."""
    return np.append(1 - (ids - 1) * each, np.full(ids - 1, each))

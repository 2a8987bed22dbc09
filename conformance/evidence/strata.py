"""Rows that a kernel may treat apart: first, last, odd, beyond a block, the last partial block.

A fault of one stratum is diluted over the whole batch.  Betting on a stratum alone costs the
logarithm of its weight; under the null its rows are as right as any.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray
from refsampler.conformance.evidence.law import CaseEvidence, Component, LawCase, LawProcess

__all__ = ["BLOCK", "STRATA", "StratifiedProcess", "row_masks"]

STRATA: Final = ("first row", "last row", "odd rows", "rows from 256 on", "last partial block")

BLOCK: Final = 128
"""Rows of a block."""

_STRATA_SHARE: Final = 0.25


def row_masks(rows: int) -> BoolArray:
    """Return which rows of a call belong to each of `STRATA`: [strata, rows]."""
    row = np.arange(rows)
    whole = rows // BLOCK * BLOCK
    return np.stack([row == 0, row == rows - 1, row % 2 == 1, row >= 256, row >= whole])


class StratifiedProcess:
    """The evidence of one law case, with the bank's bets repeated on every stratum.

    A quarter of the mixture is on the strata, the rest is the `LawProcess` of all rows.

    Args:
        case: the planned row, the same in every row of a call.

    Attributes:
        law: the evidence of all rows.
        log_strata: [alternatives, strata] log e.

    """

    def __init__(self, case: LawCase) -> None:
        self.law = LawProcess(case)
        self.log_strata: FloatArray = np.zeros((len(case.alternatives), len(STRATA)))
        weights = np.array([one.weight for one in case.alternatives])
        self._log_weights = np.log(weights / len(STRATA))[:, None]
        self._rest = max(1 - math.fsum(weights), 0.0)

    def update(self, draws: IntArray) -> None:
        """Take one call, ids [rows] in order; ids outside the vocabulary are not the law's."""
        cells, case = self.law.case.cells, self.law.case
        vocab = cells.cell_of_id.size
        inside = (draws >= 0) & (draws < vocab)
        self.law.update(np.bincount(draws[inside], minlength=vocab))
        cell = np.full(draws.size, -1)
        cell[inside] = cells.cell_of_id[draws[inside]]
        live = cell >= 0
        masks = row_masks(draws.size)[:, live].astype(np.float64)
        self.log_strata = self.log_strata + case.log_ratios[:, cell[live]] @ masks.T

    @property
    def log_e(self) -> float:
        """Return log e of the mixture."""
        return self.evidence().log_e

    def evidence(self) -> CaseEvidence:
        """Return what the case says now."""
        whole = self.law.evidence()
        weighted = self.log_strata + self._log_weights + math.log(_STRATA_SHARE)
        kept = math.log(1 - _STRATA_SHARE)
        constant = math.log(_STRATA_SHARE * self._rest) if self._rest > 0 else -math.inf
        parts = [whole.log_e + kept, constant, *weighted.reshape(-1).tolist()]
        j, s = np.unravel_index(int(weighted.argmax()), weighted.shape)
        name = f"{self.law.case.alternatives[int(j)].name}, {STRATA[int(s)]}"
        best = Component(name, float(self.log_strata[j, s]), float(weighted[j, s]))
        if whole.best.log_weighted + kept >= best.log_weighted:
            best = replace(whole.best, log_weighted=whole.best.log_weighted + kept)
        return replace(whole, log_e=float(np.logaddexp.reduce(parts)), best=best)

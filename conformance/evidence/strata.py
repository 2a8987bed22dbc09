"""Rows that a kernel may treat apart: first, last, odd, beyond a block, the last partial block.

A fault of one stratum is diluted over the whole batch.  Betting on a stratum alone costs the
logarithm of its weight; under the null its rows are as right as any.  Only batches of many laws do so
(`hetero`): the equal rows of a law come in calls of up to 32,768, of which a block or a single row is
too little to be seen, and all but the first block is nearly everything.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray

__all__ = ["BLOCK", "STRATA", "row_masks"]

STRATA: Final = ("first row", "last row", "odd rows", "rows from 256 on", "last partial block")

BLOCK: Final = 128
"""Rows of a block."""


def row_masks(rows: int) -> BoolArray:
    """Return which rows of a call belong to each of `STRATA`: [strata, rows]."""
    row = np.arange(rows)
    whole = rows // BLOCK * BLOCK
    return np.stack([row == 0, row == rows - 1, row % 2 == 1, row >= 256, row >= whole])

"""Logits recipes: the same bits on every machine, in a few words of JSON.

Every value is made by integer arithmetic and scaled by a power of two, so no libm, no generator
and no device can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt64
from torch import Tensor

from refsampler.conformance.recorded import RecordedRow

__all__ = ["LogitsRecipe", "RowRecipe", "Shape", "hashed"]

Shape = Literal["constant", "uniform", "bell", "zipf"]

_GRID = 1024


@dataclass(frozen=True, slots=True)
class RowRecipe:
    """One row: a background, then single ids on top of it.

    Attributes:
        shape: of the background, in units of `scale`: `constant` 0; `uniform` integers in
            [-1024, 1024] / 1024; `bell` the sum of four such; `zipf` minus log2 of a hidden rank,
            piecewise linear, on a grid of 1/1024, ids permuted.
        seed: of the background's integer hash.
        base: added to the background.
        scale: multiplies the background; powers of two keep every value dyadic.
        ids: ids that have values of their own.
        values: those values.
        recorded: a recorded row that takes the background's place.

    """

    shape: Shape = "constant"
    seed: int = 0
    base: float = 0.0
    scale: float = 1.0
    ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    recorded: RecordedRow | None = None

    def __post_init__(self) -> None:
        """Refuse ids without values."""
        if len(self.ids) != len(self.values):
            msg = f"values: {len(self.values)} are given, allowed is one for each of {len(self.ids)} ids"
            raise ValueError(msg)

    def build(self, vocab: int) -> Float[np.ndarray, " vocab"]:
        """Return the row as float64; `base` of -inf leaves only the named ids."""
        row = np.full(vocab, self.base)
        if self.recorded is not None:
            row = self.recorded.build(vocab)
        elif np.isfinite(self.base):
            row = row + self.scale * _background(self.shape, self.seed, vocab)
        row[list(self.ids)] = self.values
        return row


@dataclass(frozen=True, slots=True)
class LogitsRecipe:
    """The logits of a case.

    Attributes:
        vocab: V, at least 1.
        rows: one a request.

    """

    vocab: int
    rows: tuple[RowRecipe, ...]

    def build(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "num_tokens vocab"]:
        """Return the logits, rounded once from float64 to `dtype`."""
        if not self.rows:
            return torch.empty((0, self.vocab), dtype=dtype)
        # rows that are alike are often one object, which is built once
        distinct = {id(row): row for row in self.rows}
        place = {key: at for at, key in enumerate(distinct)}
        built = np.stack([row.build(self.vocab) for row in distinct.values()])
        rows = built[[place[id(row)] for row in self.rows]]
        return torch.from_numpy(rows).to(dtype)


def hashed(seed: int, count: int) -> UInt64[np.ndarray, " count"]:
    """Return `count` 64-bit hashes of (seed, position): the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        key = np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        z = key + golden * (np.arange(count, dtype=np.uint64) + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _background(shape: Shape, seed: int, vocab: int) -> Float[np.ndarray, " vocab"]:
    """Return the background in units of the scale."""
    if shape == "constant":
        return np.zeros(vocab)
    if shape == "zipf":
        ranks = _permutation(seed, vocab) + 1
        return -_log2_grid(ranks) / _GRID
    terms = 1 if shape == "uniform" else 4
    drawn = [hashed(seed * 4 + term, vocab) % np.uint64(2 * _GRID + 1) for term in range(terms)]
    units: Int64[np.ndarray, " vocab"] = np.sum(drawn, axis=0).astype(np.int64)
    return (units - terms * _GRID) / _GRID


def _permutation(seed: int, vocab: int) -> Int64[np.ndarray, " vocab"]:
    """Return a permutation of the ids: their order by hash."""
    return np.argsort(np.argsort(hashed(seed, vocab), kind="stable"), kind="stable")


def _log2_grid(rank: Int64[np.ndarray, " vocab"]) -> Int64[np.ndarray, " vocab"]:
    """Return log2(rank) in units of 1/1024, linear between powers of two; integers only."""
    exponent = np.zeros_like(rank)
    for power in range(1, int(rank.max()).bit_length()):
        exponent = exponent + (rank >> power > 0)
    fraction = ((rank - (np.int64(1) << exponent)) * _GRID) >> exponent
    level: Int64[np.ndarray, " vocab"] = exponent * _GRID + fraction
    return level

"""Coarse views of a row: where kernels cut and where wrong probabilities lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray, frozen
from refsampler.conformance.evidence.cells import Cells, masses, sums

__all__ = ["Partition", "partitions"]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Cells grouped into buckets.

    Attributes:
        name: what the buckets are.
        bucket_of_cell: [cells].
        probs: [buckets] exact mass, positive.
        ordered: whether unions of the first buckets mean something.

    """

    name: str
    bucket_of_cell: IntArray
    probs: FloatArray
    ordered: bool

    def describe(self, event: int) -> str:
        """Return a bucket, or (beyond the last one) the first buckets together, in words."""
        buckets = self.probs.size
        what = f"bucket {event}" if event < buckets else f"first {event - buckets + 2} buckets"
        return f"{self.name}: {what}"

    def fold(self, counts: IntArray) -> IntArray:
        """Return the counts [buckets] of counts [cells]."""
        return sums(self.bucket_of_cell, counts, self.probs.size)


def partitions(cells: Cells) -> tuple[Partition, ...]:
    """Return the views that have at least two buckets; each lump is a bucket of its own."""
    single = cells.probs.size - len(cells.labels)
    probs, ids, vocab = cells.probs[:single], cells.ids[:single], cells.live.vocab
    order = np.argsort(-probs, kind="stable")
    rank = np.empty(single, dtype=np.int64)
    rank[order] = np.arange(single)
    middle = np.empty(single)
    middle[order] = np.cumsum(probs[order]) - probs[order] / 2
    views = (
        ("rank, 16 equal masses", (middle * 16).astype(np.int64), True),
        ("rank, 128 equal masses", (middle * 128).astype(np.int64), True),
        ("octave of rank", np.log2(rank + 1.0).astype(np.int64), True),
        ("id, 16 blocks", ids * 16 // vocab, True),
        ("id, 256 blocks", ids * 256 // vocab, True),
        ("id mod 32", ids % 32, False),
        ("id mod 128", ids % 128, False),
        ("id // 1024", ids // 1024, True),
    )
    made = (_partition(name, raw, cells, ordered) for name, raw, ordered in views)
    return tuple(one for one in made if one.probs.size > 1)


def _partition(name: str, raw: IntArray, cells: Cells, ordered: bool) -> Partition:
    lumps = np.arange(len(cells.labels)) + (int(raw.max(initial=-1)) + 1)
    _, bucket = np.unique(np.concatenate([raw, lumps]), return_inverse=True)
    probs = masses(bucket.astype(np.int64), cells.probs, int(bucket.max()) + 1)
    return Partition(name, frozen(bucket.astype(np.int64)), frozen(probs), ordered)

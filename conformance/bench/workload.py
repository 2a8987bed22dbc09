"""Workloads: which rows are sampled with which parameters, and where in memory they lie."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.params import SamplingParams

__all__ = ["BATCHES", "MODES", "VOCABS", "Cache", "Cell", "Pool", "RowKind", "parameters"]

BATCHES: Final = (1, 32, 256)
VOCABS: Final = (32_000, 128_256, 262_144)
MODES: Final = ("k=50,p=.9", "k=50", "p=.9", "T")
"""Modes of the default run; all at temperature 0.8."""

_POOL_BYTES: Final = 160 * 2**20
"""More than the caches of the machines that were measured; see `Pool`."""
_FIELDS: Final = {"k": "top_k", "p": "top_p", "min_p": "min_p", "T": "temperature"}


class RowKind(StrEnum):
    """What the logits of a row look like."""

    PEAKED = "peaked"
    LLM = "llm"
    FLAT = "flat"
    EQUAL = "equal"


class Cache(StrEnum):
    """Where a row is when it is sampled.

    DRAM: windows rotate through more rows than any cache holds.  READ: read once just before, and
    never sampled before; the reading itself is taken off the time.
    """

    DRAM = "dram"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Attributes:
        batch: rows of a call.
        vocab: ids of a row.
        mode: as `parameters` reads it.
        rows: kind of rows.
        cache: where they are.

    """

    batch: int
    vocab: int
    mode: str
    rows: RowKind
    cache: Cache


def parameters(mode: str) -> SamplingParams:
    """Return the parameters of a mode: `T`, or some of k, p, min_p and T, as `k=50,p=.9`.

    Raises:
        ValueError: a name is unknown, or a value is out of range.

    """
    asked: dict[str, Any] = {"temperature": 0.8}
    for part in mode.split(",") if mode != "T" else []:
        name, _, value = part.partition("=")
        if name not in _FIELDS:
            names = ", ".join(_FIELDS)
            raise ValueError(f"mode = {mode!r} is refused: allowed are T, or {names} with values")
        asked[_FIELDS[name]] = int(value) if name == "k" else float(value)
    return SamplingParams(**asked)


class Pool:
    """Rows of one kind, handed out window by window, round and round.

    A window comes again after at least 160 MB of others, or, if it is larger than that, after
    itself: its first rows have then left any cache that is smaller.

    Args:
        kind: of the rows.
        batch: rows of a window.
        vocab: ids of a row.
        device: where the rows lie.

    """

    def __init__(self, kind: RowKind, batch: int, vocab: int, device: str) -> None:
        windows = -(-_POOL_BYTES // (4 * vocab * batch))
        self._rows = _rows(kind, windows * batch, vocab).to(device)
        self._batch, self._next = batch, 0

    def window(self) -> Float32[Tensor, "B V"]:
        """Return the next rows."""
        start = self._next
        self._next = (start + self._batch) % len(self._rows)
        return self._rows[start : start + self._batch]


def _rows(kind: RowKind, count: int, vocab: int) -> Float32[Tensor, "B V"]:
    """Return rows of a kind: N(0, 16), Zipf with noise, N(0, 1e-4), or all alike."""
    generator = torch.Generator().manual_seed(vocab)
    if kind is RowKind.EQUAL:
        return torch.zeros(count, vocab)
    noise = torch.randn(count, vocab, generator=generator)
    if kind is RowKind.PEAKED:
        return noise.mul_(4)
    if kind is RowKind.FLAT:
        return noise.mul_(0.01)
    ranks = torch.randperm(vocab, generator=generator)
    for row in noise.mul_(0.5):
        turn = int(torch.randint(vocab, (), generator=generator))
        row.sub_(ranks.roll(turn).add(2.7).log().mul(1.5))
    return noise

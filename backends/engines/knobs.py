"""Knobs: the parameters of one row as plain numbers, for engines that have them by request."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from refsampler.backends.protocol import Rows

__all__ = ["Knobs", "alike", "each_row"]


class Knobs(NamedTuple):
    """What a level-1 kernel with all folds is asked of a row; top_k = V is off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @property
    def greedy(self) -> bool:
        """Whether the row is greedy: the pipeline marks it so."""
        return self.temperature == 0


def each_row(rows: Rows, count: int, vocab: int) -> list[Knobs]:
    """Return the parameters of each of `count` rows, filled in where the whole batch has none."""

    def values(tensor: Tensor | None, off: float) -> list[Any]:
        return [off] * count if tensor is None else tensor.tolist()

    columns = (
        values(rows.temperature, 1.0),
        values(rows.top_k, vocab),
        values(rows.top_p, 1.0),
        values(rows.min_p, 0.0),
    )
    return [Knobs(*one) for one in zip(*columns, strict=True)]


def alike(rows: Rows, count: int, vocab: int) -> dict[Knobs, list[int]]:
    """Return the places of rows that have the same parameters."""
    members: dict[Knobs, list[int]] = {}
    for place, knobs in enumerate(each_row(rows, count, vocab)):
        members.setdefault(knobs, []).append(place)
    return members

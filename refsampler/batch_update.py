"""BatchUpdate: how the rows of a persistent batch changed since the last step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = ["AddedRequest", "BatchUpdate", "Direction", "MovedRequest", "fresh_batch"]


class Direction(Enum):
    """How a move acts on its two rows."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


class AddedRequest(NamedTuple):
    """A request that took `row`; its `output` is live and grows while it runs."""

    row: int
    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]


class MovedRequest(NamedTuple):
    """A request that went from row `source` to row `target`; under SWAP also the other way."""

    source: int
    target: int
    direction: Direction


@dataclass(frozen=True, slots=True)
class BatchUpdate:
    """What processors consume, in this order: removed, added, moved (clause `batch.state`).

    Attributes:
        batch_size: rows after the update.
        removed: row indices, descending.
        added: requests and the rows they took; a row may be one that was just freed.
        moved: moves and swaps, in the order in which they happened.

    """

    batch_size: int
    removed: tuple[int, ...] = ()
    added: tuple[AddedRequest, ...] = ()
    moved: tuple[MovedRequest, ...] = ()


def fresh_batch(requests: Sequence[Request]) -> BatchUpdate:
    """Return the update that builds a batch of `requests` from nothing."""
    added = tuple(
        AddedRequest(row, request.params, request.prompt, request.output)
        for row, request in enumerate(requests)
    )
    return BatchUpdate(batch_size=len(requests), added=added)

"""What one sampler did with one batch: the same fields for the reference and for vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["MODES", "Gathered", "LogprobsMode", "Side", "fresh_copy", "seeded_globally"]

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]

MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "raw_logits",
    "processed_logprobs",
    "processed_logits",
)


class Gathered(NamedTuple):
    """The logprobs that the rows asked for: ids and values [B, N + 1], ranks [B]."""

    ids: Tensor
    values: Tensor
    ranks: Tensor


@dataclass(frozen=True, slots=True)
class Side:
    """One sampler's results.

    Attributes:
        ids: int32 [B, 1], drawn by the race in float32.
        ids_float64: int32 [B, 1], drawn by the race in float64.
        greedy_ids: int32 [B, 1], had every row been greedy.
        gathered: logprobs in the asked mode, None if no row asked.
        whole: float32 [B, V], the values of the asked mode before gathering.
        before_filters: float32 [B, V], the logits after step 6.
        processed: float32 [B, V], what the ids were drawn from.
        mutated: whether the caller's logits were overwritten.

    """

    ids: Tensor
    ids_float64: Tensor
    greedy_ids: Tensor
    gathered: Gathered | None
    whole: Tensor
    before_filters: Tensor
    processed: Tensor
    mutated: bool


def fresh_copy(logits: Tensor) -> Tensor:
    """Return a copy with the same strides; `clone` would close the gaps of a strided tensor."""
    copy = torch.empty_strided(logits.size(), logits.stride(), dtype=logits.dtype)
    return copy.copy_(logits)


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Fix the default generator, from which unseeded rows are drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield

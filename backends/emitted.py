"""What a step emits, seen position by position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

__all__ = ["all_of", "emitted_ids"]


def emitted_ids(
    tokens: Int[Tensor, "requests width"], sizes: Sequence[int]
) -> Int64[Tensor, " positions"]:
    """Return the id at each position of requests with so many drafts, -1 where there is none."""
    column = torch.arange(tokens.shape[1], device=tokens.device)
    places = column <= torch.tensor(sizes, device=tokens.device)[:, None]
    return tokens[places].long()


def all_of(flags: Bool[Tensor, " positions"], sizes: Sequence[int]) -> Bool[Tensor, " requests"]:
    """Say of each request whether all of its positions are."""
    by_request = torch.split(flags, [size + 1 for size in sizes])
    return torch.stack([one.all() for one in by_request]) if sizes else flags

"""Tails: the likely ids right, the very unlikely ones missing, too frequent or too few.

A parametric bank, not reports.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.rowwise import RowwiseKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.TAILS)

_BANK = "parametric bank"


@FAULTS.fault("tail-dropped", _BANK, "", "draw.tail", bank=("tail is missing",))
class _Dropped(RowwiseKernel):
    """Ids of probability below 2e-6 are never drawn."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        return torch.where(probs < 2e-6, 0.0, probs)


@FAULTS.fault("tail-tripled", _BANK, "", "draw.tail", bank=("tail mass x2", "tail mass x4"))
class _Tripled(RowwiseKernel):
    """Ids of probability below 2e-6 are drawn three times too often."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        return torch.where(probs < 2e-6, 3 * probs, probs)


@FAULTS.fault("tail-coarse", _BANK, "", "draw.resolution")
class _Coarse(RowwiseKernel):
    """The mass of sixteen very unlikely ids goes to the first of them."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        rare = probs < 2e-5
        first = torch.arange(probs.shape[-1]) % 16 == 0
        mass = torch.where(rare, probs, 0.0).sum(dim=-1, keepdim=True)
        count = (rare & first).sum(dim=-1, keepdim=True).clamp(min=1)
        share = torch.where(first, mass / count, torch.zeros_like(probs))
        return torch.where(rare, share, probs)

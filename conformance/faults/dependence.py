"""Dependence: every draw right by itself, and not independent of another one.

A parametric bank, not reports.
"""

from __future__ import annotations

import math
import threading

import torch
from jaxtyping import Float64
from torch import Tensor

from refsampler.conformance.faults.base import Kind, Need, Shelf
from refsampler.conformance.faults.rowwise import RowwiseKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.DEPENDENCE)

_BANK = "parametric bank"


@FAULTS.fault("one-uniform", _BANK, "", "independence.rows", bank=("same id",))
class _OneUniform(RowwiseKernel):
    """All rows of a call share one uniform."""

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        return torch.rand(1, dtype=torch.float64).repeat(count)


@FAULTS.fault("antithetic", _BANK, "", "independence.rows", bank=("u and 1 - u",))
class _Antithetic(RowwiseKernel):
    """Every other row takes 1 - u of the row before it."""

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        u = torch.rand((count + 1) // 2, dtype=torch.float64)
        return torch.stack([u, 1 - u], dim=1).reshape(-1)[:count]


@FAULTS.fault("affine", _BANK, "", "independence.rows")
class _Affine(RowwiseKernel):
    """Rows walk round the circle in equal steps from a random start."""

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        steps = torch.arange(count, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
        return (torch.rand(1, dtype=torch.float64) + steps) % 1


@FAULTS.fault("repeats-2", _BANK, "", "independence.rows", bank=("same id",))
class _Repeats(RowwiseKernel):
    """A row in fifty copies the uniform of the row before it."""

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        u = super().fresh(count)
        return torch.where(torch.rand(count) < 0.02, u.roll(1), u)


@FAULTS.fault(
    "frozen",
    _BANK,
    "",
    "independence.calls",
    "seed.effect",
    bank=("same id",),
    designed=("seeds-differ",),
)
class _Frozen(RowwiseKernel):
    """Every call draws from a generator of the same seed."""

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@FAULTS.fault("not-advanced", _BANK, "", "independence.streams", bank=("same id",))
class _NotAdvanced(RowwiseKernel):
    """Draws come from a copy of torch's generator, which does not move."""

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        copy = torch.Generator()
        copy.set_state(torch.default_generator.get_state())
        return torch.rand(count, generator=copy).double()


@FAULTS.fault(
    "threads-alike",
    _BANK,
    "",
    "independence.streams",
    "independence.calls",
    needs=(Need.THREADS,),
    bank=("same id",),
)
class _ThreadsAlike(RowwiseKernel):
    """Each thread has a generator of its own, all with one seed."""

    def __init__(self) -> None:
        self._here = threading.local()

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        if not hasattr(self._here, "own"):
            self._here.own = torch.Generator().manual_seed(3)
        return torch.rand(count, dtype=torch.float64, generator=self._here.own)

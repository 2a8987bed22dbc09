"""Dependence: every draw right by itself, and not independent of another one.

A parametric bank, not reports.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Need, Shelf
from refsampler.conformance.faults.right import RightKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.DEPENDENCE)

_BANK = "parametric bank"


class _InverseCdf(RightKernel):
    """The inverse CDF of one uniform a row."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        edges = torch.softmax(x.double(), dim=-1).cumsum(dim=-1)
        u = self.uniforms(len(x))
        own: Mapping[int, torch.Generator] = rows.generators
        for row, generator in own.items():
            u[row] = torch.rand(1, dtype=torch.float64, generator=generator)
        ids = torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True)
        return ids[:, 0].clamp(max=x.shape[-1] - 1)

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        return torch.rand(rows, dtype=torch.float64)


@FAULTS.fault("one-uniform", _BANK, "", "independence.rows", bank=("same id",))
class _OneUniform(_InverseCdf):
    """All rows of a call share one uniform."""

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        return torch.rand(1, dtype=torch.float64).repeat(rows)


@FAULTS.fault("antithetic", _BANK, "", "independence.rows", bank=("u and 1 - u",))
class _Antithetic(_InverseCdf):
    """Every other row takes 1 - u of the row before it."""

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        u = torch.rand((rows + 1) // 2, dtype=torch.float64)
        return torch.stack([u, 1 - u], dim=1).reshape(-1)[:rows]


@FAULTS.fault("affine", _BANK, "", "independence.rows")
class _Affine(_InverseCdf):
    """Rows walk round the circle in equal steps from a random start."""

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        steps = torch.arange(rows, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
        return (torch.rand(1, dtype=torch.float64) + steps) % 1


@FAULTS.fault("repeats-2", _BANK, "", "independence.rows", bank=("same id",))
class _Repeats(_InverseCdf):
    """A row in fifty copies the uniform of the row before it."""

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        u = super().uniforms(rows)
        return torch.where(torch.rand(rows) < 0.02, u.roll(1), u)


@FAULTS.fault(
    "frozen",
    _BANK,
    "",
    "independence.calls",
    "seed.effect",
    bank=("same id",),
    designed=("seeds-differ",),
)
class _Frozen(_InverseCdf):
    """Every call draws from a generator of the same seed."""

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        return torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@FAULTS.fault("not-advanced", _BANK, "", "independence.streams", bank=("same id",))
class _NotAdvanced(_InverseCdf):
    """Draws come from a copy of torch's generator, which does not move."""

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        copy = torch.Generator()
        copy.set_state(torch.default_generator.get_state())
        return torch.rand(rows, generator=copy).double()


@FAULTS.fault(
    "threads-alike",
    _BANK,
    "",
    "independence.streams",
    "independence.calls",
    needs=(Need.THREADS,),
    bank=("same id",),
)
class _ThreadsAlike(_InverseCdf):
    """Each thread has a generator of its own, all with one seed."""

    def __init__(self) -> None:
        self._here = threading.local()

    def uniforms(self, rows: int) -> Float64[Tensor, " B"]:
        if not hasattr(self._here, "own"):
            self._here.own = torch.Generator().manual_seed(3)
        return torch.rand(rows, dtype=torch.float64, generator=self._here.own)

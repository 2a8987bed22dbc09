"""Support leaks: ids of probability 0 that are drawn all the same, once in millions of draws.

The frequency of a dead id is 0 give or take any tolerance; only noise at the ends of its range shows
what the comparison does there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.conformance.faults.rowwise import RowwiseKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.SUPPORT_LEAKS)

_ZERO = ("noise that can be 0*",)
_ENDS = (
    *("noise-ends", "noise-ends-long", "noise-ends-given"),
    *("ends-of-two", "running-sums", "running-sums-given"),
)


def _uniforms(
    rows: int, vocab: int, generators: Mapping[int, torch.Generator]
) -> Float32[Tensor, "B V"]:
    """Return multiples of 2^-24 in [0, 1), of each seeded row's own generator."""
    u = torch.rand(rows, vocab)
    for row, generator in generators.items():
        u[row] = torch.rand(vocab, generator=generator)
    return u


class _Race24(RightKernel):
    """A race whose noise is minus the logarithm of a 24-bit uniform."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        return -(1 - _uniforms(like.shape[0], like.shape[1], generators)).log().double()

    def raced(
        self, probs: Float64[Tensor, "B V"], noise: Float64[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        return (probs / noise).argmax(dim=-1)


@FAULTS.fault(
    "B126", "PyTorch on MPS", "pytorch/pytorch#192577", "draw.support", bank=_ZERO, designed=_ENDS
)
class _NanWins(_Race24):
    """The noise can be -0.0, so a masked id scores 0 / -0 = NaN, and the argmax prefers NaN."""


@FAULTS.fault(
    "B132", "vllm-metal", "vllm-project/vllm-metal#622", "draw.support", bank=_ZERO, designed=_ENDS
)
class _ZeroNoiseWins(_Race24):
    """The noise can be 0, so an id that top-k cut is drawn: 0 / 0 at a masked id, p / 0 elsewhere."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        return super().noise(like, generators).abs()


@FAULTS.fault("B197", "PyTorch/XLA", "pytorch/xla#2562", "draw.support", bank=_ZERO, designed=_ENDS)
class _ClosedEnd(_Race24):
    """The uniform source is closed at the end that the logarithm maps to 0: its noise can be 0."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        # multiples of 2^-24 in (0, 1], whose logarithm at 1 is 0
        u = 1 - _uniforms(like.shape[0], like.shape[1], generators)
        return -torch.log(u).double()


class _InverseCdf(RightKernel):
    """The first id whose running sum reaches a float32 uniform in [0, 1)."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        edges = torch.softmax(x, dim=-1).cumsum(dim=-1)
        u = _uniforms(len(x), 1, rows.generators)
        return self.crossed(edges / edges[:, -1:], u)

    def crossed(
        self, edges: Float32[Tensor, "B V"], u: Float32[Tensor, "B 1"]
    ) -> Int64[Tensor, " B"]:
        """Return the first id whose edge is not below u."""
        return (edges < u).sum(dim=-1).clamp(max=edges.shape[-1] - 1)


@FAULTS.fault(
    "B143",
    "PyTorch distributions",
    "pytorch/pytorch#100884",
    "draw.support",
    bank=_ZERO,
    designed=_ENDS,
)
class _HalfEmpty(_InverseCdf):
    """A uniform of exactly 0 crosses at the first id, although the first half has no mass."""


@FAULTS.fault(
    "B155", "PyTorch", "pytorch/pytorch#48841", "draw.support", bank=_ZERO, designed=_ENDS
)
class _TwoCategories(_InverseCdf):
    """A two-category row whose first weight is 0 returns it: the comparison at u = 0 is not strict."""

    def crossed(
        self, edges: Float32[Tensor, "B V"], u: Float32[Tensor, "B 1"]
    ) -> Int64[Tensor, " B"]:
        if edges.shape[-1] == 2:
            return (u[:, 0] > edges[:, 0]).long()
        return torch.searchsorted(edges, u, right=True)[:, 0].clamp(max=edges.shape[-1] - 1)


@FAULTS.fault(
    "B148",
    "FlashInfer",
    "flashinfer-ai/flashinfer#225",
    "draw.support",
    "draw.law",
    designed=_ENDS,
)
class _ScanStepsBack(RowwiseKernel):
    """The block scan gives no monotone prefix sums, so the crossing is found in a wrong lane."""

    def edges(self, x: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
        """Return where the last crossing is: every lane that sees one writes, and the last stays.

        A lane sees it if the sum before is not above the uniform, and its own is.
        """
        sums = _tree_scan(torch.softmax(x, dim=-1))
        return sums.flip(-1).cummin(dim=-1).values.flip(-1)

    def crossed(
        self, edges: Float32[Tensor, "B V"], uniform: Float64[Tensor, "B n"]
    ) -> Int64[Tensor, "B n"]:
        """Return the lanes of the last crossings; where there is none, a likely id."""
        ids = torch.searchsorted(edges, uniform.float(), right=True)
        likely = edges.diff(dim=-1, prepend=torch.zeros_like(edges[:, :1])).argmax(dim=-1)
        return torch.where(ids < edges.shape[-1], ids, likely[:, None])


def _tree_scan(values: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
    """Return prefix sums in float32, each the sum of partial sums of other lanes."""
    sums, reach = values, 1
    while reach < values.shape[-1]:
        shifted = torch.nn.functional.pad(sums[:, :-reach], (reach, 0))
        sums, reach = sums + shifted, 2 * reach
    return sums


@FAULTS.fault(
    "B150", "PyTorch", "pytorch/pytorch#192812", "draw.tail", "draw.support", designed=_ENDS
)
class _HalfNoise(RightSampler):
    """With float16 logits the noise is narrowed to float16, where small values become 0."""

    def kernel(self, logits: Float[Tensor, "B V"]) -> RightKernel | None:
        return _NarrowRace(torch.float16) if logits.dtype == torch.float16 else None


class _NarrowRace(RightKernel):
    """A race whose noise was narrowed to a dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        return super().noise(like, generators).to(self.dtype).double()

    def raced(
        self, probs: Float64[Tensor, "B V"], noise: Float64[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        return (probs / noise).argmax(dim=-1)

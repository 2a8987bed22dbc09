"""Laws: a right support and wrong frequencies, by a stated size.

A parametric bank, not reports: how small a fault may be and still be seen.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.rowwise import MisplacedMass, RowwiseKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.LAWS)

_BANK = "parametric bank"
_HEAT = ("temperature-rows",)
_TOP_K, _TOP_P = ("top-k-rows",), ("top-p-rows",)


class _Warmer(RowwiseKernel):
    factor = 1.0

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        return super().scaled(x, rows, greedy) / self.factor


@FAULTS.fault(
    "temperature-1", _BANK, "", "draw.law", "temperature.scale",
    bank=("temperature *",), designed=_HEAT,
)  # fmt: skip
class _OnePercentWarmer(_Warmer):
    """The temperature is 1 % too high."""

    factor = 1.01


@FAULTS.fault(
    "temperature-5", _BANK, "", "draw.law", "temperature.scale",
    bank=("temperature *",), designed=_HEAT,
)  # fmt: skip
class _FivePercentColder(_Warmer):
    """The temperature is 5 % too low."""

    factor = 0.95


@FAULTS.fault(
    "temperature-raised", _BANK, "", "draw.law", "temperature.scale", "greedy.threshold",
    bank=("temperature *",), designed=_HEAT,
)  # fmt: skip
class _RaisedToHalf(RowwiseKernel):
    """Temperatures below 0.85 are raised to it."""

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        assert rows.temperature is not None
        return super().scaled(
            x, replace(rows, temperature=rows.temperature.clamp(min=0.85)), greedy
        )


@FAULTS.fault("top-k-more", _BANK, "", "top-k.keep", designed=_TOP_K)
class _OneMore(RowwiseKernel):
    """Top-k keeps one id more."""

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        return super().kept_top_k(x, (top_k + 1).clamp(max=x.shape[-1]))


@FAULTS.fault(
    "top-k-less", _BANK, "", "top-k.keep", bank=("least probable kept*",), designed=_TOP_K
)
class _OneLess(RowwiseKernel):
    """Top-k keeps one id less."""

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        less = torch.where(top_k < x.shape[-1], (top_k - 1).clamp(min=1), top_k)
        return super().kept_top_k(x, less)


@FAULTS.fault("top-p-more", _BANK, "", "top-p.keep", designed=_TOP_P)
class _HundredthMore(RowwiseKernel):
    """Top-p is 0.01 more than asked for."""

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        return super().kept_top_p(x, (top_p + 0.01).clamp(max=1))


@FAULTS.fault("min-p-absolute", _BANK, "", "min-p.keep", designed=("min-p-rows",))
class _AbsoluteMinP(RowwiseKernel):
    """Min-p is not scaled by the largest probability."""

    def kept_min_p(
        self, x: Float32[Tensor, "B V"], min_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        probs = torch.softmax(x.double(), dim=-1)
        return (probs >= min_p[:, None]) | (x == x.amax(dim=-1, keepdim=True))


@FAULTS.fault("order-top-p-first", _BANK, "", "order.pipeline", designed=("filter-order", *_TOP_P))
class _MassFirst(RowwiseKernel):
    """Top-p acts before top-k."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        x = super().filtered(x, replace(rows, top_k=None))
        return super().filtered(x, replace(rows, top_p=None, min_p=None))


@FAULTS.fault(
    "low-ids-1", _BANK, "", "draw.law", "relabel.equivariance", bank=("low-id tilt*",),
    designed=("relabelled-rows",),
)  # fmt: skip
class _LowIds(RowwiseKernel):
    """Low ids are favoured by a linear tilt of 1 %."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        place = torch.linspace(0, 1, probs.shape[-1], dtype=torch.float64)
        return probs * (1 + 0.01 * (1 - 2 * place))


@FAULTS.fault(
    "neighbour-1", _BANK, "", "draw.law", "batch.isolation", bank=("uniform mixture*",),
    designed=("rows-beside-others",),
)  # fmt: skip
class _Neighbour(RowwiseKernel):
    """One draw in a hundred comes from the row above."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        return 0.99 * probs + 0.01 * probs.roll(1, dims=0)


class _Greedier(RowwiseKernel):
    share = 0.0

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        top = torch.nn.functional.one_hot(probs.argmax(dim=-1), probs.shape[-1])
        return (1 - self.share) * probs + self.share * top


@FAULTS.fault("greedy-1", _BANK, "", "draw.law", bank=("greedy mixture*", "most probable*"))
class _OnePercentGreedy(_Greedier):
    """One draw in a hundred is the argmax."""

    share = 0.01


@FAULTS.fault("greedy-0.1", _BANK, "", "draw.law", bank=("greedy mixture*", "most probable*"))
class _OnePerMilleGreedy(_Greedier):
    """One draw in a thousand is the argmax."""

    share = 0.001


@FAULTS.fault(
    "last-id", _BANK, "", "relabel.equivariance", "draw.law", bank=("last kept id*",),
    designed=("relabelled-rows",),
)  # fmt: skip
class _LastIdLost(RowwiseKernel):
    """The last id of the vocabulary is never drawn."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        if probs.shape[-1] == 1:
            return probs
        return torch.cat([probs[:, :-1], torch.zeros_like(probs[:, -1:])], dim=-1)


@FAULTS.fault("not-renormalised", _BANK, "", "draw.law", bank=("last kept id*",), designed=_TOP_P)
class _NotRenormalised(MisplacedMass):
    """What top-p cut off goes to the last id that it kept."""

    def heir(self, x: Float32[Tensor, "B V"], kept: Bool[Tensor, "B V"]) -> Int64[Tensor, " B"]:
        alive = kept & (x > -torch.inf)
        return x.shape[-1] - 1 - alive.flip(-1).int().argmax(dim=-1)

"""Number formats: logits, probabilities, sums and uniforms kept in fewer bits than they need.

A parametric bank, not reports.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import DEEP, RightKernel
from refsampler.conformance.faults.rowwise import RowwiseKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.NUMBER_FORMATS)

_BANK = "parametric bank"


@FAULTS.fault("bfloat16-logits", _BANK, "", "input.dtypes", "draw.law", designed=("dtypes",))
class _RoundedLogits(RightKernel):
    """Logits are rounded to bfloat16."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        return super().draw(logits.bfloat16(), rows)


@FAULTS.fault("bfloat16-probabilities", _BANK, "", "draw.law", bank=("bfloat16 probabilities",))
class _RoundedProbabilities(RowwiseKernel):
    """Probabilities are rounded to bfloat16."""

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        return probs.bfloat16().double()


class _NarrowCdf(RowwiseKernel):
    sums = torch.float64

    def edges(self, x: Float32[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Return running sums of the narrow type, one id after the other."""
        probs = torch.softmax(x.double(), dim=-1).to(self.sums).numpy()
        return torch.from_numpy(np.cumsum(probs, axis=-1, dtype=probs.dtype)).double()


class _NarrowUniform(RowwiseKernel):
    bits = 53

    def uniforms(self, count: int, rows: Rows) -> Float64[Tensor, " B"]:
        """Return multiples of 2^-bits."""
        return (super().uniforms(count, rows) * 2.0**self.bits).floor() / 2.0**self.bits


@FAULTS.fault("float16-sum", _BANK, "", "draw.law", "draw.tail", bank=("float16 running sum",))
class _HalfSum(_NarrowCdf):
    """The running sum is kept in float16."""

    sums = torch.float16


@FAULTS.fault("float32-sum", _BANK, "", "draw.tail", "draw.law", bank=("float32 running sum",))
class _SingleSum(_NarrowCdf):
    """The running sum is kept in float32."""

    capabilities = DEEP
    sums = torch.float32


@FAULTS.fault("16-bit-uniform", _BANK, "", "draw.law", "draw.tail", bank=("16-bit uniform",))
class _Uniform16(_NarrowUniform):
    """The uniform has 16 bits."""

    bits = 16


@FAULTS.fault(
    "24-bit-uniform", _BANK, "", "draw.resolution", "draw.tail", "draw.law",
    bank=("24-bit uniform",),
)  # fmt: skip
class _Uniform24(_NarrowUniform):
    """The uniform has 24 bits."""

    capabilities = DEEP
    bits = 24

"""Temperature and greedy: thresholds that clamp, greedy rows that draw, ties at random.

Temperature 0 is usually tested alone, and a tiny temperature not at all.
"""

from __future__ import annotations

from jaxtyping import Bool, Float32
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.TEMPERATURE)


@FAULTS.fault(
    "B050",
    "inspect_ai",
    "UKGovernmentBEIS/inspect_ai#266",
    "greedy.threshold",
    "temperature.scale",
)
class _EverythingIsTheGuard(RightKernel):
    """A guard written as 0 < T > .02 turns every temperature above .02 into .02."""

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        return x / 0.02

"""Temperature and greedy: thresholds that clamp, greedy rows that draw, ties at random.

Temperature 0 is usually tested alone, and a tiny temperature not at all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import SamplerOutput

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.TEMPERATURE)


@FAULTS.fault("B050", "inspect_ai", "UKGovernmentBEIS/inspect_ai#266", "greedy.threshold")
class _EverythingIsTheGuard(RightKernel):
    """A guard written as 0 < T > .02 turns every temperature above .02 into .02."""

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        assert rows.temperature is not None
        return super().scaled(
            x, replace(rows, temperature=rows.temperature.clamp(max=0.02)), greedy
        )


# by the index output.range; but a place in a list is in [0, V), and no argmax
@FAULTS.fault(
    "B063", "vllm-ascend", "vllm-project/vllm-ascend#16396", "greedy.argmax", "output.range"
)
class _PlaceInTheList(RightKernel):
    """In a mixed batch a greedy row gives its place in the reordered candidates, not a token id."""

    def argmax(self, x: Float32[Tensor, "B V"]) -> Int64[Tensor, " B"]:
        return x.sort(dim=-1, descending=True).values.argmax(dim=-1)

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        assert rows.temperature is not None
        if (rows.temperature == 0).all():
            return RightKernel().draw(logits, rows)
        return super().draw(logits, rows)


@FAULTS.fault("B082", "llamafarm", "llama-farm/llamafarm#818", "greedy.argmax")
class _GreedyDraws(RightKernel):
    """Temperature 0 skips the scaling, and the row is drawn at random all the same."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        assert rows.temperature is not None
        unscaled = torch.where(rows.temperature == 0, 1.0, rows.temperature)
        return super().draw(logits, replace(rows, temperature=unscaled))


@FAULTS.fault("B096", "FreeToken", "FlashML-org/FreeToken#471", "greedy.tie")
class _BarelyWarm(RightKernel):
    """Greedy rows of a mixed batch are drawn at temperature 1e-6, so that ties fall at random."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        assert rows.temperature is not None
        greedy = rows.temperature == 0
        if not greedy.all():
            rows = replace(rows, temperature=torch.where(greedy, 1e-6, rows.temperature))
        return super().draw(logits, rows)


@FAULTS.fault("B115", "vLLM", "vllm-project/vllm#2937", "temperature.scale")
class _DividedInHalf(RightSampler):
    """Float16 logits are divided in float16: a tiny temperature overflows, and id 0 comes."""

    def sample(
        self,
        logits: Float[Tensor, "B V"],
        metadata: SamplingMetadata,
        *,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        if logits.dtype == torch.float16 and metadata.temperature is not None:
            greedy = metadata.temperature == 0
            heat = torch.where(greedy, 1.0, metadata.temperature)[:, None]
            logits = (logits.float() / heat).half()
            metadata = replace(metadata, temperature=torch.where(greedy, 0.0, 1.0))
        return super().sample(logits, metadata, logprobs_mode=logprobs_mode)


# beside a random row only, which is what batch.isolation speaks about as well
@FAULTS.fault(
    "B119", "vllm-ascend", "vllm-project/vllm-ascend#5417", "greedy.argmax", "batch.isolation"
)
class _OldMarker(RightKernel):
    """Greedy rows are looked for by a constant of old, so in a mixed batch they are divided by 0."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        assert rows.temperature is not None
        if (rows.temperature == 0).all():
            return super().draw(logits, rows)
        x = logits.float() / rows.temperature[:, None]
        return self.drawn(self.filtered(x, rows), rows)


@FAULTS.fault("B163", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#15715", "greedy.threshold")
class _Clamped(RightKernel):
    """Temperatures below 1e-2 are raised to it, although only those below 1e-5 are greedy."""

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        assert rows.temperature is not None
        return super().scaled(
            x, replace(rows, temperature=rows.temperature.clamp(min=1e-2)), greedy
        )

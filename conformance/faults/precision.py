"""Precision: noise with too few levels or too short a range, and sums that stop growing.

Each id's frequency is within any tolerance; only many unlikely ids together show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import DEEP, RightKernel, RightSampler
from refsampler.conformance.faults.rowwise import RowwiseKernel
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.drafts import Proposed
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import Sampler, SamplerOutput

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.PRECISION)


@FAULTS.fault("B046", "DeepSpec", "deepseek-ai/DeepSpec#31", "spec.draft-law")
class _HalfDrafts(RightVerifier):
    """Drafts are drawn from bfloat16 logits and verified with float32 probabilities."""

    def draft(self, logits: Float32[Tensor, "B V"], metadata: SamplingMetadata) -> Proposed:
        told = super().draft(logits, metadata)
        return told._replace(ids=super().draft(logits.bfloat16(), metadata).ids)


class _HalfNoise(RightKernel):
    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        """Return -log of uniforms that have the 256 levels of a bfloat16 mantissa."""
        uniform = torch.exp(-super().noise(like, generators))
        levels = (uniform * 256).floor().clamp(min=0.5) / 256
        return -torch.log(levels).bfloat16().double()


@FAULTS.fault("B091", "JAX", "jax-ml/jax#30879", "draw.tail", designed=("tails-of-dtypes",))
class _NoiseOfLogitsDtype(RightSampler):
    """Half-precision logits are raced with half-precision noise, whose few levels tie."""

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        if logits.dtype == torch.float32:
            return super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        sampler = Sampler(filter_and_draw=_HalfNoise().draw, folds=RightKernel.capabilities.folds)
        return sampler(logits, metadata, logprobs_mode=logprobs_mode)


@FAULTS.fault("B120", "vLLM", "vllm-project/vllm#22180", "temperature.scale", "nonfinite.contained")
class _NoMaximumSubtracted(RightKernel):
    """Weights are exp(x / T), no maximum taken off, so a low temperature overflows to NaN."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        weights = torch.exp(x)
        probs = (weights / weights.sum(dim=-1, keepdim=True)).double()
        return self.raced(probs, self.noise(probs, rows.generators))


@FAULTS.fault(
    "B125", "Tenstorrent", "tenstorrent/tt-metal#56016", "draw.tail", bank=("tail is missing",)
)
class _UniformsBelow99(RightKernel):
    """Uniforms end at .99, to keep clear of log(0), so no Gumbel noise is above 4.6."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: Mapping[int, torch.Generator]
    ) -> Float64[Tensor, "B V"]:
        return super().noise(like, generators) - math.log(0.99)


class _RunningSum(RowwiseKernel):
    """Draws by a float32 sum over the row, added up id by id."""

    capabilities = DEEP

    def weights(self, x: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
        return torch.softmax(x, dim=-1)

    def edges(self, x: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
        return torch.from_numpy(np.cumsum(self.weights(x).numpy(), axis=-1, dtype=np.float32))

    def crossed(
        self, edges: Float32[Tensor, "B V"], uniform: Float64[Tensor, "B n"]
    ) -> Int64[Tensor, "B n"]:
        ids = torch.searchsorted(edges, uniform.float() * edges[:, -1:], right=True)
        return ids.clamp(max=edges.shape[-1] - 1)


@FAULTS.fault("B134", "PyTorch", "pytorch/pytorch#43115", "draw.tail")
class _SumOfProbabilities(_RunningSum):
    """The float32 running sum of the probabilities stops growing where the next one is too small."""


@FAULTS.fault("B178", "torch7", "torch/torch7#418", "draw.tail")
class _SumOfWeights(_RunningSum):
    """The float32 running sum of unnormalised weights saturates, and rare ids are never drawn."""

    def weights(self, x: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
        return torch.exp(x - x.amax(dim=-1, keepdim=True))


@FAULTS.fault(
    "B141",
    "vLLM V1",
    "vllm-project/vllm#43150",
    "draw.tail",
    bank=("tail is missing", "noise floor*"),
)
class _NoiseWithFloor(RowwiseKernel):
    """Float32 exponential noise ends at 2^-24, so ids more than 17 to 20 nats down cannot win."""

    capabilities = DEEP
    end = 2.0**-24

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        """Return how often an id has the least max(noise, end) / p; the lowest of equals wins.

        No id wins before end / p, where it has all that the noise has below its end; then it wins
        at the rate p until all others have been passed.
        """
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)
        starts = self.end / ranked
        rates = ranked.cumsum(dim=-1)
        after = torch.full_like(starts[:, :1], torch.inf)
        waits = (
            torch.cat([starts[:, 1:], after], dim=-1)
            .sub(starts)
            .nan_to_num(nan=0.0, posinf=torch.inf)
        )
        hazards = rates * waits
        before = torch.cat([torch.zeros_like(rates[:, :1]), (hazards + self.end)[:, :-1]], dim=-1)
        passed = before.cumsum(dim=-1)
        alive = torch.where(ranked > 0, torch.exp(-passed), 0.0)
        won = -alive * math.exp(-self.end) * torch.expm1(-hazards) / rates
        later = won.flip(-1).cumsum(dim=-1).flip(-1)
        wins = alive * -math.expm1(-self.end) + ranked * later
        return torch.zeros_like(probs).scatter(-1, order, wins)

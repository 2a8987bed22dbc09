"""Order and double application: each step right by itself, together another law.

At temperature 1 with one filter most wrong orders agree with the right one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.metadata import SamplingMetadata
from refsampler.penalties import count_tokens
from refsampler.processors import MinP
from refsampler.sampler import SamplerOutput
from refsampler.truncation import keep

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.ORDER)


@FAULTS.fault("B040", "vLLM", "vllm-project/vllm#718", "order.pipeline")
class _WholeMass(RightKernel):
    """Top-p is measured on the whole mass in place of what top-k left, renormalised."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        x = super().filtered(x, replace(rows, top_k=None, top_p=None))
        kept = torch.ones_like(x, dtype=torch.bool)
        if rows.top_k is not None:
            kept &= self.kept_top_k(x, rows.top_k)
        if rows.top_p is not None:
            kept &= self.kept_top_p(x, rows.top_p)
        return keep(x, kept)


def _penalty(metadata: SamplingMetadata, vocab: int) -> tuple[Int64[Tensor, "B V"], Tensor]:
    """Return how often each id occurs in prompt and output, and the repetition penalties."""
    prompts = [] if metadata.prompt_token_ids is None else metadata.prompt_token_ids.tolist()
    outputs = metadata.output_token_ids
    both = [(*prompt, *output) for prompt, output in zip(prompts, outputs, strict=True)]
    counts = count_tokens(both, vocab, metadata.repetition_penalties.device)
    return counts, metadata.repetition_penalties[:, None]


@FAULTS.fault(
    "B093",
    "react-native-executorch",
    "software-mansion-labs/private-mind#255",
    "penalty.repetition",
)
class _OncePerOccurrence(RightSampler):
    """The repetition penalty is applied once for each occurrence in place of each distinct id."""

    def before_penalties(
        self, x: Float32[Tensor, "B V"], metadata: SamplingMetadata
    ) -> Float32[Tensor, "B V"]:
        counts, penalty = _penalty(metadata, x.shape[-1])
        more = penalty ** (counts - 1).clamp(min=0)
        return torch.where(x > 0, x / more, x * more)


@FAULTS.fault("B109", "SGLang-JAX", "sgl-project/sglang-jax#1563", "order.pipeline")
class _MaskPath(RightKernel):
    """Filters act before the temperature, and min-p compares logits and rejects by writing 0."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        assert rows.temperature is not None
        heat = torch.where(rows.temperature == 0, 1.0, rows.temperature)[:, None]
        x = x * heat
        if rows.min_p is not None:
            below = x < rows.min_p[:, None] * x.amax(dim=-1, keepdim=True)
            x = torch.where(below, torch.zeros_like(x), x)
        return super().filtered(x, replace(rows, min_p=None)) / heat


@FAULTS.fault("B117", "vllm-metal", "vllm-project/vllm-metal#728", "order.pipeline", "logprobs.raw")
class _MinPFirst(RightSampler):
    """Min-p masks the raw logits, before the temperature and before the raw logprobs are taken."""

    def sample(
        self,
        logits: Float[Tensor, "B V"],
        metadata: SamplingMetadata,
        *,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        processors = metadata.logitsprocs
        for one in processors.argmax_invariant:
            if isinstance(one, MinP) and len(logits):
                logits = torch.where(one.apply(logits.float()).isinf(), -torch.inf, logits)
        rest = tuple(one for one in processors.argmax_invariant if not isinstance(one, MinP))
        metadata = replace(metadata, logitsprocs=replace(processors, argmax_invariant=rest))
        return super().sample(logits, metadata, logprobs_mode=logprobs_mode)


@FAULTS.fault("B144", "sglang-omni", "sgl-project/sglang-omni#2005", "order.pipeline")
class _PenalisedTwice(RightSampler):
    """The model runner applies the repetition penalty, and the sampler applies it again."""

    def before_penalties(
        self, x: Float32[Tensor, "B V"], metadata: SamplingMetadata
    ) -> Float32[Tensor, "B V"]:
        counts, penalty = _penalty(metadata, x.shape[-1])
        more = torch.where(counts > 0, penalty, 1.0)
        return torch.where(x > 0, x / more, x * more)

"""Ignored parameters: accepted, and without effect on one path or on all.

A test that only asks whether a request succeeds passes on all of these.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.protocol import Feature
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightSampler
from refsampler.metadata import SamplingMetadata

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.IGNORED_PARAMETERS)


@FAULTS.fault("B018", "SGLang", "sgl-project/sglang#28179", "effect.parameters")
class _NoRepetitionWhereGreedy(RightSampler):
    """One mode does not apply the repetition penalty; here it is the one of all-greedy batches."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        if not metadata.all_greedy:
            return metadata
        neutral = torch.ones_like(metadata.repetition_penalties)
        return replace(metadata, repetition_penalties=neutral)


@FAULTS.fault("B049", "SGLang-JAX", "sgl-project/sglang-jax#976", "effect.parameters")
class _MergedWithout(RightSampler):
    """Merging two data-parallel batches does not copy the penalties of the second."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        return replace(
            metadata,
            repetition_penalties=_first_half(metadata.repetition_penalties, 1.0),
            frequency_penalties=_first_half(metadata.frequency_penalties, 0.0),
            presence_penalties=_first_half(metadata.presence_penalties, 0.0),
        )


def _first_half(values: Float32[Tensor, " B"], neutral: float) -> Float32[Tensor, " B"]:
    half = (len(values) + 1) // 2
    return torch.cat([values[:half], torch.full_like(values[half:], neutral)])


@FAULTS.fault("B171", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#17701", "refuse.unsupported")
class _FusedPath(RightSampler):
    """A fused path reads T, top-k and top-p, and drops penalties and min-p without a word."""

    capabilities = replace(
        RightSampler.capabilities,
        features=RightSampler.capabilities.features - {Feature.PENALTIES},
    )

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        read = replace(metadata.logitsprocs, argmax_invariant=())
        return replace(metadata, no_penalties=True, logitsprocs=read)


@FAULTS.fault("B188", "tt-xla", "tenstorrent/tt-xla#3331", "effect.parameters")
class _TracedWithout(RightSampler):
    """Whether there are penalties is a constant of the first call with a shape, which has none."""

    def __init__(self) -> None:
        super().__init__()
        self._traced: dict[tuple[int, int], bool] = {}

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        shape = (len(metadata.steps), metadata.vocab_size)
        without = self._traced.setdefault(shape, metadata.no_penalties)
        return replace(metadata, no_penalties=metadata.no_penalties or without)

"""Races: barriers that are missing, buffers that are written too soon, ranks that drift apart.

One run on an idle device passes on all of these.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Final

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Need, Shelf
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import SamplerOutput
from refsampler.truncation import keep_top_k

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.RACES)

_TILE: Final = 1024
_SELDOM: Final = 2**15
_NOW_AND_THEN: Final = 20


@FAULTS.fault("B057", "FlashInfer", "flashinfer-ai/flashinfer#3624", "output.range")
class _PaddingLaneWins(RightKernel):
    """Storage is used again without a barrier: in one row of 2^15 a padding lane wins."""

    def __init__(self) -> None:
        self._rows = 0

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        ids = super().drawn(x, rows)
        place = self._rows + torch.arange(len(ids))
        self._rows += len(ids)
        vocab = x.shape[-1]
        padded = -(-vocab // _TILE) * _TILE
        return torch.where(place % _SELDOM == _SELDOM - 1, padded - 1, ids)


@FAULTS.fault("B066", "Tenstorrent", "tenstorrent/tt-metal#48222", "determinism.repeat")
class _OverwritesWhatIsRead(RightSampler):
    """The next step writes its ids into the buffer from which the last step's are still read."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = torch.zeros((0, 1), dtype=torch.int32)

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        output = super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        rows = len(logits)
        if len(self._buffer) < rows:
            self._buffer = torch.zeros((rows, 1), dtype=torch.int32)
        self._buffer[:rows] = output.sampled_token_ids
        return replace(output, sampled_token_ids=self._buffer[:rows])


@FAULTS.fault(
    "B069", "FlashInfer", "flashinfer-ai/flashinfer#769", "output.returns", hazardous=True
)
class _BarrierInABranch(RightKernel):
    """Only some threads reach the barrier in a row without any weight, and the others wait."""

    def raced(
        self, probs: Float64[Tensor, "B V"], noise: Float64[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        while not (probs > 0).any(dim=-1).all():
            time.sleep(1)
        return super().raced(probs, noise)


@FAULTS.fault(
    "B168",
    "vLLM V1",
    "vllm-project/vllm#17498",
    "parallel.ranks",
    needs=(Need.PROCESSES,),
    hazardous=True,
)
class _EachRankItsOwn(RightSampler):
    """Rows without a seed draw from a generator that each rank has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self._own = torch.Generator().manual_seed(int.from_bytes(os.urandom(6)))

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        own = dict.fromkeys(range(len(metadata.steps)), self._own)
        return replace(metadata, generators={**own, **metadata.generators})


@FAULTS.fault("B189", "FlashInfer", "flashinfer-ai/flashinfer#5251", "determinism.repeat")
class _PivotOfOneBlock(RightKernel):
    """A barrier is missing where blocks meet: one wide top-k of twenty has the first block's pivot."""

    def __init__(self) -> None:
        self._calls = 0

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        vocab = x.shape[-1]
        if vocab <= 32 * _TILE:
            return keep_top_k(x, top_k)
        self._calls += 1
        if self._calls % _NOW_AND_THEN:
            return keep_top_k(x, top_k)
        block = x[:, : vocab // 2]
        pivot = block.sort(dim=-1, descending=True).values
        place = top_k.long().clamp(max=block.shape[-1])[:, None] - 1
        return ~(x < pivot.gather(-1, place))

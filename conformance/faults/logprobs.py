"""Logprobs: of the wrong stage, of the wrong step, not finite.

Tests look at ids, or at logprobs without any parameter set, where every stage shows the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from refsampler.backends.protocol import Drawn, Rows
from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightKernel, RightSampler
from refsampler.logprobs import LogprobsTensors, gather, known_mode, shown_values
from refsampler.metadata import SamplingMetadata
from refsampler.penalties import apply_penalties, count_tokens
from refsampler.sampler import Sampler, SamplerOutput
from refsampler.semantics import Semantics

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.LOGPROBS)

_RAW = "raw_logprobs"


@FAULTS.fault("B015", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#17701", "logprobs.raw", "mask.allowed")
class _PenalisedInPlace(RightSampler):
    """The raw logits are penalised in place before they are shown, and -inf is clamped to finite."""

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        output = super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        mode = known_mode(logprobs_mode or _RAW)
        tensors = output.logprobs_tensors
        if tensors is None:
            return output
        if mode.startswith("raw"):
            raw = _finite(_penalised(logits.float(), metadata))
            ids = output.sampled_token_ids[:, 0].long()
            listed = metadata.logprob_token_ids or {}
            shown = shown_values(mode, raw, raw)
            tensors = gather(shown, ids, metadata.max_num_logprobs, listed)
        else:
            clamped = torch.where(tensors.valid, _finite(tensors.logprobs), -torch.inf)
            tensors = replace(tensors, logprobs=clamped)
        return replace(output, logprobs_tensors=tensors)


def _penalised(x: Float32[Tensor, "B V"], metadata: SamplingMetadata) -> Float32[Tensor, "B V"]:
    if metadata.no_penalties or metadata.prompt_token_ids is None:
        return x
    vocab = x.shape[-1]
    return apply_penalties(
        x,
        count_tokens(metadata.prompt_token_ids.tolist(), vocab, x.device),
        count_tokens(metadata.output_token_ids, vocab, x.device),
        metadata.repetition_penalties,
        metadata.frequency_penalties,
        metadata.presence_penalties,
    )


def _finite(x: Float32[Tensor, "B C"]) -> Float32[Tensor, "B C"]:
    return x.clamp(min=torch.finfo(torch.float32).min)


class _FirstRecord(ReferenceSession):
    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._first: dict[int, LogprobsTensors] = {}

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        output = super().sample(ids, logits)
        tensors = output.logprobs_tensors
        if tensors is None or not tensors.logprob_token_ids.numel():
            return output
        shown_ids, shown = tensors.logprob_token_ids.clone(), tensors.logprobs.clone()
        for row, one in enumerate(ids):
            first = self._first.setdefault(one, _row(tensors, row))
            columns = min(first.logprobs.shape[-1], shown.shape[-1])
            shown_ids[row, 1:columns] = first.logprob_token_ids[0, 1:columns]
            shown[row, 1:columns] = first.logprobs[0, 1:columns]
        tensors = replace(tensors, logprob_token_ids=shown_ids, logprobs=shown)
        return replace(output, logprobs_tensors=tensors)

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        super().remove(id)
        self._first.pop(id, None)


def _row(tensors: LogprobsTensors, row: int) -> LogprobsTensors:
    one = slice(row, row + 1)
    return LogprobsTensors(
        tensors.logprob_token_ids[one],
        tensors.logprobs[one],
        tensors.selected_token_ranks[one],
        tensors.valid[one],
    )


@FAULTS.fault("B043", "SGLang", "sgl-project/sglang#2088", "logprobs.step")
class _FirstStepsTop(RightEngine):
    """The loop over steps reads the top logprobs at index 0, so every step shows the first's."""

    session = _FirstRecord


@FAULTS.fault("B045", "SGLang", "sgl-project/sglang#2664", "logprobs.raw")
class _ComputedBefore(RightSampler):
    """Processed logprobs are computed before temperature and filters, of the untouched logits."""

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        mode = (logprobs_mode or _RAW).replace("processed", "raw")
        return super().sample(logits, metadata, logprobs_mode=mode)


@FAULTS.fault("B068", "Megatron-LM", "NVIDIA/Megatron-LM#6993", "logprobs.finite")
class _MaskedIsNan(RightSampler):
    """Nobody clamps what a mask left, so the logprobs of masked ids are NaN."""

    def shown(self, output: SamplerOutput) -> SamplerOutput:
        tensors = output.logprobs_tensors
        assert tensors is not None
        masked = tensors.valid & tensors.logprobs.isneginf()
        spoilt = torch.where(masked, torch.nan, tensors.logprobs)
        return replace(output, logprobs_tensors=replace(tensors, logprobs=spoilt))


class _Network(RightKernel):
    """Keeps exactly k ids; at the k-th place it returns the index of another id that ties."""

    def draw_processed(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Drawn:
        kept = self.filtered(logits, rows)
        ids = self.drawn(kept, rows)
        value = logits.gather(-1, ids[:, None])
        least = kept.masked_fill(kept.isneginf(), torch.inf).amin(dim=-1)
        last_tied = logits.shape[-1] - 1 - (logits == value).flip(-1).int().argmax(dim=-1)
        return Drawn(torch.where(value[:, 0] == least, last_tied, ids), kept)

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        rank = x.sort(dim=-1, descending=True, stable=True).indices.argsort(dim=-1)
        return rank < top_k[:, None]


@FAULTS.fault("B078", "Tenstorrent", "tenstorrent/tt-metal#56467", "logprobs.finite")
class _IndexOfAnother(RightSampler):
    """An unstable top-k names an id that ties but was cut, so the sampled id has logprob -inf."""

    capabilities = replace(RightSampler.capabilities, semantics=Semantics(top_k_ties="exactly_k"))

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        sampler = Sampler(filter_and_draw=_Network().draw_processed)
        return sampler(logits, metadata, logprobs_mode=logprobs_mode)


@FAULTS.fault("B151", "Ollama", "ollama/ollama#16196", "logprobs.raw")
class _OneMode(RightSampler):
    """The mode is no part of the reply: raw logprobs come back whichever is asked for."""

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        return super().sample(logits, metadata, logprobs_mode=_RAW)


@FAULTS.fault("B170", "vLLM V0", "vllm-project/vllm#9453", "logprobs.raw")
class _ProcessedAsRaw(RightSampler):
    """Raw logprobs move with temperature and top-p: they are the processed ones."""

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        mode = (logprobs_mode or _RAW).replace("raw", "processed")
        return super().sample(logits, metadata, logprobs_mode=mode)

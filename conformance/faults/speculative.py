"""Speculative verification: the wrong draft law, the wrong row, the wrong residual.

Tests that draw the drafts with noise of their own and mock the bonus sampler pass these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Float32, Int, Int64
from torch import Tensor

from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightSampler
from refsampler.conformance.faults.sessions import RightSession
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.drafts import Proposed
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import SamplerOutput

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.SPECULATIVE)


@FAULTS.fault("B023", "FlashInfer", "flashinfer-ai/flashinfer#425", "spec.law", "spec.greedy")
class _DisjointLaws(RightVerifier):
    """Where draft and target share no id, the scan of the residual runs past its end."""

    def recovered(
        self, p: Float32[Tensor, "B V"], q: Float32[Tensor, "B V"], noise: Float32[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        shared = torch.minimum(p, q).any(-1)
        return torch.where(shared, super().recovered(p, q, noise), p.shape[-1] - 1)


@FAULTS.fault("B032", "HF transformers", "huggingface/transformers#47932", "spec.draft-law")
class _RawLaw(RightVerifier):
    """The verifier gets the draft's raw law although the drafts came from the filtered one."""

    def draft(self, logits: Float[Tensor, "B V"], metadata: SamplingMetadata) -> Proposed:
        return super().draft(logits, metadata)._replace(probs=logits.float().softmax(-1))


@FAULTS.fault("B052", "HF transformers", "huggingface/transformers#32867", "spec.draft-law")
class _ArgmaxDrafts(RightVerifier):
    """The draft is the argmax, but the ratio uses its probability in the soft law."""

    def draft(self, logits: Float[Tensor, "B V"], metadata: SamplingMetadata) -> Proposed:
        return super().draft(logits, metadata)._replace(ids=logits.argmax(-1))


@FAULTS.fault("B175", "HF transformers", "huggingface/transformers#28166", "spec.draft-law")
class _OnePositionOff(RightVerifier):
    """Target and draft laws of a candidate are read one position off."""

    def accepted(
        self,
        draft_ids: Int[Tensor, " drafts"],
        p: Float32[Tensor, "drafts V"],
        q: Float32[Tensor, "drafts V"],
        uniforms: Tensor,
    ) -> Bool[Tensor, " drafts"]:
        return super().accepted(draft_ids, p.roll(1, dims=0), q.roll(1, dims=0), uniforms)


class _ByToken(RightSession):
    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        by_token = [
            row for row, one in enumerate(self.rows) for _ in range(self.accepted.get(one, 1))
        ]
        looked_up = {row: by_token[row] for row in range(min(len(self.rows), len(by_token)))}
        generators = {
            row: metadata.generators[found]
            for row, found in looked_up.items()
            if found in metadata.generators
        }
        return replace(metadata, generators=generators)


@FAULTS.fault("B074", "vLLM", "vllm-project/vllm#35398", "batch.state", "seed.batch")
class _TokensForRequests(RightEngine):
    """Seeds laid out a token are read as if laid out a request, which shows if counts are uneven."""

    session = _ByToken


@FAULTS.fault("B164", "vLLM V1", "vllm-project/vllm#44727", "logprobs.gather")
class _OneKindOfLogprobs(RightSampler):
    """Where some rows list ids and others want the top N, everybody gets the top N."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        if metadata.max_num_logprobs is None:
            return metadata
        return replace(metadata, logprob_token_ids=None)


class _UnsetIds(RightSession):
    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._buffer = torch.zeros(0, dtype=torch.int32)

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        output = super().sample(ids, logits)
        tensors = output.logprobs_tensors
        if tensors is None or not tensors.logprob_token_ids.numel():
            return output
        shown = tensors.logprob_token_ids.clone()
        flat = shown.flatten()
        if len(self._buffer) < len(flat):
            self._buffer = torch.cat([self._buffer, flat[len(self._buffer) :]])
        stale = self._buffer[: len(flat)].reshape(shown.shape)
        for row, one in enumerate(ids):
            if self.accepted.get(one, 1) > 1:
                shown[row] = stale[row]
        self._buffer[: len(flat)] = flat
        return replace(output, logprobs_tensors=replace(tensors, logprob_token_ids=shown))


@FAULTS.fault("B195", "vLLM V0", "vllm-project/vllm#8047", "logprobs.step", "output.range")
class _SlotsLeftUnset(RightEngine):
    """After a step of several tokens the ids of a record are not written: the buffer shows through."""

    session = _UnsetIds

"""Constraints: bad words, minimum length, bias and grammars that meet each other or drafts.

Tests try one constraint at a time, in one request, and one token a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.bad_words import banned_last_ids
from refsampler.batch_update import BatchUpdate, fresh_batch
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightSampler
from refsampler.conformance.faults.sessions import RightSession
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.metadata import SamplingMetadata
from refsampler.processors import EngineConfig, LogitBias, LogitsProcessor, MinTokens
from refsampler.sampler import SamplerOutput
from refsampler.speculative import Verified

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.CONSTRAINTS)


class _ReadEarly(RightSession):
    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        words = metadata.bad_words_token_ids
        if not words:
            return metadata
        mask = metadata.allowed_token_ids_mask
        shape = (len(self.rows), metadata.vocab_size)
        mask = torch.zeros(shape, dtype=torch.bool) if mask is None else mask.clone()
        for row, banned in words.items():
            drafts = self.accepted.get(self.rows[row], 0)
            history = _shifted(metadata.output_token_ids[row], drafts)
            mask[row, list(banned_last_ids(banned, history))] = True
        return replace(metadata, allowed_token_ids_mask=mask, bad_words_token_ids={})


def _shifted(output: Sequence[int], drafts: int) -> Sequence[int]:
    """Read the region of the last step from one position before it; one token is no draft."""
    if drafts < 2:
        return output
    start = len(output) - drafts
    return (*output[:start], *output[max(start - 1, 0) : -1])


@FAULTS.fault("B058", "vLLM MRV2", "vllm-project/vllm#52311", "mask.bad-words")
class _DraftsReadEarly(RightEngine):
    """Bad words see the drafts that were accepted in the last step one position early."""

    session = _ReadEarly


@FAULTS.fault("B103", "vLLM", "vllm-project/vllm#53665", "mask.flagged", "mask.empty")
class _EmptyIsValid(RightSampler):
    """Two hard constraints leave nothing, and the row gets id 0 as if that were an answer."""

    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, logprobs_mode: str | None = None
    ) -> SamplerOutput:
        output = super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        return replace(output, valid=torch.ones_like(output.valid))


class _CountsSteps(RightSession):
    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._uncounted: dict[int, int] = {}

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        super().accept(ids, tokens)
        for one, some in zip(ids, tokens, strict=True):
            self._uncounted[one] = self._uncounted.get(one, 0) + max(len(some) - 1, 0)

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        super().remove(id)
        self._uncounted.pop(id, None)

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        counted = [
            replace(asked, output=asked.output[self._uncounted.get(one, 0) :])
            for one, asked in zip(self.rows, self._batch.requests, strict=True)
        ]
        config = EngineConfig(metadata.vocab_size, len(counted))
        minimum = MinTokens(config, torch.device("cpu"), pin_memory=False)
        minimum.update_state(fresh_batch(counted))
        early: tuple[LogitsProcessor, ...] = tuple(
            minimum if isinstance(one, MinTokens) else one
            for one in metadata.logitsprocs.non_argmax_invariant
        )
        processors = replace(metadata.logitsprocs, non_argmax_invariant=early)
        return replace(metadata, logitsprocs=processors)


@FAULTS.fault("B145", "SGLang", "sgl-project/sglang#33643", "mask.min-tokens")
class _StepsForTokens(RightEngine):
    """The minimum counts steps, so stop ids stay banned too long where steps give several tokens."""

    session = _CountsSteps


@FAULTS.fault("B169", "vLLM", "vllm-project/vllm#42744", "spec.processors")
class _MinPForTheBonus(RightVerifier):
    """Min-p acts on bonus tokens only: verification skips argmax-invariant processors."""

    def verify(
        self,
        draft_ids: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> Verified:
        taken = replace(metadata, logitsprocs=replace(metadata.logitsprocs, speculative=True))
        return super().verify(draft_ids, draft_probs, logits, taken)


FAULTS.out_of_scope(
    "B173",
    "TensorRT-LLM",
    "NVIDIA/TensorRT-LLM#17701",
    summary="One path penalises the whole prompt although a part of it was to be ignored.",
    reason="requests of the contract cannot ask that a part of the prompt be ignored",
)


class _WithoutBans(LogitsProcessor):
    """Adds the biases of another one, but for those that ban."""

    def __init__(self, whole: LogitsProcessor) -> None:
        self.whole = whole

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.whole.update_state(batch_update)

    def apply(self, logits: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
        biased = self.whole.apply(logits)
        return torch.where(biased.isneginf(), logits, biased)


@FAULTS.fault("B186", "llama.cpp", "ggml-org/llama.cpp#13605", "bias.additive")
class _BanLostOnDevice(RightSampler):
    """A bias of -inf is lost on the path that samples on the device; it is taken if all rows draw."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        if not metadata.all_random:
            return metadata
        early = tuple(
            _WithoutBans(one) if isinstance(one, LogitBias) else one
            for one in metadata.logitsprocs.non_argmax_invariant
        )
        processors = replace(metadata.logitsprocs, non_argmax_invariant=early)
        return replace(metadata, logitsprocs=processors)

"""Penalty history: which ids were seen, how often, and until when.

A single step with a hand-made history passes on all of these; several steps compared with a slow
recount do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.reference import ReferenceSession
from refsampler.batch_update import BatchUpdate
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightSampler
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.metadata import SamplingMetadata
from refsampler.penalties import apply_penalties, count_tokens, frequency, presence
from refsampler.positions import all_positions, drafts_of
from refsampler.processors import EngineConfig, LogitsProcessor
from refsampler.request import PLACEHOLDER

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.PENALTY_HISTORY)

_Logits: TypeAlias = Float32[Tensor, "num_tokens vocab"]


@dataclass(frozen=True, slots=True)
class _History:
    """What one row's penalties may see."""

    prompt: Sequence[int]
    output: Sequence[int]


class _Last(LogitsProcessor):
    """Acts after every other processor, hence where the penalties do."""

    def __init__(self, act: Callable[[_Logits], _Logits]) -> None:
        super().__init__(EngineConfig(0, 0), torch.device("cpu"), pin_memory=False)
        self._act = act

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        _ = batch_update

    def apply(self, logits: _Logits) -> _Logits:
        return self._act(logits)


class _OwnPenalties(RightSampler):
    """The reference with penalties that see what `seen` makes of a history.

    Bad words and min tokens keep the true one.
    """

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        if metadata.no_penalties:
            return metadata
        before = metadata.logitsprocs
        last = _Last(lambda logits: self.penalised(logits, metadata))
        processors = (*before.non_argmax_invariant, last)
        after = replace(before, non_argmax_invariant=processors)
        return replace(metadata, no_penalties=True, logitsprocs=after)

    def penalised(self, logits: _Logits, metadata: SamplingMetadata) -> _Logits:
        """Apply the three penalties."""
        vocab = metadata.vocab_size
        assert metadata.prompt_token_ids is not None
        histories = [
            self.seen(_History([token for token in prompt if token < vocab], output))
            for prompt, output in zip(
                metadata.prompt_token_ids.tolist(), metadata.output_token_ids, strict=True
            )
        ]
        return apply_penalties(
            logits,
            count_tokens([one.prompt for one in histories], vocab, logits.device),
            count_tokens([one.output for one in histories], vocab, logits.device),
            metadata.repetition_penalties,
            metadata.frequency_penalties,
            metadata.presence_penalties,
        )

    def seen(self, history: _History) -> _History:
        """Return the history that a row's penalties see."""
        return history


class _NeverRefreshed(ReferenceSession):
    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        super().accept(ids, [(PLACEHOLDER,) * len(one) for one in tokens])


@FAULTS.fault("B026", "vllm-ascend", "vllm-project/vllm-ascend#7785", "penalty.history")
class _PlaceholdersStay(RightEngine):
    """The output keeps its placeholders, since the runner does not refresh it before sampling."""

    session = _NeverRefreshed


@FAULTS.fault("B039", "vLLM MRV2", "vllm-project/vllm#33251", "spec.history")
class _CountedTwice(RightVerifier):
    """From the second draft position on the last committed token is counted twice."""

    def positions(self, metadata: SamplingMetadata) -> SamplingMetadata:
        places = super().positions(metadata)
        outputs = metadata.output_token_ids
        histories = [
            (*outputs[row][-1:], *history) if before else history
            for (row, before), history in zip(
                all_positions(drafts_of(metadata)), places.output_token_ids, strict=True
            )
        ]
        return replace(places, output_token_ids=histories)


# by the index penalty.history; but that the prompt does not count is said by penalty.frequency
@FAULTS.fault(
    "B054",
    "TensorRT-LLM",
    "NVIDIA/TensorRT-LLM#5623",
    "penalty.frequency",
    "penalty.history",
    "batch.size",
)
class _OneWorkspace(_OwnPenalties):
    """Presence and frequency count the prompt too, since all penalties share one counter."""

    def seen(self, history: _History) -> _History:
        return replace(history, output=(*history.prompt, *history.output))


@FAULTS.fault("B089", "vmlx-swift", "osaurus-ai/vmlx-swift#296", "penalty.history")
class _WindowOfTwenty(RightSampler):
    """Presence looks at the last 20 ids in place of the whole output."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        outputs = [tuple(one)[-20:] for one in metadata.output_token_ids]
        return replace(metadata, output_token_ids=outputs)


class _LastAcceptedOnly(ReferenceSession):
    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        super().accept(ids, [tuple(one)[-1:] for one in tokens])


@FAULTS.fault("B098", "SGLang", "sgl-project/sglang#33643", "penalty.history")
class _LastAccepted(RightEngine):
    """Of the tokens accepted in one step only the last becomes history."""

    session = _LastAcceptedOnly


class _AllIsPrompt(ReferenceSession):
    def _schedule(self, ids: Sequence[int]) -> None:
        super()._schedule(ids)
        for name, one in self._waiting.items():
            whole = (*one.request.prompt, *one.request.output)
            request = replace(one.request, prompt=whole, output=())
            self._waiting[name] = replace(one, request=request)


@FAULTS.fault("B104", "vllm-metal", "vllm-project/vllm-metal#128", "history.preempt")
class _ResumedAsPrompt(RightEngine):
    """A request that was preempted comes back with its output taken for prompt."""

    session = _AllIsPrompt


@FAULTS.fault("B135", "NeMo", "NVIDIA-NeMo/Speech#8194", "penalty.repetition", "logprobs.neutral")
class _DividesAndForgets(_OwnPenalties):
    """Negative logits are divided too; the output is history only while logprobs are asked for."""

    def penalised(self, logits: _Logits, metadata: SamplingMetadata) -> _Logits:
        vocab, rows = metadata.vocab_size, len(logits)
        assert metadata.prompt_token_ids is not None
        kept = metadata.max_num_logprobs is not None
        outputs = metadata.output_token_ids if kept else [()] * rows
        prompt = count_tokens(metadata.prompt_token_ids.tolist(), vocab, logits.device)
        output = count_tokens(outputs, vocab, logits.device)
        seen = prompt + output > 0
        divided = torch.where(seen, logits / metadata.repetition_penalties[:, None], logits)
        x = frequency(divided, output, metadata.frequency_penalties)
        return presence(x, output, metadata.presence_penalties)


FAULTS.out_of_scope(
    "B138",
    "KoboldCpp",
    "LostRuins/koboldcpp#1078",
    summary="A sequence penalty falls on another id than the one that followed the earlier match.",
    reason="the contract has no sequence penalties",
)


@FAULTS.fault("B152", "vllm-metal", "vllm-project/vllm-metal#69", "penalty.history")
class _MergedThenSplit(_OwnPenalties):
    """Presence and frequency count the prompt; at the first step repetition does not see it."""

    def seen(self, history: _History) -> _History:
        if not history.output:
            return _History((), ())
        return _History((), (*history.prompt, *history.output))


_LAST_N = 64
"""The engine's window, if a request names none."""


@FAULTS.fault("B190", "llama-cpp-python", "abetlen/llama-cpp-python#1295", "penalty.history")
class _FirstTokens(_OwnPenalties):
    """A window of 64 holds the first ids of prompt and output in place of the last."""

    def seen(self, history: _History) -> _History:
        left = max(0, _LAST_N - len(history.prompt))
        return _History(history.prompt[:_LAST_N], history.output[:left])

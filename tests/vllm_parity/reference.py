"""The reference, run on the same batch and shown through the same fields as vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refsampler.metadata import SamplingMetadata
from refsampler.request import Request
from refsampler.sampler import Sampler, SamplerOutput
from tests.vllm_parity.sides import Gathered, LogprobsMode, Side, fresh_copy

__all__ = ["run"]

WHOLE_ROW: dict[str, Any] = {"max_num_logprobs": -1, "logprob_token_ids": None}
ALL_GREEDY: dict[str, Any] = WHOLE_ROW | {
    "all_greedy": True,
    "all_random": False,
    "temperature": None,
}


def run(logits: Tensor, requests: Sequence[Request], mode: LogprobsMode) -> Side:
    """Call the reference, each time with metadata of its own, hence with fresh generators."""
    given = fresh_copy(logits)
    asked = _call(given, requests, mode, {}, use_fp64_gumbel=False)
    greedy = _call(logits, requests, "processed_logits", ALL_GREEDY)
    return Side(
        ids=asked.sampled_token_ids,
        ids_float64=_call(logits, requests, mode, {}).sampled_token_ids,
        greedy_ids=greedy.sampled_token_ids,
        gathered=_gathered(asked),
        whole=_values(_call(logits, requests, mode, WHOLE_ROW)),
        before_filters=_values(greedy),
        processed=_values(_call(logits, requests, "processed_logits", WHOLE_ROW)),
        mutated=not torch.equal(given, logits),
    )


def _call(
    logits: Tensor,
    requests: Sequence[Request],
    mode: LogprobsMode,
    changes: dict[str, Any],
    *,
    use_fp64_gumbel: bool = True,
) -> SamplerOutput:
    metadata = SamplingMetadata.from_requests(requests, logits.shape[1])
    sampler = Sampler(mode, use_fp64_gumbel=use_fp64_gumbel)
    return sampler(logits, replace(metadata, **changes))


def _values(output: SamplerOutput) -> Tensor:
    assert output.logprobs_tensors is not None
    return output.logprobs_tensors.logprobs


def _gathered(output: SamplerOutput) -> Gathered | None:
    tensors = output.logprobs_tensors
    if tensors is None:
        return None
    return Gathered(tensors.logprob_token_ids, tensors.logprobs, tensors.selected_token_ranks)

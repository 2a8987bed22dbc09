"""The real vLLM 0.25.1 Sampler as an oracle; importable only in the environment of setup_env.py.

Everything between a request and the sampled id is vLLM's: its SamplingParams, its input batch
(which makes the SamplingMetadata as an engine step does), its logits processors, its Sampler.
Nothing of the reference is called here; a `Request` is read as a plain description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from refsampler.params import SamplingParams
from refsampler.request import Request
from tests.vllm_parity.sides import Gathered, LogprobsMode, Side, fresh_copy

__all__ = ["build_metadata", "run"]

CPU = torch.device("cpu")
BLOCK_SIZE = 16
WHOLE_ROW: dict[str, Any] = {"max_num_logprobs": -1, "logprob_token_ids": None}
ALL_GREEDY: dict[str, Any] = WHOLE_ROW | {"all_greedy": True, "all_random": False}


def build_metadata(
    requests: Sequence[Request], vocab_size: int, *, speculative: bool = False
) -> SamplingMetadata:
    """Admit the requests to vLLM's own input batch and return the metadata it makes.

    Args:
        requests: without drafts.
        vocab_size: V.
        speculative: whether the engine decodes speculatively, which leaves out most processors.

    """
    longest = max((len(r.prompt) + len(r.output) for r in requests), default=0) + 1
    size = max(len(requests), 1)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=size),
        speculative_config=SimpleNamespace() if speculative else None,
    )
    batch = InputBatch(
        max_num_reqs=size,
        max_model_len=longest,
        max_num_batched_tokens=longest,
        device=CPU,
        vocab_size=vocab_size,
        block_sizes=[BLOCK_SIZE],
        kernel_block_sizes=[BLOCK_SIZE],
        logitsprocs=build_logitsprocs(config, CPU, False, False),
    )
    for row, request in enumerate(requests):
        batch.add_request(_state(str(row), request))
    batch.refresh_metadata()
    return batch.sampling_metadata


def run(logits: Tensor, metadata: SamplingMetadata, mode: LogprobsMode) -> Side:
    """Call the real Sampler, each time on fresh copies of the logits and of the generators.

    What the asked mode does not show comes from calls that ask for the whole row; vLLM's CPU path
    is the same in every mode.
    """
    given = fresh_copy(logits)
    asked = Sampler(mode)(given, _fresh(metadata))
    wide = Sampler(mode, use_fp64_gumbel=True)(fresh_copy(logits), _fresh(metadata))
    greedy = _shown(logits, metadata, "processed_logits", ALL_GREEDY)
    return Side(
        ids=asked.sampled_token_ids,
        ids_float64=wide.sampled_token_ids,
        greedy_ids=greedy.sampled_token_ids,
        gathered=_gathered(asked),
        whole=_shown(logits, metadata, mode, WHOLE_ROW).logprobs_tensors.logprobs,
        before_filters=greedy.logprobs_tensors.logprobs,
        processed=_shown(logits, metadata, "processed_logits", WHOLE_ROW).logprobs_tensors.logprobs,
        mutated=not torch.equal(given, logits),
    )


def _shown(
    logits: Tensor, metadata: SamplingMetadata, mode: LogprobsMode, changes: dict[str, Any]
) -> SamplerOutput:
    return Sampler(mode)(fresh_copy(logits), replace(_fresh(metadata), **changes))


def _gathered(output: SamplerOutput) -> Gathered | None:
    tensors = output.logprobs_tensors
    if tensors is None:
        return None
    return Gathered(tensors.logprob_token_ids, tensors.logprobs, tensors.selected_token_ranks)


def _fresh(metadata: SamplingMetadata) -> SamplingMetadata:
    """Return the metadata with copies of its generators, at the same place in their streams."""
    copies = {row: generator.clone_state() for row, generator in metadata.generators.items()}
    return replace(metadata, generators=copies)


def _state(name: str, request: Request) -> CachedRequestState:
    """Return what the model runner keeps of a scheduled request."""
    seed = request.params.seed
    return CachedRequestState(
        req_id=name,
        prompt_token_ids=list(request.prompt),
        mm_features=[],
        sampling_params=_params(request.params),
        generator=None if seed is None else torch.Generator(CPU).manual_seed(seed),
        block_ids=([],),
        num_computed_tokens=len(request.prompt) + len(request.output),
        output_token_ids=list(request.output),
    )


def _params(asked: SamplingParams) -> vllm.SamplingParams:
    """Return vLLM's own parameters, completed as its frontend does after tokenising."""
    params = vllm.SamplingParams(
        n=asked.n,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.seed,
        max_tokens=asked.max_tokens,
        min_tokens=asked.min_tokens,
        stop_token_ids=list(asked.stop_token_ids),
        ignore_eos=asked.ignore_eos,
        allowed_token_ids=_listed(asked.allowed_token_ids),
        logit_bias=dict(asked.logit_bias) or None,
        logprobs=asked.logprobs,
        logprob_token_ids=_listed(asked.logprob_token_ids),
    )
    # A temperature below vLLM's floor is a statement about the sampler, which takes it as it is.
    params.temperature = asked.temperature
    params.update_from_generation_config({}, asked.eos_token_id)
    if asked.bad_words_token_ids:
        params._bad_words_token_ids = [list(word) for word in asked.bad_words_token_ids]
    return params


def _listed(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)

"""SamplingMetadata: a batch of requests as tensors, with vLLM's field names and meanings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from jaxtyping import Bool, Float32, Int32, Int64
from torch import Tensor

from refsampler.batch_update import fresh_batch
from refsampler.params import SamplingParams
from refsampler.processors import (
    EngineConfig,
    LogitsProcessor,
    LogitsProcessors,
    build_logitsprocs,
)
from refsampler.request import Request, ThinkingMarkers
from refsampler.thinking import ThinkingBudget

__all__ = ["SamplingMetadata", "generators_of"]


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """One step's batch; row i of every field belongs to row i of the logits.

    Attributes:
        temperature: 0 marks a greedy row; None if every row is greedy.
        all_greedy: the batch has no random row.
        all_random: the batch has no greedy row; never together with all_greedy (`batch.flags`).
        top_p: in (0, 1], 1 is off for that row; None if off for all.
        top_k: 1..V, V is off for that row; None if off for all.
        generators: row -> torch generator of a request with a seed.
        max_num_logprobs: None is none, 0 the sampled id, N the top N, -1 the full row.
        no_penalties: no row has a penalty; the penalty fields are then not read.
        prompt_token_ids: prompts padded on the right with V; None without penalties.
        output_token_ids: ids generated so far, live; may hold -1 placeholders.
        allowed_token_ids_mask: True is forbidden; None if no row has an allow-list.
        bad_words_token_ids: row -> its bad words.
        logitsprocs: processors in two lists, by whether they may move the argmax.
        logprob_token_ids: row -> ids whose logprobs it wants, or None.
        spec_token_ids: drafts scheduled for each row, or None.
        thinking_budget_state_holder: None without thinking markers.
        steps: ids that each request has drawn before this step (beyond vLLM's fields).
        vocab_size: V, the width that the fields above were made for (beyond vLLM's fields).

    """

    temperature: Float32[Tensor, " num_tokens"] | None
    all_greedy: bool
    all_random: bool
    top_p: Float32[Tensor, " num_tokens"] | None
    top_k: Int32[Tensor, " num_tokens"] | None
    generators: Mapping[int, torch.Generator]
    max_num_logprobs: int | None
    no_penalties: bool
    prompt_token_ids: Int64[Tensor, "num_tokens prompt"] | None
    frequency_penalties: Float32[Tensor, " num_tokens"]
    presence_penalties: Float32[Tensor, " num_tokens"]
    repetition_penalties: Float32[Tensor, " num_tokens"]
    output_token_ids: Sequence[Sequence[int]]
    allowed_token_ids_mask: Bool[Tensor, "num_tokens vocab"] | None
    bad_words_token_ids: Mapping[int, Sequence[Sequence[int]]]
    logitsprocs: LogitsProcessors
    logprob_token_ids: Mapping[int, Sequence[int]] | None
    spec_token_ids: Sequence[Sequence[int]] | None
    thinking_budget_state_holder: ThinkingBudget | None
    steps: Sequence[int]
    vocab_size: int

    @classmethod
    def from_requests(
        cls,
        requests: Sequence[Request],
        vocab_size: int,
        *,
        device: torch.device | str = "cpu",
        custom: Sequence[type[LogitsProcessor]] = (),
        thinking: ThinkingMarkers | None = None,
        generators: Mapping[int, torch.Generator] | None = None,
        steps: Sequence[int] | None = None,
        speculative: bool = False,
    ) -> Self:
        """Build the metadata of a fresh batch in one call.

        Args:
            requests: one a row.
            vocab_size: V, the width of the logits.
            device: where tensors and generators live.
            custom: processors beside the built-in ones (ValueError when speculative).
            thinking: markers of the model's thinking section.
            generators: of requests that have drawn before; fresh ones if None.
            steps: ids each request has drawn before; 0 if None.
            speculative: whether drafts are verified (clause `spec.processors`).

        Raises:
            ParameterError: a parameter or id is out of range (clause `input.validated`).
            ValueError: a processor or parameter that speculative decoding refuses.

        """
        for request in {id(one): one for one in requests}.values():  # equal rows may be one object
            request.verify(vocab_size)
        if thinking is not None:
            thinking.verify(vocab_size)
        where = torch.device(device)
        config = EngineConfig(vocab_size, max(1, len(requests)), speculative=speculative)
        processors = build_logitsprocs(config, where, custom=custom)
        processors.validate([request.params for request in requests])
        processors.update_state(fresh_batch(requests))
        return cls.assemble(
            requests,
            [request.output for request in requests],
            vocab_size,
            logitsprocs=processors,
            generators=generators_of(requests, where) if generators is None else generators,
            thinking=ThinkingBudget.of(requests, thinking),
            steps=[0] * len(requests) if steps is None else steps,
            device=where,
        )

    @classmethod
    def assemble(
        cls,
        requests: Sequence[Request],
        outputs: Sequence[Sequence[int]],
        vocab_size: int,
        *,
        logitsprocs: LogitsProcessors,
        generators: Mapping[int, torch.Generator],
        thinking: ThinkingBudget | None,
        steps: Sequence[int],
        device: torch.device,
    ) -> Self:
        """Lay requests out as tensors beside state that lives longer than a step.

        `outputs` replaces the requests' own: live lists of a persistent batch.
        """
        params = [request.params for request in requests]
        greedy = [one.greedy for one in params]
        penalised = any(one.penalised for one in params)
        rows = list(enumerate(params))

        floats = partial(torch.tensor, dtype=torch.float32, device=device)
        return cls(
            temperature=None if all(greedy) else floats(_temperatures(params)),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            top_p=floats([p.top_p for p in params]) if any(p.top_p < 1 for p in params) else None,
            top_k=_top_k(params, vocab_size, device),
            generators=generators,
            max_num_logprobs=_max_num_logprobs(params, vocab_size),
            no_penalties=not penalised,
            prompt_token_ids=_padded_prompts(requests, vocab_size, device) if penalised else None,
            frequency_penalties=floats([one.frequency_penalty for one in params]),
            presence_penalties=floats([one.presence_penalty for one in params]),
            repetition_penalties=floats([one.repetition_penalty for one in params]),
            output_token_ids=outputs,
            allowed_token_ids_mask=_forbidden(params, vocab_size, device),
            bad_words_token_ids={
                row: one.bad_words_token_ids for row, one in rows if one.bad_words_token_ids
            },
            logitsprocs=logitsprocs,
            logprob_token_ids={
                row: one.logprob_token_ids for row, one in rows if one.logprob_token_ids
            }
            or None,
            spec_token_ids=_drafts(requests),
            thinking_budget_state_holder=thinking,
            steps=steps,
            vocab_size=vocab_size,
        )


def generators_of(
    requests: Sequence[Request], device: torch.device
) -> Mapping[int, torch.Generator]:
    """Return a fresh generator for every row whose request has a seed (`seed.reproducible`)."""
    return {
        row: torch.Generator(device=device).manual_seed(request.params.seed)
        for row, request in enumerate(requests)
        if request.params.seed is not None
    }


def _temperatures(params: Sequence[SamplingParams]) -> Sequence[float]:
    """Return 0 for a greedy row, as vLLM's input batch stores it."""
    return [0.0 if one.greedy else one.temperature for one in params]


def _top_k(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> Int32[Tensor, " num_tokens"] | None:
    """Return k a row, V where it is off; None if it is off for all (clause `top-k.off`)."""
    effective = [one.top_k if 0 < one.top_k < vocab_size else vocab_size for one in params]
    if all(k == vocab_size for k in effective):
        return None
    return torch.tensor(effective, dtype=torch.int32, device=device)


def _max_num_logprobs(params: Sequence[SamplingParams], vocab_size: int) -> int | None:
    """Return the largest number asked for; -1 in a request counts as V.

    A row with a list asks for its list, not for a number.
    """
    wanted = [
        vocab_size if one.logprobs == -1 else one.logprobs
        for one in params
        if one.logprobs is not None and not one.logprob_token_ids
    ]
    return max(wanted, default=None)


def _padded_prompts(
    requests: Sequence[Request], vocab_size: int, device: torch.device
) -> Int64[Tensor, "num_tokens prompt"]:
    """Pad the prompts on the right with V, one past the last id."""
    longest = max(len(request.prompt) for request in requests)
    rows = [
        (*request.prompt, *[vocab_size] * (longest - len(request.prompt))) for request in requests
    ]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(requests), longest)


def _forbidden(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> Bool[Tensor, "num_tokens vocab"] | None:
    """Return True where an id is forbidden; rows without a list forbid nothing."""
    if all(one.allowed_token_ids is None for one in params):
        return None
    limited = torch.tensor([one.allowed_token_ids is not None for one in params], device=device)
    allowed = [
        row * vocab_size + token
        for row, one in enumerate(params)
        for token in one.allowed_token_ids or ()
        if 0 <= token < vocab_size
    ]
    cells = torch.tensor(allowed, dtype=torch.int64, device=device)
    forbidden = limited.repeat_interleave(vocab_size).index_fill(0, cells, False)
    return forbidden.reshape(len(params), vocab_size)


def _drafts(requests: Sequence[Request]) -> Sequence[Sequence[int]] | None:
    """Return the drafts of each row, or None if no row has any."""
    if not any(request.drafts for request in requests):
        return None
    return [request.drafts for request in requests]

"""Drafts: ids that somebody proposed, the laws that they were drawn from, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Float64, Int, Int64
from torch import Tensor

from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.request import PLACEHOLDER
from refsampler.sampler import Sampler, temperatures
from refsampler.validation import ParameterError

__all__ = ["MOST_DRAFTS", "Proposed", "check_drafts", "draft_laws", "propose"]

MOST_DRAFTS = 128
"""Most drafts of a request in one step, as in vLLM 0.25.1."""

_SUM_TOLERANCE = 1e-2
"""A draft law in half precision sums to 1 only so nearly; logits given as laws are far off."""


class Proposed(NamedTuple):
    """One draft of each request, and the laws that they were drawn from (`spec.draft-law`)."""

    ids: Int64[Tensor, " requests"]
    probs: Float32[Tensor, "requests vocab"]


def draft_laws(
    draft_ids: Int[Tensor, " drafts"],
    draft_probs: Float[Tensor, "drafts vocab"] | None,
    vocab_size: int,
) -> Float64[Tensor, "drafts vocab"]:
    """Return the law of each draft: as given, else certain of it; a placeholder has no mass.

    Without mass the residual is the target itself, which is what has to be emitted where there was
    no draft.
    """
    certain = draft_ids[:, None] == torch.arange(vocab_size, device=draft_ids.device)
    laws = certain.double() if draft_probs is None else draft_probs.double()
    return torch.where((draft_ids == PLACEHOLDER)[:, None], 0.0, laws)


def propose(
    sampler: Sampler, logits: Float[Tensor, "requests vocab"], metadata: SamplingMetadata
) -> Proposed:
    """Draw one draft of each request as the sampler draws ids, and tell the law that it came from.

    A greedy request's draft is certain.

    Args:
        sampler: of the draft model.
        logits: of the draft model, one row a request.
        metadata: the batch, whose output ends in the drafts that it has already.

    """
    mode = "processed_logprobs"
    asked = replace(metadata, max_num_logprobs=-1, logprob_token_ids=None)
    output = sampler(logits, asked, logprobs_mode=mode)
    ids = output.sampled_token_ids[:, 0].long()
    assert output.logprobs_tensors is not None
    greedy = temperatures(metadata, output.logprobs_tensors.logprobs) < GREEDY_EPSILON
    certain = draft_laws(ids, None, logits.shape[1]).float()
    return Proposed(
        ids, torch.where(greedy[:, None], certain, output.logprobs_tensors.logprobs.exp())
    )


def check_drafts(
    draft_ids: Int[Tensor, " drafts"],
    draft_probs: Float[Tensor, "laws width"] | None,
    logits: Float[Tensor, "positions vocab"],
    metadata: SamplingMetadata,
    drafts: Sequence[Sequence[int]],
) -> None:
    """Refuse what does not fit together, before anything is drawn.

    Args:
        draft_ids: of all requests in one row.
        draft_probs: the law of each, or None.
        logits: a row for each draft and one more for each request.
        metadata: the batch.
        drafts: of each request.

    Raises:
        ValueError: names what is refused, and what is allowed.

    """
    if not metadata.logitsprocs.speculative:
        allowed = "a batch made for speculative decoding: no custom processor, min-p or logit bias"
        raise ParameterError("metadata.logitsprocs", metadata.logitsprocs, allowed)
    longest = max((len(ids) for ids in drafts), default=0)
    if longest > MOST_DRAFTS:
        raise ParameterError("drafts", f"{longest} ids", f"at most {MOST_DRAFTS} a request")
    flat = [token for ids in drafts for token in ids]
    if draft_ids.is_floating_point() or draft_ids.tolist() != flat:
        raise ParameterError("draft_ids", draft_ids.tolist(), f"spec_token_ids in a row, {flat}")
    shape = (len(flat) + len(drafts), metadata.vocab_size)
    if tuple(logits.shape) != shape:
        allowed = f"{shape}, one row for each draft and one more for each request"
        raise ParameterError("logits.shape", tuple(logits.shape), allowed)
    if draft_probs is not None:
        _check_laws(draft_probs, draft_ids, (len(flat), metadata.vocab_size))


def _check_laws(
    draft_probs: Float[Tensor, "laws width"],
    draft_ids: Int[Tensor, " drafts"],
    shape: tuple[int, int],
) -> None:
    """Refuse laws that are none, such as logits (clause `spec.draft-law`)."""
    if tuple(draft_probs.shape) != shape:
        raise ParameterError(
            "draft_probs.shape", tuple(draft_probs.shape), f"{shape}, a row a draft"
        )
    laws = draft_probs.double()[draft_ids != PLACEHOLDER]
    right = (laws >= 0).all(-1) & ((laws.sum(-1) - 1).abs() <= _SUM_TOLERANCE)
    if not bool(right.all()):
        row = int((~right).nonzero()[0])
        allowed = "probabilities that sum to 1"
        raise ParameterError("draft_probs", f"a row of sum {laws[row].sum():.3g}", allowed)

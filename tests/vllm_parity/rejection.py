"""The real vLLM 0.25.1 V1 rejection sampler; its kernels run in Triton's interpreter.

Importable only in the environment of setup_env.py, and after `interpreter.install`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from refsampler.request import Request
from tests.vllm_parity import oracle

__all__ = ["scheduled", "verify"]


def verify(
    requests: Sequence[Request], logits: Tensor, draft_probs: Tensor | None
) -> list[list[int]]:
    """Return what each request emits; every race is in float64, as in the reference.

    Args:
        requests: with their drafts, one of them at least.
        logits: of each request its drafts' rows and its bonus row.
        draft_probs: a row a draft, None if drafts are certain.

    """
    plain = [replace(one, drafts=()) for one in requests]
    metadata = oracle.build_metadata(plain, logits.shape[1], speculative=True)
    drafts = [list(one.drafts) for one in requests]
    # the input batch fills this when a step is scheduled
    metadata = replace(metadata, spec_token_ids=drafts)
    sampler = RejectionSampler(Sampler(use_fp64_gumbel=True))
    output = sampler(scheduled(drafts), draft_probs, logits.clone(), metadata)
    emitted: list[list[int]]
    emitted, _ = RejectionSampler.parse_output(output.sampled_token_ids, logits.shape[1])
    return emitted


def scheduled(drafts: Sequence[Sequence[int]]) -> SpecDecodeMetadata:
    """Return where the rows of each request lie."""

    def ids(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    sizes = [len(one) for one in drafts]
    ends = list(accumulate(size + 1 for size in sizes))
    starts = [end - size - 1 for end, size in zip(ends, sizes, strict=True)]
    targets = [start + at for start, size in zip(starts, sizes, strict=True) for at in range(size)]
    return SpecDecodeMetadata(
        draft_token_ids=ids([token for one in drafts for token in one]),
        num_draft_tokens=sizes,
        cu_num_draft_tokens=ids(list(accumulate(sizes))),
        cu_num_sampled_tokens=ids(ends),
        target_logits_indices=ids(targets),
        bonus_logits_indices=ids([end - 1 for end in ends]),
        logits_indices=ids(range(ends[-1])),
    )

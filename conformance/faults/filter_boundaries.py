"""Filter boundaries: one id too many or too few, sentinels that mean something else.

Continuous random logits never tie and never sit on an edge, so tests with them pass on all of these.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.FILTER_BOUNDARIES)


@FAULTS.fault("B106", "tpu-inference", "vllm-project/tpu-inference#1386", "top-k.off")
class _OffMeansOne(RightKernel):
    """A top-k that is off is rewritten to 1, so that every default request is greedy."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        vocab = x.shape[-1]
        if rows.top_k is None:
            top_k = torch.ones(len(x), dtype=torch.int32)
        else:
            top_k = torch.where(rows.top_k >= vocab, 1, rows.top_k)
        return super().filtered(x, replace(rows, top_k=top_k))


@FAULTS.fault("B114", "llama.cpp", "ggml-org/llama.cpp#1953", "top-p.keep")
class _LargestPrefixBelow(RightKernel):
    """The nucleus is the largest prefix of mass at most p, so it lacks the id that crosses p."""

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        ranked, order = x.double().sort(dim=-1, descending=True, stable=True)
        up_to = torch.softmax(ranked, dim=-1).cumsum(dim=-1)
        kept = (up_to <= top_p.double()[:, None]) | (top_p[:, None] >= 1)
        kept[:, 0] = True
        return torch.zeros_like(kept).scatter(-1, order, kept)

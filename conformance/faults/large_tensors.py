"""Large tensors: rows times vocabulary beyond what 32 bits can count.

Every small shape is exact.  Here the index ends at 2^22 elements, and the suite is told so.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.LARGE_TENSORS)

_END: Final = 2**22
"""Where the signed index ends; the unsigned one ends at twice that."""


@FAULTS.fault("B006", "PyTorch", "pytorch/pytorch#95455", "output.range", index_elements=_END)
class _TopKIndices(RightKernel):
    """The top-k of a very large tensor returns indices over two thousand million."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        ids = super().draw(logits, rows)
        if rows.top_k is None:
            return ids
        offset = torch.arange(len(ids)) * logits.shape[-1]
        return torch.where(offset >= _END, ids + 2_000_000_000, ids)


@FAULTS.fault("B024", "vLLM MRV2", "vllm-project/vllm#46560", "input.large", index_elements=_END)
class _NegativeOffset(RightKernel):
    """Row times vocabulary is a 32-bit product: it turns negative and the kernel faults."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        if logits.numel() > _END:
            raise RuntimeError("an illegal memory access was encountered")
        return super().draw(logits, rows)


@FAULTS.fault(
    "B073", "FlashInfer", "flashinfer-ai/flashinfer#2937", "input.large", index_elements=_END
)
class _UnsignedOffset(RightKernel):
    """The row offset is an unsigned 32-bit number, so rows beyond 2^32 elements read the first."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        vocab = logits.shape[-1]
        read = torch.arange(len(logits)) * vocab % (2 * _END) // vocab
        if logits.numel() > 2 * _END:
            logits = logits[read]
        return super().draw(logits, rows)


@FAULTS.fault("B085", "SGLang", "sgl-project/sglang#35571", "input.large", index_elements=_END)
class _WritesOverTheFirst(RightKernel):
    """A 32-bit product in the top-k renormalisation writes late rows over the first ones."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        kept = super().filtered(x, rows)
        first = -(-_END // x.shape[-1])
        if rows.top_k is None or len(x) <= first:
            return kept
        late = kept[first : 2 * first]
        return torch.cat([late, kept[len(late) : first], x[first:]])

"""Garbage ids: numbers that are no token, from rows, dtypes or processes that tests do not have.

Inputs of tests are finite, of one dtype, and asked in a warm process.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightKernel, RightSampler
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.metadata import SamplingMetadata
from refsampler.processors import MinP
from refsampler.request import Request
from refsampler.sampler import SamplerOutput

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.GARBAGE_IDS)

_GARBAGE = 4_607_182_418_800_017_408
"""The bits of 1.0 in float64 as an integer: what unwritten memory looks like."""


@FAULTS.fault("B038", "PyTorch on CUDA", "pytorch/pytorch#871", "input.extreme")
class _SumOverflows(RightKernel):
    """Unnormalised weights are summed in float32; where the sum overflows the id is garbage."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        overflows = x.exp().sum(dim=-1).isinf()
        return torch.where(overflows, _GARBAGE, super().drawn(x, rows))


@FAULTS.fault("B042", "PyTorch on CUDA", "pytorch/pytorch#2044", "input.dtypes")
class _GarbageFromDouble(RightSampler):
    """Float64 weights meet a kernel made for another scalar type, and every id is garbage."""

    def sample(
        self,
        logits: Float[Tensor, "B V"],
        metadata: SamplingMetadata,
        *,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        output = super().sample(logits.float(), metadata, logprobs_mode=logprobs_mode)
        if logits.dtype != torch.float64:
            return output
        # the low half of the bits, read as an id
        ids = torch.full_like(output.sampled_token_ids, 2**31 - 1)
        return replace(output, sampled_token_ids=ids)


@FAULTS.fault("B044", "Tenstorrent", "tenstorrent/tt-metal#31321", "output.range")
class _ColdStart(RightKernel):
    """The random state is unset before a seed is first given: negative ids in the first 128 calls."""

    def __init__(self) -> None:
        self._calls = 0

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        self._calls += 128 if rows.generators else 1
        ids = super().drawn(x, rows)
        return ids if self._calls > 128 else -1 - ids


@FAULTS.fault("B053", "TensorFlow", "tensorflow/tensorflow#2774", "temperature.scale")
class _NoMaximumSubtracted(RightKernel):
    """The exponential is taken without subtracting the maximum, so logits of +-1000 give id V."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        total = x.exp().sum(dim=-1)
        lost = total.isinf() | (total == 0)
        return torch.where(lost, x.shape[-1], super().drawn(x, rows))


@FAULTS.fault("B072", "vLLM", "vllm-project/vllm#41834", "spec.degenerate")
class _EmptyResidual(RightVerifier):
    """Where nothing is left of the residual, the argmax over zeros is emitted."""

    def recovered(
        self, p: Float32[Tensor, "B V"], q: Float32[Tensor, "B V"], noise: Float32[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        return ((p - q).clamp(min=0) / noise).argmax(-1)


class _WrappingIds(ReferenceSession):
    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        listed = request.params.logprob_token_ids
        if listed:
            vocab = self._batch.vocab_size
            # as indexing does: -1 is the last one, and V is found out in the kernel
            wrapped = tuple(one % vocab if one < 0 else one for one in listed)
            params = replace(request.params, logprob_token_ids=None)
            object.__setattr__(params, "logprob_token_ids", wrapped)
            request = replace(request, params=params)
        super().add(id, request)


@FAULTS.fault("B077", "SGLang", "sgl-project/sglang#28088", "input.validated")
class _NegativeIdWraps(RightEngine):
    """A negative requested logprob id gives the logprob of an id counted from the end."""

    session = _WrappingIds


@FAULTS.fault("B116", "SGLang", "sgl-project/sglang#33695", "refuse.unsupported")
class _SeedTripsOverMinP(RightSampler):
    """The seeded draw was written for the unfiltered order, so min-p with a seed trips an assertion."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        filters = metadata.logitsprocs.argmax_invariant
        filtered = any(isinstance(one, MinP) and one.min_p is not None for one in filters)
        if metadata.generators and filtered:
            raise AssertionError("sorted_indices is None")
        return metadata


@FAULTS.fault("B131", "FlashInfer", "flashinfer-ai/flashinfer#384", "output.range")
class _NoRoundAccepts(RightKernel):
    """No round of rejection accepts a row of one id with top-k off, and its id is never written."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        single = torch.softmax(x, dim=-1).amax(dim=-1) == 1
        vocab = x.shape[-1]
        off = torch.ones_like(single) if rows.top_k is None else rows.top_k >= vocab
        joint = rows.top_k is not None or rows.top_p is not None
        return torch.where(single & off & joint, 2**30 - 1, super().drawn(x, rows))


@FAULTS.fault("B137", "tt-xla", "tenstorrent/tt-xla#3253", "top-k.keep")
class _SortLosesIds(RightKernel):
    """A bitonic sort moves values and indices by two comparisons: tied ids come twice or never."""

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        order = _bitonic_order(x)[:, : x.shape[-1]].clamp(max=x.shape[-1] - 1)
        wanted = torch.arange(x.shape[-1]) < top_k[:, None]
        kept = torch.zeros(x.shape, dtype=torch.int8)
        return kept.scatter_reduce(-1, order, wanted.to(torch.int8), "amax") > 0


def _bitonic_order(x: Float32[Tensor, "B V"]) -> Int64[Tensor, "B W"]:
    """Return what the network gives as the descending order of a row, padded to a power of two."""
    rows, vocab = x.shape
    width = 1 << max(vocab - 1, 1).bit_length()
    values = torch.nn.functional.pad(x, (0, width - vocab), value=-torch.inf)
    ids = torch.arange(width).expand(rows, -1)
    lanes = torch.arange(width)
    size = 2
    while size <= width:
        step = size // 2
        while step:
            other = lanes ^ step
            first = (lanes & step) == 0
            descending = ((lanes & size) == 0) == first
            theirs = values[:, other]
            # a tie swaps the index on one side only
            take = torch.where(descending, theirs > values, theirs < values)
            take_id = torch.where(descending, theirs > values, theirs <= values)
            values, ids = (
                torch.where(take, theirs, values),
                torch.where(take_id, ids[:, other], ids),
            )
            step //= 2
        size *= 2
    return ids

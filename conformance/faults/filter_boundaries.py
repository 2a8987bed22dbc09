"""Filter boundaries: one id too many or too few, sentinels that mean something else.

Continuous random logits never tie and never sit on an edge, so tests with them pass on all of these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from refsampler.backends.protocol import Feature, Rows
from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightKernel, RightSampler
from refsampler.conformance.faults.rowwise import MisplacedMass
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.draw import Drawn
from refsampler.metadata import SamplingMetadata
from refsampler.request import Request
from refsampler.sampler import SamplerOutput
from refsampler.speculative import Verified

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.FILTER_BOUNDARIES)


def _off(x: Float32[Tensor, "B V"], rows: Rows) -> Bool[Tensor, " B"]:
    """Return the rows without top-k."""
    if rows.top_k is None:
        return torch.ones(len(x), dtype=torch.bool)
    return rows.top_k >= x.shape[-1]


@FAULTS.fault("B027", "lattice", "ohdearquant/lattice#225", "top-k.off")
class _NothingLeft(RightKernel):
    """A top-k of 0 leaves no candidate, and the loop over them falls through to id 0."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        return torch.where(_off(x, rows), 0, super().drawn(x, rows))


class _Int32(ReferenceSession):
    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        torch.tensor([request.params.top_k], dtype=torch.int32)
        super().add(id, request)


@FAULTS.fault("B030", "SGLang", "sgl-project/sglang#17788", "input.extreme")
class _TopKInInt32(RightEngine):
    """A top-k beyond 2^31 - 1 does not fit the int32 tensor it is put into, and the engine dies."""

    session = _Int32


@FAULTS.fault("B041", "vLLM", "vllm-project/vllm#7218", "output.vocab-padding")
class _FirstAxis(RightVerifier):
    """Padding is cut off the first axis in place of the last, and what is read there is old."""

    def verify(
        self,
        draft_ids: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> Verified:
        padding = logits.isneginf().all(dim=0).flip(0).cumprod(dim=0).sum()
        real = max(logits.shape[1] - int(padding), 1) if padding else len(logits)
        rows = torch.arange(len(logits)).clamp(max=real - 1)
        return super().verify(draft_ids, draft_probs, logits[rows], metadata)


@FAULTS.fault("B055", "gluon-nlp", "dmlc/gluon-nlp#1481", "relabel.equivariance")
class _VocabularyOrder(RightKernel):
    """Top-p cuts in the order of ids, since the running sum is taken without a sort."""

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        probs = torch.softmax(x.double(), dim=-1)
        above = probs.cumsum(dim=-1) - probs
        return (above < top_p[:, None]) | (top_p[:, None] >= 1)


@FAULTS.fault("B059", "onnxruntime-genai", "microsoft/onnxruntime-genai#1363", "draw.law")
class _FallsOffTheEnd(MisplacedMass):
    """A uniform beyond the kept mass falls off the loop, and the least likely of the top-k comes."""

    def heir(self, x: Float32[Tensor, "B V"], kept: Bool[Tensor, "B V"]) -> Int64[Tensor, " B"]:
        return torch.where(x > -torch.inf, x, torch.inf).argmin(dim=-1)


@FAULTS.fault("B076", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#19485", "top-p.off", "batch.isolation")
class _NeverReached(RightKernel):
    """The float32 running sum stays below a top-p near 1, so the search ends at V and indexes it."""

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        ranked, _ = torch.softmax(x, dim=-1).sort(dim=-1, descending=True)
        # torch adds in float64 on a CPU, a kernel does not
        sums = np.cumsum(ranked.numpy(), axis=-1, dtype=np.float32)
        below = torch.from_numpy(sums) < top_p[:, None]
        if (below.all(dim=-1) & (top_p < 1)).any():
            raise IndexError("index out of bounds: device-side assert triggered")
        return super().kept_top_p(x, top_p)


@FAULTS.fault("B088", "routing-transformer", "lucidrains/routing-transformer#1", "top-k.keep")
class _SortedOrder(RightKernel):
    """The filtered logits come back in sorted order, attached to the wrong ids."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        kept = super().filtered(x, rows)
        if rows.top_k is None and rows.top_p is None:
            return kept
        order = x.argsort(dim=-1, descending=True, stable=True)
        return kept.gather(-1, order)


class _OutOfBounds(ReferenceSession):
    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        if request.params.top_k > self._batch.vocab_size:
            raise RuntimeError("read past the end of the scores")
        super().add(id, request)


@FAULTS.fault("B101", "onnxruntime-genai", "microsoft/onnxruntime-genai#2224", "top-k.off")
class _BeyondTheVocabulary(RightEngine):
    """A top-k above V reads past the end of the scores."""

    session = _OutOfBounds


@FAULTS.fault("B106", "tpu-inference", "vllm-project/tpu-inference#1386", "top-k.off")
class _OffMeansOne(RightKernel):
    """A top-k that is off is rewritten to 1, so that every default request is greedy."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        all_k = torch.full((len(x),), x.shape[-1]) if rows.top_k is None else rows.top_k
        top_k = torch.where(_off(x, rows), 1, all_k).int()
        return super().filtered(x, replace(rows, top_k=top_k))


class _Prefix(RightKernel):
    """Top-p by a count of the descending order."""

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        ranked, order = x.double().sort(dim=-1, descending=True, stable=True)
        probs = torch.softmax(ranked, dim=-1)
        kept = self.prefix(probs, top_p.double()[:, None]) | (top_p[:, None] >= 1)
        kept[:, 0] = True
        return torch.zeros_like(kept).scatter(-1, order, kept)

    def prefix(
        self, probs: Float[Tensor, "B V"], top_p: Float[Tensor, "B 1"]
    ) -> Bool[Tensor, "B V"]:
        """Return which places of the order stay."""
        return probs.cumsum(dim=-1) - probs < top_p


@FAULTS.fault("B114", "llama.cpp", "ggml-org/llama.cpp#1953", "top-p.keep")
class _LargestPrefixBelow(_Prefix):
    """The nucleus is the largest prefix of mass at most p, so it lacks the id that crosses p."""

    def prefix(
        self, probs: Float[Tensor, "B V"], top_p: Float[Tensor, "B 1"]
    ) -> Bool[Tensor, "B V"]:
        return probs.cumsum(dim=-1) <= top_p


@FAULTS.fault("B127", "Hugging Face transformers", "huggingface/transformers#18976", "top-p.keep")
class _EqualityGoesOn(_Prefix):
    """Where the mass equals p exactly one id too many stays.

    The filtered logits are shown, as those of a logits warper are: of equal ids alone is the mass
    exact in float32, and no draw tells how many of those were kept.
    """

    capabilities = replace(
        RightKernel.capabilities,
        features=RightKernel.capabilities.features | {Feature.PROCESSED},
    )

    def draw(  # type: ignore[override]  # a kernel may return either
        self, logits: Float[Tensor, "B V"], rows: Rows
    ) -> Drawn:
        self._kept = logits.float()
        return Drawn(super().draw(logits, rows), self._kept)

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        self._kept = x
        return super().drawn(x, rows)

    def prefix(
        self, probs: Float[Tensor, "B V"], top_p: Float[Tensor, "B 1"]
    ) -> Bool[Tensor, "B V"]:
        return probs.cumsum(dim=-1) - probs <= top_p


@FAULTS.fault("B128", "vLLM", "vllm-project/vllm#14301", "batch.isolation")
class _OffTakesTheNeighbours(RightKernel):
    """Rows without top-k are cut at the smallest k of the batch once any row has one."""

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        off = top_k >= x.shape[-1]
        return super().kept_top_k(x, torch.where(off, top_k.min(), top_k))


@FAULTS.fault("B182", "FlashInfer", "flashinfer-ai/flashinfer#2202", "top-p.keep")
class _PivotStopsEarly(_Prefix):
    """For some vocabulary sizes the search for the pivot stops one id early."""

    def prefix(
        self, probs: Float[Tensor, "B V"], top_p: Float[Tensor, "B 1"]
    ) -> Bool[Tensor, "B V"]:
        kept = super().prefix(probs, top_p)
        # as of V = 500: the last block of four is alone in its round
        return kept & kept.roll(-1, dims=-1) if probs.shape[-1] % 8 == 4 else kept


@FAULTS.fault("B187", "mlx-vlm", "Blaizzy/mlx-vlm#1917", "output.vocab-padding")
class _PaddedUnlessGuided(RightSampler):
    """Padding has finite logits, and only rows with an allow-list are kept from drawing it."""

    def sample(
        self,
        logits: Float[Tensor, "B V"],
        metadata: SamplingMetadata,
        *,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        # ids at the end that are banned in every row stand for the padding of the engine's head
        padding = logits.isneginf().all(dim=0).flip(0).cumprod(dim=0).flip(0).bool()
        if padding.all():
            padding = torch.zeros_like(padding)
        padded = torch.where(padding, 5.0, logits)
        return super().sample(padded, metadata, logprobs_mode=logprobs_mode)

"""Frozen noise: every draw has the right law, and the draws depend on each other.

Marginal frequencies are right on all of these; only pairs of draws tell.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightKernel
from refsampler.conformance.faults.verifiers import RightVerifier
from refsampler.drafts import Proposed
from refsampler.draw import exponential_noise, race
from refsampler.metadata import SamplingMetadata

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.FROZEN_NOISE)

_Generators = Mapping[int, torch.Generator]


@FAULTS.fault("B004", "vLLM", "vllm-project/vllm#11953", "seed.effect")
class _SeedZero(RightEngine):
    """Every replica starts from seed 0, so that all generate the same."""

    def open(self, vocab: int, seed: int) -> ReferenceSession:
        return super().open(vocab, 0)


@FAULTS.fault("B034", "vLLM MRV2", "vllm-project/vllm#47386", "spec.law")
class _RaceOfTheDraft(RightVerifier):
    """The recovery draw reuses the noise that chose the rejected draft."""

    def __init__(self) -> None:
        super().__init__()
        self._raced = torch.empty(0, 0)

    def draft(self, logits: Float32[Tensor, "B V"], metadata: SamplingMetadata) -> Proposed:
        proposed = super().draft(logits, metadata)
        self._raced = exponential_noise(proposed.probs, metadata.generators)
        return proposed._replace(ids=race(proposed.probs, self._raced))

    def noise(
        self, sizes: Int64[Tensor, " B"], like: Float32[Tensor, "drafts V"], generators: _Generators
    ) -> tuple[Tensor, Float32[Tensor, "B V"]]:
        uniforms, races = super().noise(sizes, like, generators)
        return uniforms, self._raced if self._raced.shape == races.shape else races


_TABLE = 2**16
"""Numbers in the noise table."""


@FAULTS.fault("B071", "vLLM CPU", "vllm-project/vllm#59786", "independence.rows")
class _NoiseTable(RightKernel):
    """Rows read their noise from one table, each in a window that begins one number later."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._table = torch.empty(_TABLE, dtype=torch.float64).exponential_(generator=generator)

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        fresh = torch.randint(_TABLE, (1,)) + torch.arange(len(x))
        start = torch.where(rows.seeded, (rows.seed + rows.step) % _TABLE, fresh)
        window = (start[:, None] + torch.arange(x.shape[1])) % _TABLE
        return self.raced(torch.softmax(x.double(), dim=-1), self._table[window])


@FAULTS.fault("B087", "imp", "kekzl/imp#1143", "seed.effect")
class _AffineInTheSeed(RightKernel):
    """Seed plus step goes through one step of an LCG, so that neighbours draw nearly the same."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        fresh = torch.randint(2**32, (len(x),))
        counter = torch.where(rows.seeded, rows.seed + rows.step, fresh) % 2**32
        u = ((1664525 * counter + 1013904223) % 2**32).double() / 2**32
        edges = torch.softmax(x.double(), dim=-1).cumsum(dim=-1)
        reached = edges > u[:, None] * edges[:, -1:]
        return reached.int().argmax(dim=-1)


@FAULTS.fault("B092", "TensorRT-Edge-LLM", "NVIDIA/TensorRT-Edge-LLM#211", "independence.calls")
class _OffsetZero(RightKernel):
    """Every call draws from seed 42 at offset 0."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: _Generators
    ) -> Float64[Tensor, "B V"]:
        fixed = torch.Generator().manual_seed(42)
        return torch.empty_like(like).exponential_(generator=fixed)


@FAULTS.fault("B146", "FlashInfer", "flashinfer-ai/flashinfer#2132", "independence.calls")
class _BakedIn(RightKernel):
    """Seed and offset are scalars of the call that was captured, and every replay repeats them."""

    def __init__(self) -> None:
        self._captured: dict[torch.Size, Tensor] = {}

    def noise(
        self, like: Float64[Tensor, "B V"], generators: _Generators
    ) -> Float64[Tensor, "B V"]:
        state = self._captured.setdefault(like.shape, torch.random.get_rng_state())
        replayed = torch.Generator()
        replayed.set_state(state)
        return torch.empty_like(like).exponential_(generator=replayed)


@FAULTS.fault("B156", "FlashInfer", "flashinfer-ai/flashinfer#424", "spec.law")
class _OneUniform(RightVerifier):
    """One uniform decides both whether a draft is accepted and which id replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self._rejecting = torch.empty(0)

    def accepted(
        self,
        draft_ids: Int64[Tensor, " drafts"],
        p: Float32[Tensor, "drafts V"],
        q: Float32[Tensor, "drafts V"],
        uniforms: Tensor,
    ) -> Bool[Tensor, " drafts"]:
        found = super().accepted(draft_ids, p, q, uniforms)
        self._rejecting = uniforms[~found]
        return found

    def recovered(
        self, p: Float32[Tensor, "B V"], q: Float32[Tensor, "B V"], noise: Float32[Tensor, "B V"]
    ) -> Int64[Tensor, " B"]:
        if len(self._rejecting) != len(p):  # the kernel's other path: drafts behind a rejected one
            return super().recovered(p, q, noise)
        mass = (p - q).clamp(min=0).cumsum(-1)
        scanned = mass <= self._rejecting[:, None] * mass[:, -1:]
        return scanned.sum(-1).clamp(max=p.shape[-1] - 1)

"""Seeds: ids that depend on more than the seed, the step and the row's own law.

The same call twice gives the same ids on most of these; another slot, another neighbour or another
batch does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightKernel

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.SEEDS)

_Generators = Mapping[int, torch.Generator]


class _Salted(RightKernel):
    """Draws each seeded row from a stream of its own, made of the next word of its seed's stream."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        streams = {
            row: torch.Generator().manual_seed(_word(generator) ^ self.salt(row))
            for row, generator in rows.generators.items()
        }
        return super().draw(logits, replace(rows, generators=streams))

    def salt(self, row: int) -> int:
        """Return what else the stream depends on."""
        return 0


def _word(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=generator))


@FAULTS.fault("B002", "Tenstorrent", "tenstorrent/tt-metal#53802", "seed.batch")
class _SaltedBySlot(_Salted):
    """The slot salts the seed, so that equal seeds differ and a request changes with its slot."""

    def salt(self, row: int) -> int:
        return row


class _SelfSpeculating(RightKernel):
    """Drafts the likeliest id, accepts it with its probability or draws one of the others."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        probs = torch.softmax(x.double(), dim=-1)
        drafts = self.argmax(x)[:, None]
        accepted = self.uniforms(len(x), rows.generators) < probs.gather(-1, drafts)[:, 0]
        others = probs.scatter(-1, drafts, 0.0)
        recovered = self.raced(others, self.recovery(others, rows.generators))
        return torch.where(accepted, drafts[:, 0], recovered)

    def uniforms(self, rows: int, generators: _Generators) -> Float64[Tensor, " B"]:
        """Return what decides whether a draft is accepted."""
        drawn = torch.rand(rows, dtype=torch.float64)
        for row, generator in generators.items():
            drawn[row] = torch.rand(1, dtype=torch.float64, generator=generator)[0]
        return drawn

    def recovery(
        self, like: Float64[Tensor, "B V"], generators: _Generators
    ) -> Float64[Tensor, "B V"]:
        """Return the noise of the draw that follows a rejection."""
        return self.noise(like, generators)


@FAULTS.fault("B005", "vLLM V0", "vllm-project/vllm#6034", "seed.batch")
class _AcceptedAtRandom(_SelfSpeculating):
    """Whether a draft is accepted is drawn from the global generator, whatever the row's seed."""

    def uniforms(self, rows: int, generators: _Generators) -> Float64[Tensor, " B"]:
        return super().uniforms(rows, {})


@FAULTS.fault("B022", "vLLM CPU", "vllm-project/vllm#51226", "seed.batch")
class _AllSeededOrNone(RightKernel):
    """One stream serves the batch unless every row has a generator."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: _Generators
    ) -> Float64[Tensor, "B V"]:
        return super().noise(like, generators if len(generators) == len(like) else {})


FAULTS.out_of_scope(
    "B075",
    "PyTorch",
    "pytorch/pytorch#194676",
    summary="One seed gives other numbers on a GPU with another count of multiprocessors.",
    reason="seeds reproduce on one model of device; the contract claims nothing across two",
)


@FAULTS.fault("B099", "Tenstorrent", "tenstorrent/tt-metal#53907", "seed.batch")
class _SaltedByCore(_Salted):
    """The stream depends on the core that serves the slot, so that 32 equal rows give 20 ids."""

    def salt(self, row: int) -> int:
        return row % 20


@FAULTS.fault("B105", "lmdeploy", "InternLM/lmdeploy#2459", "seed.batch")
class _SeedsComeLate(RightKernel):
    """The first row of a call draws before the seeds are set."""

    def noise(
        self, like: Float64[Tensor, "B V"], generators: _Generators
    ) -> Float64[Tensor, "B V"]:
        return super().noise(like, {row: one for row, one in generators.items() if row > 0})


@FAULTS.fault("B139", "vLLM V0", "vllm-project/vllm#10863", "seed.batch", "seed.effect")
class _WrittenIntoACopy(_SelfSpeculating):
    """Beside a seeded row the recovery noise of unseeded rows lands in a copy, and all scores stay 0."""

    def recovery(
        self, like: Float64[Tensor, "B V"], generators: _Generators
    ) -> Float64[Tensor, "B V"]:
        noise = super().recovery(like, generators)
        lost = [row for row in range(len(like)) if generators and row not in generators]
        return noise.index_fill(0, torch.tensor(lost, dtype=torch.int64), torch.inf)


@FAULTS.fault("B165", "SGLang", "sgl-project/sglang#35697", "seed.batch")
class _NoiseByRank(RightKernel):
    """Noise belongs to ids, but to ranks as soon as any row of the batch has a filter."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        if rows.top_k is None and rows.top_p is None and rows.min_p is None:
            return super().drawn(x, rows)
        ranked, order = x.sort(dim=-1, descending=True, stable=True)
        return order.gather(-1, super().drawn(ranked, rows)[:, None])[:, 0]

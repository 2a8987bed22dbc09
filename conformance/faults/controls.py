"""Controls: right samplers that are written differently, which the suite must leave green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows, Subject
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.faults.rowwise import RowwiseKernel
from refsampler.semantics import Semantics

__all__ = ["CONTROLS"]


class _Gumbel(RightKernel):
    """Gumbel noise is added to the logits."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        noise = self.noise(x.double(), rows.generators)
        return (x.double() - noise.log()).argmax(dim=-1)


class _Alias(RightKernel):
    """Walker's alias table: a column, then one of its two ids."""

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        probs = torch.softmax(x.double(), dim=-1)
        u = torch.rand(len(x), 2, dtype=torch.float64)
        for row, generator in rows.generators.items():
            u[row] = torch.rand(2, dtype=torch.float64, generator=generator)
        # rows of one law share their table
        keys = [row.numpy().tobytes() for row in probs]
        tables = {key: _AliasTable.of(np.frombuffer(key)) for key in dict.fromkeys(keys)}
        ids = [tables[key].draw(*pair.tolist()) for key, pair in zip(keys, u, strict=True)]
        return torch.tensor(ids, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class _AliasTable:
    """Columns of equal mass, each shared by at most two ids.

    Attributes:
        live: ids of some mass, one a column.
        keep: share of the column that is its own.
        other: the id that has the rest.

    """

    live: list[int]
    keep: dict[int, float]
    other: dict[int, int]

    @classmethod
    def of(cls, probs: Float64[np.ndarray, " V"]) -> Self:
        """Make the table of a row; without a law, id 0."""
        live: list[int] = [] if np.isnan(probs).any() else np.flatnonzero(probs).tolist()
        live = live or [0]
        scaled = {token: float(probs[token]) * len(live) for token in live}
        small = [token for token in live if scaled[token] < 1]
        large = [token for token in live if scaled[token] >= 1]
        keep = dict.fromkeys(live, 1.0)
        other = {token: token for token in live}
        while small and large:
            less, more = small.pop(), large.pop()
            keep[less], other[less] = scaled[less], more
            scaled[more] -= 1 - scaled[less]
            (small if scaled[more] < 1 else large).append(more)
        return cls(live, keep, other)

    def draw(self, column: float, side: float) -> int:
        """Return an id, given two uniforms."""
        token = self.live[min(int(column * len(self.live)), len(self.live) - 1)]
        return token if side < self.keep[token] else self.other[token]


class _OfLogprobs(RightKernel):
    """The temperature divides log probabilities in place of logits, as declared."""

    capabilities = replace(RightKernel.capabilities, semantics=Semantics(filter_space="logprob"))

    def scaled(
        self, x: Float32[Tensor, "B V"], rows: Rows, greedy: Bool[Tensor, " B"]
    ) -> Float32[Tensor, "B V"]:
        return super().scaled(torch.log_softmax(x, dim=-1), rows, greedy)


class _LastRowFirst(RightKernel):
    """Rows are drawn from the last to the first."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        last = len(logits) - 1

        def turned(field: Tensor | None) -> Tensor | None:
            return None if field is None else field.flip(0)

        backwards = replace(
            rows,
            top_k=turned(rows.top_k),
            top_p=turned(rows.top_p),
            temperature=turned(rows.temperature),
            min_p=turned(rows.min_p),
            seed=rows.seed.flip(0),
            step=rows.step.flip(0),
            seeded=rows.seeded.flip(0),
            generators={last - row: one for row, one in rows.generators.items()},
        )
        return super().draw(logits.flip(0), backwards).flip(0)


class _ExactlyK(RightKernel):
    """Of ids equal to the k-th value the lowest stay, as declared."""

    capabilities = replace(RightKernel.capabilities, semantics=Semantics(top_k_ties="exactly_k"))

    def kept_top_k(self, x: Float32[Tensor, "B V"], top_k: Tensor) -> Bool[Tensor, "B V"]:
        rank = x.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        return rank < top_k[:, None]


class _AllOfEqualMass(RightKernel):
    """Of ids equal at the edge of top-p all stay, as declared."""

    capabilities = replace(RightKernel.capabilities, semantics=Semantics(top_p_ties="all"))

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        kept = super().kept_top_p(x, top_p)
        lowest = torch.where(kept, x, torch.inf).amin(dim=-1, keepdim=True)
        return x >= lowest


CONTROLS: dict[str, Callable[[], Subject]] = {
    "inverse CDF in float64": RowwiseKernel,
    "Gumbel": _Gumbel,
    "alias table": _Alias,
    "temperature on log probabilities": _OfLogprobs,
    "rows backwards": _LastRowFirst,
    "top-k ties: exactly k": _ExactlyK,
    "top-p ties: all": _AllOfEqualMass,
}
"""In words -> what makes it."""

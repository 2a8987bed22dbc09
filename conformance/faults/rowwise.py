"""A right kernel whose rows each have a law of their own: equal rows are worked out once.

A wrong law, sum or uniform then costs what its draws cost, and not noise for every id: tails and laws
take millions of draws of one row.
"""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.conformance.faults.right import RightKernel

__all__ = ["MisplacedMass", "RowwiseKernel"]


class RowwiseKernel(RightKernel):
    """The inverse CDF of one uniform a row.

    The steps are those of `RightKernel`, with `edges`, `uniforms` (`fresh`) and `crossed` in place of
    `noise` and `raced`.
    """

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        """Return one id a row."""
        if not _alike(logits, rows):
            return super().draw(logits, rows)
        one = _first(rows)
        x = logits[:1].float()
        assert one.temperature is not None
        greedy = one.temperature == 0
        if greedy:
            return self.argmax(x).expand(len(logits)).clone()
        edges = self.edges(self.filtered(self.scaled(x, one, greedy), one))
        return self.crossed(edges, self.uniforms(len(logits), rows)[None])[0]

    def drawn(self, x: Float32[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        """Draw every row."""
        return self.crossed(self.edges(x), self.uniforms(len(x), rows)[:, None])[:, 0]

    def edges(self, x: Float32[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Return running sums of the law, which need not end at 1."""
        return self.law(torch.softmax(x.double(), dim=-1)).cumsum(dim=-1)

    def uniforms(self, count: int, rows: Rows) -> Float64[Tensor, " B"]:
        """Return uniforms in [0, 1), from the generators of the rows that have one."""
        uniform = self.fresh(count)
        for row, generator in rows.generators.items():
            uniform[row] = torch.rand((), dtype=torch.float64, generator=generator)
        return uniform

    def fresh(self, count: int) -> Float64[Tensor, " B"]:
        """Return uniforms of rows that have no generator."""
        return torch.rand(count, dtype=torch.float64)

    def crossed(
        self, edges: Float[Tensor, "B V"], uniform: Float[Tensor, "B n"]
    ) -> Int64[Tensor, "B n"]:
        """Return the first ids whose edges are above the uniforms, n of a row."""
        last = edges[:, -1:]
        # below the last edge, so that ids of no mass at the end stay out
        target = torch.minimum(uniform * last, torch.nextafter(last, torch.zeros_like(last)))
        return torch.searchsorted(edges, target, right=True).clamp(max=edges.shape[-1] - 1)


class MisplacedMass(RowwiseKernel):
    """What top-p cuts off goes to one id of the row, the `heir`."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        """Return one id a row."""
        self._cut = torch.zeros(1, 1, dtype=torch.float64)
        self._heir = torch.zeros(1, dtype=torch.int64)
        return super().draw(logits, rows)

    def heir(self, x: Float32[Tensor, "B V"], kept: Bool[Tensor, "B V"]) -> Int64[Tensor, " B"]:
        """Return the ids that get it, of logits on which top-p is about to act."""
        raise NotImplementedError

    def kept_top_p(
        self, x: Float32[Tensor, "B V"], top_p: Float32[Tensor, " B"]
    ) -> Bool[Tensor, "B V"]:
        """Return what top-p keeps, and remember what it cuts off."""
        kept = super().kept_top_p(x, top_p)
        probs = torch.softmax(x.double(), dim=-1)
        self._cut = torch.where(kept, 0.0, probs).sum(dim=-1, keepdim=True)
        self._heir = self.heir(x, kept)
        return kept

    def law(self, probs: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        """Return the law with the mass that was cut off."""
        heir = torch.nn.functional.one_hot(self._heir, probs.shape[-1])
        return (1 - self._cut) * probs + self._cut * heir


def _alike(logits: Float[Tensor, "B V"], rows: Rows) -> bool:
    """Return whether all rows ask for the same law, and none has noise of its own."""
    if len(logits) < 2 or rows.generators:
        return False
    per_row = (logits, rows.top_k, rows.top_p, rows.temperature, rows.min_p)
    return all(one is None or torch.equal(one, one[:1].expand_as(one)) for one in per_row)


def _first(rows: Rows) -> Rows:
    """Return the parameters of the first row."""
    tensors = {
        field.name: value[:1]
        for field in fields(rows)
        if isinstance(value := getattr(rows, field.name), Tensor)
    }
    return replace(rows, **tensors, generators={})

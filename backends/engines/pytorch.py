"""PyTorch's `multinomial` behind plain torch filters: what most hand-written samplers do.

PyTorch filters nothing; sort, threshold and cumulative sum are those of the `native` backend.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.native import filter_logits
from refsampler.backends.protocol import Capabilities, Drawn, Feature, Rows

__all__ = ["MultinomialKernel", "backend"]


class MultinomialKernel:
    """Level 1: unseeded rows share one `multinomial`, a seeded row has one with its generator."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(
            name="pytorch",
            version=f"torch {torch.__version__}",
            level=1,
            features=frozenset(
                {Feature.SEED, Feature.PROCESSED, Feature.SAME_PATH, Feature.BITWISE}
            ),
        )
        self._check()

    def draw(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return int64 ids and the logits they were drawn from.

        Raises:
            ValueError: a row has NaN, +inf or nothing finite; `multinomial` refuses the whole batch.

        """
        kept = filter_logits(logits, rows.top_k, rows.top_p)
        probs = kept.softmax(dim=-1)
        lawless = probs.isnan().any(dim=-1).nonzero().flatten().tolist()
        if lawless:
            raise ValueError(f"logits: rows {lawless} have no law, torch.multinomial refuses NaN")
        ids = probs.multinomial(1)[:, 0]
        for row, generator in rows.generators.items():
            ids[row] = probs[row].multinomial(1, generator=generator)[0]
        return Drawn(ids, kept)

    def _check(self) -> None:
        certain = torch.eye(4).log()
        if certain.softmax(dim=-1).multinomial(1)[:, 0].tolist() != [0, 1, 2, 3]:
            raise RuntimeError("torch.multinomial does not draw certain ids")


def backend() -> MultinomialKernel:
    """Return the kernel on the CPU."""
    return MultinomialKernel()

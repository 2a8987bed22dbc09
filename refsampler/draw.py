"""The draw: an exponential race in float64, with one generator per seeded request.

If q_v ~ Exp(1) independently, then argmax_v p_v / q_v has the law p.  The same race in float32 is
what vLLM 0.25.1 runs by default; its noise cannot reach the far tail (clause `draw.tail`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float32, Int, Int32, Int64
from torch import Tensor

__all__ = ["Drawn", "FilterAndDraw", "Fold", "Rows", "draw", "exponential_noise", "race"]


class Fold(StrEnum):
    """A step that a kernel takes over from the pipeline.

    GREEDY needs TEMPERATURE: the kernel gets temperature 0 on greedy rows and its id counts there.
    """

    GREEDY = "greedy"
    TEMPERATURE = "temperature"
    MIN_P = "min_p"
    TOP_K = "top_k"
    TOP_P = "top_p"


@dataclass(frozen=True, slots=True)
class Rows:
    """Per-row parameters of one filter-and-draw call; a None field is off for the whole batch.

    Attributes:
        top_k: 1..V; V is off for that row.
        top_p: (0, 1]; 1 is off for that row.
        temperature: None unless folded; 1 on greedy rows, 0 if greedy is folded too.
        min_p: None unless folded; 0 is off for that row.
        seed: the request's seed as a signed 64-bit integer; 0 where `seeded` is False.
        step: how many ids this request has drawn before.
        seeded: whether the row has a seed of its own.
        generators: row -> the request's torch generator, for kernels that draw with torch.

    """

    top_k: Int32[Tensor, " num_tokens"] | None
    top_p: Float32[Tensor, " num_tokens"] | None
    temperature: Float32[Tensor, " num_tokens"] | None
    min_p: Float32[Tensor, " num_tokens"] | None
    seed: Int64[Tensor, " num_tokens"]
    step: Int64[Tensor, " num_tokens"]
    seeded: Bool[Tensor, " num_tokens"]
    generators: Mapping[int, torch.Generator]


class Drawn(NamedTuple):
    """Ids and, if the kernel has them, the logits they were drawn from."""

    ids: Int[Tensor, " num_tokens"]
    processed_logits: Float32[Tensor, "num_tokens vocab"] | None = None


@runtime_checkable
class FilterAndDraw(Protocol):
    """What a level-1 kernel does: top-k, top-p and one draw a row (clause `order.pipeline`)."""

    def __call__(
        self, logits: Float32[Tensor, "num_tokens vocab"], rows: Rows, /
    ) -> Int[Tensor, " num_tokens"] | Drawn:
        """Return one id a row, int32 or int64 (clause `output.form`)."""
        ...


def draw(
    logits: Float32[Tensor, "num_tokens vocab"],
    generators: Mapping[int, torch.Generator],
    dtype: torch.dtype = torch.float64,
) -> Int64[Tensor, " num_tokens"]:
    """Draw one id a row from softmax(logits) (clauses `draw.law`, `draw.support`).

    A row without a law (NaN, +inf or nothing finite) gives id 0 (clause `nonfinite.contained`).

    Args:
        logits: what the filters left; -inf outside the support.
        generators: row -> generator; the other rows take the default generator's noise.
        dtype: of the race; float64 reaches every tail grade, float32 is vLLM's default.

    """
    probs = torch.softmax(logits.to(dtype), dim=-1)
    return race(probs, exponential_noise(probs, generators))


def race(
    weights: Float[Tensor, "*rows vocab"], noise: Float[Tensor, "*rows vocab"]
) -> Int64[Tensor, " *rows"]:
    """Return argmax w_v / e_v a row: with e ~ Exp(1) its law is w over its sum.

    Args:
        weights: at least 0; their sum does not matter.
        noise: Exp(1) of the same shape.

    """
    # an id without weight must lose against any noise, 0/0 and subnormal noise included
    return torch.where(weights > 0, weights / noise, -torch.ones_like(weights)).argmax(dim=-1)


def exponential_noise(
    like: Float[Tensor, "num_tokens vocab"], generators: Mapping[int, torch.Generator]
) -> Float[Tensor, "num_tokens vocab"]:
    """Return Exp(1) noise of the shape and dtype of `like`.

    The default generator is asked once for the whole batch unless every row has a generator of its
    own; a seeded row then takes V numbers of its generator, whatever its neighbours do
    (clause `seed.batch`).
    """
    num_tokens = like.shape[0]
    if len(generators) == num_tokens:
        shared = torch.ones_like(like)
    else:
        shared = torch.empty_like(like).exponential_()
    rows = [
        torch.empty_like(shared[row]).exponential_(generator=generators[row])
        if row in generators
        else shared[row]
        for row in range(num_tokens)
    ]
    return torch.stack(rows)

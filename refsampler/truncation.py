"""The three filters as kept sets: min-p, top-k, top-p.

Each function answers one question, "which ids stay?", with a boolean mask; `keep` applies it.
Masses are float64, so that a boundary is decided by the logits and not by the summation.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float32, Int32
from torch import Tensor

__all__ = ["keep", "keep_min_p", "keep_top_k", "keep_top_p"]


def keep(
    logits: Float32[Tensor, "num_tokens vocab"], kept: Bool[Tensor, "num_tokens vocab"]
) -> Float32[Tensor, "num_tokens vocab"]:
    """Return the logits with every id outside `kept` at -inf."""
    return torch.where(kept, logits, -torch.inf)


def keep_min_p(
    logits: Float32[Tensor, "num_tokens vocab"], min_p: Float32[Tensor, " num_tokens"]
) -> Bool[Tensor, "num_tokens vocab"]:
    """Keep an id iff its probability is at least min_p times the largest (clause `min-p.keep`)."""
    probs = torch.softmax(logits.double(), dim=-1)
    threshold = min_p.double()[:, None] * probs.amax(dim=-1, keepdim=True)
    return ~(probs < threshold)


def keep_top_k(
    logits: Float32[Tensor, "num_tokens vocab"], top_k: Int32[Tensor, " num_tokens"]
) -> Bool[Tensor, "num_tokens vocab"]:
    """Keep an id iff it is not below the k-th largest value (clauses `top-k.keep`, `top-k.ties`).

    Every id equal to the k-th value stays; k = V keeps all (clause `top-k.off`).
    """
    descending = logits.sort(dim=-1, descending=True).values
    kth_largest = descending.gather(-1, top_k.long()[:, None] - 1)
    return ~(logits < kth_largest)


def keep_top_p(
    logits: Float32[Tensor, "num_tokens vocab"], top_p: Float32[Tensor, " num_tokens"]
) -> Bool[Tensor, "num_tokens vocab"]:
    """Keep the smallest descending prefix with mass >= p (clauses `top-p.keep`, `top-p.ties`).

    An id stays iff the mass ranked above it is < p, hence at least one does.  Of equal logits at
    the boundary the right count stays, lowest ids first; p = 1 keeps all (clause `top-p.off`).
    """
    ranked, order = logits.double().sort(dim=-1, descending=True, stable=True)
    mass_above = _mass_above(torch.softmax(ranked, dim=-1))
    p = top_p.double()[:, None]
    kept = (mass_above < p) | (p >= 1)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _mass_above(
    ranked_probs: Float[Tensor, "num_tokens vocab"],
) -> Float[Tensor, "num_tokens vocab"]:
    """Return for each place in a descending row the summed probability of the places before it."""
    inclusive = ranked_probs.cumsum(dim=-1)
    return torch.cat([torch.zeros_like(inclusive[:, :1]), inclusive[:, :-1]], dim=-1)

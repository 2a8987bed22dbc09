"""Repetition, frequency and presence penalties, in that order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

__all__ = ["apply_penalties", "count_tokens", "frequency", "presence", "repetition"]


def apply_penalties(
    logits: Float32[Tensor, "num_tokens vocab"],
    prompt_counts: Int64[Tensor, "num_tokens vocab"],
    output_counts: Int64[Tensor, "num_tokens vocab"],
    repetition_penalties: Float32[Tensor, " num_tokens"],
    frequency_penalties: Float32[Tensor, " num_tokens"],
    presence_penalties: Float32[Tensor, " num_tokens"],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Apply the three penalties of every row, greedy rows included."""
    penalised = repetition(logits, prompt_counts + output_counts, repetition_penalties)
    penalised = frequency(penalised, output_counts, frequency_penalties)
    return presence(penalised, output_counts, presence_penalties)


def repetition(
    logits: Float32[Tensor, "num_tokens vocab"],
    counts: Int64[Tensor, "num_tokens vocab"],
    penalties: Float32[Tensor, " num_tokens"],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Return x/r if x > 0, else x*r, once per distinct id that occurs (clause `penalty.repetition`)."""
    r = penalties[:, None]
    penalised = torch.where(logits > 0, logits / r, logits * r)
    return torch.where(counts > 0, penalised, logits)


def frequency(
    logits: Float32[Tensor, "num_tokens vocab"],
    output_counts: Int64[Tensor, "num_tokens vocab"],
    penalties: Float32[Tensor, " num_tokens"],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Subtract f * (count in the output); the prompt does not count (clause `penalty.frequency`)."""
    return logits - penalties[:, None] * output_counts


def presence(
    logits: Float32[Tensor, "num_tokens vocab"],
    output_counts: Int64[Tensor, "num_tokens vocab"],
    penalties: Float32[Tensor, " num_tokens"],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Subtract s if the id occurs in the output (clause `penalty.presence`)."""
    return logits - penalties[:, None] * (output_counts > 0)


def count_tokens(
    histories: Sequence[Sequence[int]], vocab_size: int, device: torch.device
) -> Int64[Tensor, "num_tokens vocab"]:
    """Count each id in each row's history (clause `penalty.history`).

    Ids outside [0, V) are padding or placeholders and count for nothing.
    """
    cells = [
        row * vocab_size + token
        for row, history in enumerate(histories)
        for token in history
        if 0 <= token < vocab_size
    ]
    counts = torch.tensor(cells, dtype=torch.int64, device=device)
    return counts.bincount(minlength=len(histories) * vocab_size).reshape(-1, vocab_size)

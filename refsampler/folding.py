"""What the pipeline still does when a kernel takes over steps of it.

A level-1 kernel always takes top-k, top-p and the draw.  It may declare that it folds temperature
and min-p too; a step is handed over only if every step that acts before it has acted.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.draw import Drawn, FilterAndDraw, Fold, Rows
from refsampler.metadata import SamplingMetadata

__all__ = ["call_kernel", "kernel_rows"]


def call_kernel(
    kernel: FilterAndDraw,
    folds: AbstractSet[Fold],
    logits: Float32[Tensor, "num_tokens vocab"],
    temperature: Float32[Tensor, " num_tokens"],
    metadata: SamplingMetadata,
) -> Drawn:
    """Do the steps that the kernel does not fold, then let it filter and draw.

    Args:
        kernel: the filter and draw of a level-1 backend.
        folds: steps that it takes over.
        logits: after step 6.
        temperature: 1 on greedy rows.
        metadata: the batch.

    """
    folded = _handed_over(folds, metadata)
    x = logits if Fold.TEMPERATURE in folded else logits / temperature[:, None]
    if Fold.MIN_P not in folded:
        for processor in metadata.logitsprocs.argmax_invariant:
            x = processor.apply(x)
    result = kernel(x, kernel_rows(metadata, temperature, folded))
    return result if isinstance(result, Drawn) else Drawn(result)


def kernel_rows(
    metadata: SamplingMetadata,
    temperature: Float32[Tensor, " num_tokens"],
    folded: AbstractSet[Fold],
) -> Rows:
    """Return the per-row parameters as a kernel gets them."""
    device = temperature.device
    num_tokens = temperature.shape[0]
    seeds = [
        _signed(metadata.generators[row].initial_seed()) if row in metadata.generators else 0
        for row in range(num_tokens)
    ]
    seeded = [row in metadata.generators for row in range(num_tokens)]
    return Rows(
        top_k=metadata.top_k,
        top_p=metadata.top_p,
        temperature=temperature if Fold.TEMPERATURE in folded else None,
        min_p=metadata.logitsprocs.min_p if Fold.MIN_P in folded else None,
        seed=torch.tensor(seeds, dtype=torch.int64, device=device),
        step=torch.tensor(metadata.steps, dtype=torch.int64, device=device),
        seeded=torch.tensor(seeded, dtype=torch.bool, device=device),
        generators=metadata.generators,
    )


def _handed_over(folds: AbstractSet[Fold], metadata: SamplingMetadata) -> AbstractSet[Fold]:
    """Return the folds that keep the order: nothing custom between, min-p after temperature."""
    processors = metadata.logitsprocs
    if processors.has_custom_argmax_invariant:
        return folds - {Fold.TEMPERATURE, Fold.MIN_P}
    if processors.min_p is not None and Fold.MIN_P not in folds:
        return folds - {Fold.TEMPERATURE}
    return folds


def _signed(seed: int) -> int:
    """Return an unsigned 64-bit seed as the signed integer with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed

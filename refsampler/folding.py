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
from refsampler.params import GREEDY_EPSILON

__all__ = ["call_kernel", "divisor", "handed_over", "kernel_rows"]


def handed_over(folds: AbstractSet[Fold], metadata: SamplingMetadata) -> AbstractSet[Fold]:
    """Return the folds that keep the order: nothing custom between, min-p after temperature.

    Args:
        folds: what the kernel declares.
        metadata: the batch, whose processors may stand between the steps.

    """
    processors = metadata.logitsprocs
    if processors.has_custom_argmax_invariant:
        return folds - {Fold.GREEDY, Fold.TEMPERATURE, Fold.MIN_P}
    if processors.min_p is not None and Fold.MIN_P not in folds:
        return folds - {Fold.GREEDY, Fold.TEMPERATURE}
    return folds


def call_kernel(
    kernel: FilterAndDraw,
    folded: AbstractSet[Fold],
    logits: Float32[Tensor, "num_tokens vocab"],
    temperature: Float32[Tensor, " num_tokens"],
    metadata: SamplingMetadata,
) -> Drawn:
    """Do the steps that the kernel does not fold, then let it filter and draw.

    Args:
        kernel: the filter and draw of a level-1 backend.
        folded: steps that it takes over in this batch, as `handed_over` says.
        logits: after step 6.
        temperature: below 1e-5 on greedy rows.
        metadata: the batch.

    Raises:
        ValueError: the kernel returned something else than one id a row (clause `output.form`).

    """
    # a copy: a kernel may declare that it works in place, and logprobs still need the logits
    x = logits.clone() if Fold.TEMPERATURE in folded else logits / divisor(temperature)[:, None]
    if Fold.MIN_P not in folded:
        for processor in metadata.logitsprocs.argmax_invariant:
            x = processor.apply(x)
    result = kernel(x, kernel_rows(metadata, temperature, folded))
    drawn = result if isinstance(result, Drawn) else Drawn(result)
    ids = drawn.ids
    if ids.shape != logits.shape[:1] or ids.dtype not in (torch.int32, torch.int64):
        msg = (
            f"ids of the kernel = {ids.dtype} {tuple(ids.shape)} are refused: "
            f"allowed are int32 or int64 ({logits.shape[0]},)"
        )
        raise ValueError(msg)
    return drawn


def divisor(
    temperature: Float32[Tensor, " num_tokens"],
) -> Float32[Tensor, " num_tokens"]:
    """Return what divides the logits: the temperature, 1 on greedy rows."""
    return torch.where(temperature < GREEDY_EPSILON, torch.ones_like(temperature), temperature)


def kernel_rows(
    metadata: SamplingMetadata,
    temperature: Float32[Tensor, " num_tokens"],
    folded: AbstractSet[Fold],
) -> Rows:
    """Return the per-row parameters as a kernel gets them."""
    device = temperature.device
    num_tokens = temperature.shape[0]
    seeds, seeded = [0] * num_tokens, [False] * num_tokens
    for row, generator in metadata.generators.items():
        seeds[row], seeded[row] = _signed(generator.initial_seed()), True
    return Rows(
        top_k=metadata.top_k,
        top_p=metadata.top_p,
        temperature=_folded_temperature(temperature, folded),
        min_p=metadata.logitsprocs.min_p if Fold.MIN_P in folded else None,
        seed=torch.tensor(seeds, dtype=torch.int64, device=device),
        step=torch.tensor(metadata.steps, dtype=torch.int64, device=device),
        seeded=torch.tensor(seeded, dtype=torch.bool, device=device),
        generators=metadata.generators,
    )


def _folded_temperature(
    temperature: Float32[Tensor, " num_tokens"], folded: AbstractSet[Fold]
) -> Float32[Tensor, " num_tokens"] | None:
    """Return what the kernel divides by: 0 on greedy rows if it takes those, else 1."""
    if Fold.TEMPERATURE not in folded:
        return None
    if Fold.GREEDY not in folded:
        return divisor(temperature)
    return torch.where(temperature < GREEDY_EPSILON, torch.zeros_like(temperature), temperature)


def _signed(seed: int) -> int:
    """Return an unsigned 64-bit seed as the signed integer with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed

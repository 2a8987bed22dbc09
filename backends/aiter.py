"""AMD's aiter samplers as a level-1 backend, called as vLLM calls them on ROCm.  Not run here.

| filters of the batch | call |
| --- | --- |
| top-k and top-p | softmax, `top_k_top_p_sampling_from_probs` |
| top-p | softmax, `top_p_sampling_from_probs` |
| top-k | softmax, `top_k_renorm_probs`, `torch.multinomial` |
| neither, or a row has a seed | none: torch, in vLLM's formulation |

Nobody takes this path without asking for it by name while Triton is installed: top-p beside top-k
is measured on the whole row, and aiter has open memory errors (its issues 4830 and 5192).  What
stands here was read, and tested with stand-ins for the operators; `make gpu-check` runs it.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, cast

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Capabilities, Drawn, DType, Feature, Rows
from refsampler.semantics import profile

__all__ = ["AiterKernel"]

_DTYPES: Final = frozenset(DType)
_MOST_ELEMENTS: Final = 2**31
"""Logits of one call; what more does was not looked at."""


class AiterKernel:
    """Level 1: top-k, top-p and the draw on a ROCm device; the other steps act before, in torch.

    Law, profile `aiter`: an id is kept iff fewer than k ids lie above it and less than p of the
    *whole* row's mass does; equal probabilities stand or fall together.  vLLM's other paths measure
    p on what top-k left: of .3, .2 and fifty times .01, k = 2 and p = .5 keep one id there, two here.

    Zero rows give zero ids, logits are copied to contiguous float32 (the operators take the row
    stride to be V), and a row with NaN, +inf or nothing finite is sampled by torch with its batch,
    for which the call waits for the GPU.

    Args:
        device: where the logits live; ROCm's devices are called `cuda` in torch.

    Raises:
        ModuleNotFoundError: aiter is not installed; it comes with ROCm images, not from PyPI.

    """

    def __init__(self, device: str = "cuda") -> None:
        self._ops = _operators()
        self._native = NativeKernel(device)
        self.capabilities = Capabilities(
            name="aiter",
            version=f"{_version()}, not run by its authors here",
            level=1,
            device=device,
            semantics=profile("aiter"),
            by_path={"native": self._native.capabilities.semantics},
            dtypes=_DTYPES,
            features=frozenset({Feature.SEED}),
            max_elements=_MOST_ELEMENTS,
        )

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return ids [B], int32 from aiter and int64 from torch; the input stays as it is.

        Raises:
            TypeError: the logits are of another dtype than float32, bfloat16 or float16.
            ValueError: the logits are not [B, V] with V >= 1, or too many.

        """
        _check(logits)
        if not len(logits):
            return Drawn(torch.empty(0, dtype=torch.int32, device=logits.device))
        unfiltered = rows.top_k is None and rows.top_p is None
        x = logits.to(torch.float32).contiguous()
        if unfiltered or rows.generators or not bool(x.amax(dim=-1).isfinite().all()):
            return Drawn(self._native.draw(x, rows).ids)
        return Drawn(self._drawn(x.softmax(dim=-1), rows.top_k, rows.top_p))

    def _drawn(
        self, probs: Float32[Tensor, "B V"], top_k: Tensor | None, top_p: Tensor | None
    ) -> Int[Tensor, " B"]:
        """Make vLLM's call; each of k and p goes as a tensor and a scalar that is not looked at."""
        if top_k is None:
            ids = self._ops.top_p_sampling_from_probs(probs, None, top_p, 0, deterministic=True)
        elif top_p is None:
            kept = self._ops.top_k_renorm_probs(probs, top_k, 0)
            ids = torch.multinomial(kept, num_samples=1)
        else:
            ids = self._ops.top_k_top_p_sampling_from_probs(
                probs, None, top_k, 0, top_p, 0, deterministic=True
            )
        return cast("Tensor", ids).view(-1)


def _operators() -> Any:
    """Return `torch.ops.aiter`, which importing aiter fills."""
    try:
        importlib.import_module("aiter")
    except ModuleNotFoundError as error:
        if error.name == "aiter":
            raise ModuleNotFoundError(
                "aiter is not installed: it is part of ROCm images, and no extra installs it",
                name="aiter",
            ) from error
        raise
    importlib.import_module("aiter.ops.sampling")
    return torch.ops.aiter


def _version() -> str:
    return str(getattr(importlib.import_module("aiter"), "__version__", "unknown version"))


def _check(logits: Tensor) -> None:
    """Refuse what aiter would misread."""
    if logits.dtype not in {one.torch for one in _DTYPES}:
        names = ", ".join(sorted(_DTYPES))
        raise TypeError(f"logits.dtype = {logits.dtype} is refused: allowed are {names}")
    if logits.ndim != 2 or logits.shape[1] < 1 or logits.numel() > _MOST_ELEMENTS:
        raise ValueError(
            f"logits.shape = {tuple(logits.shape)} is refused: "
            f"allowed is [B, V >= 1] with B * V <= {_MOST_ELEMENTS}"
        )

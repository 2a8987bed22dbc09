"""FlashInfer's samplers as a level-1 backend, called as vLLM 0.25.1 calls them on a CUDA device.

| filters of the batch | call |
| --- | --- |
| top-k and top-p | `top_k_top_p_sampling_from_logits`, top-k first |
| top-k | softmax, `top_k_sampling_from_probs` |
| top-p | softmax, `top_p_sampling_from_probs` |
| neither | vLLM's own race in torch; `with_logits_sampler`: `sampling_from_logits` |
| a row has a seed | none: the next path of the dispatch table samples the whole batch |

Temperature and min-p act before, in torch, as in vLLM.  Run with FlashInfer 0.6.13 and 0.7.4.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, cast

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from refsampler.backends.dispatch import Path, Situation, choose
from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Capabilities, Drawn, DType, Feature, Kernel, Rows
from refsampler.backends.registry import resolve
from refsampler.semantics import profile

__all__ = ["FlashInferKernel", "backend", "imported", "version", "with_logits_sampler"]

_MOST_ELEMENTS: Final = 2**31
"""Logits of one call: the kernels number them in 32 bits, and the noise of `sampling_from_logits`
repeats from row b to row b + 2^32 / V."""
_DTYPES: Final = frozenset(DType)
_FLOOR: Final = 1e-6
_LOGITS_FLOOR: Final = 1e-5
"""`sampling_from_logits` cuts its Gumbel noise at 24 bits, which starves ids below this."""


class FlashInferKernel:
    """Level 1: top-k, top-p and the draw; float32 noise from torch's default generator.

    Law: everything equal to the k-th value stays, and equal probabilities at the edge of top-p
    stand or fall together; profile `flashinfer`.  FlashInfer has one seed a call, no float64 and
    shows no logits.  A batch with a seeded row goes where the dispatch table sends seeds, as
    `refsampler.backends.dispatch.opened` does with processed modes and float64.

    What FlashInfer cannot take never reaches it: it raises on zero rows, reads other layouts than
    contiguous ones wrongly or not at all, and gives id 0 or worse for rows with NaN, +inf or
    nothing finite.  Zero rows give zero ids; logits are copied to contiguous float32; a batch of
    more than 2^31 logits is split by rows; a row that is not finite gives the argmax of its
    numbers, 0 without one.  Looking for such rows waits for the GPU once a call, so calls cannot be
    captured in a CUDA graph.

    Args:
        device: where the logits live.
        logits_sampler: batches without a filter go to `sampling_from_logits`, not to torch.
        fallback: what samples batches with seeds; None asks the dispatch table.

    Raises:
        ModuleNotFoundError: flashinfer is not installed; the message names the extra.

    """

    def __init__(
        self,
        device: str = "cuda",
        *,
        logits_sampler: bool = False,
        fallback: Kernel | None = None,
    ) -> None:
        self._sampling = imported()
        self._logits_sampler = logits_sampler
        self._native = NativeKernel(device)
        self._seeded = _for_seeds(device) if fallback is None else fallback
        behind = self._seeded.capabilities
        self.capabilities = Capabilities(
            name="flashinfer",
            version=f"{version()}, seeds by {behind.name} {behind.version}",
            level=1,
            device=device,
            semantics=profile("flashinfer"),
            by_path={behind.name: behind.semantics},
            floor=_LOGITS_FLOOR if logits_sampler else _FLOOR,
            dtypes=_DTYPES,
            features=behind.features & {Feature.SEED, Feature.BITWISE},
        )

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return ids [B], int32 from FlashInfer and int64 from torch; the input stays as it is.

        Raises:
            TypeError: the logits are of another dtype than float32, bfloat16 or float16.
            ValueError: the logits are not [B, V] with V >= 1.

        """
        _check(logits)
        if not len(logits):
            return Drawn(torch.empty(0, dtype=torch.int32, device=logits.device))
        if rows.generators:
            return Drawn(_ids(self._seeded.draw(logits, rows)))
        if rows.top_k is None and rows.top_p is None and not self._logits_sampler:
            return Drawn(self._native.draw(logits, rows).ids)
        most = max(1, _MOST_ELEMENTS // logits.shape[1])
        if len(logits) <= most:
            return Drawn(self._contained(logits, rows.top_k, rows.top_p))
        parts = [slice(first, first + most) for first in range(0, len(logits), most)]
        ids = [
            self._contained(logits[part], _part(rows.top_k, part), _part(rows.top_p, part))
            for part in parts
        ]
        return Drawn(torch.cat(ids))

    def _contained(
        self, logits: Float[Tensor, "B V"], top_k: Tensor | None, top_p: Tensor | None
    ) -> Int[Tensor, " B"]:
        """Draw from rows of numbers; the other rows are replaced by one id that is certain."""
        x = logits.to(torch.float32).contiguous()
        broken = ~x.amax(dim=-1).isfinite()
        if bool(broken.any()):
            x = torch.where(broken[:, None], _certain(x), x)
        return self._drawn(x, top_k, top_p)

    def _drawn(
        self, x: Float32[Tensor, "B V"], top_k: Tensor | None, top_p: Tensor | None
    ) -> Int[Tensor, " B"]:
        """Make vLLM's call."""
        call = self._sampling
        if top_k is not None and top_p is not None:
            ids = call.top_k_top_p_sampling_from_logits(x, top_k, top_p, deterministic=True)
        elif top_k is not None:
            ids = call.top_k_sampling_from_probs(x.softmax(dim=-1), top_k, deterministic=True)
        elif top_p is not None:
            ids = call.top_p_sampling_from_probs(x.softmax(dim=-1), top_p, deterministic=True)
        else:
            ids = call.sampling_from_logits(x, deterministic=True)
        return cast("Tensor", ids)


def imported() -> Any:
    """Return `flashinfer.sampling`, or say which extra installs it."""
    try:
        return importlib.import_module("flashinfer.sampling")
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "flashinfer":
            raise ModuleNotFoundError(
                "flashinfer is not installed; pip install 'refsampler[flashinfer]'",
                name="flashinfer",
            ) from error
        raise


def version() -> str:
    """Return FlashInfer's."""
    return str(getattr(importlib.import_module("flashinfer"), "__version__", "unknown"))


def _for_seeds(device: str) -> Kernel:
    """Return what the dispatch table takes for a batch with seeds on such a device."""
    situation = Situation(torch.device(device).type, seeds=True)
    path = choose(situation).path
    if path is Path.NATIVE:
        return NativeKernel(device)
    return cast("Kernel", resolve(path))


def _check(logits: Tensor) -> None:
    """Refuse what FlashInfer would misread."""
    if logits.dtype not in {one.torch for one in _DTYPES}:
        names = ", ".join(sorted(_DTYPES))
        raise TypeError(f"logits.dtype = {logits.dtype} is refused: allowed are {names}")
    if logits.ndim != 2 or logits.shape[1] < 1:
        raise ValueError(f"logits.shape = {tuple(logits.shape)} is refused: allowed is [B, V >= 1]")


def _certain(x: Float32[Tensor, "B V"]) -> Float32[Tensor, "B V"]:
    """Return rows of -inf but for a 0 at the largest number, the first id without one."""
    numbers = x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    largest = numbers.argmax(dim=-1, keepdim=True)
    return torch.full_like(x, -torch.inf).scatter(-1, largest, 0.0)


def _part(column: Tensor | None, part: slice) -> Tensor | None:
    return None if column is None else column[part]


def _ids(drawn: Tensor | Drawn) -> Tensor:
    return drawn.ids if isinstance(drawn, Drawn) else drawn


def with_logits_sampler() -> FlashInferKernel:
    """Return the backend that samples unfiltered batches with FlashInfer too."""
    return FlashInferKernel(logits_sampler=True)


backend: Callable[[], FlashInferKernel] = FlashInferKernel
"""What vLLM runs on a CUDA device that FlashInfer supports."""

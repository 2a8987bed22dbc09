"""Kernels that take NumPy, JAX or other DLPack arrays, seen as level-1 kernels in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from refsampler.backends.protocol import Capabilities, Drawn, Rows

__all__ = ["ArrayKernel", "ArrayRows"]


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """`Rows` with every tensor as an array; generators stay behind, `seed` and `step` are enough."""

    top_k: Any
    top_p: Any
    temperature: Any
    min_p: Any
    seed: Any
    step: Any
    seeded: Any


class ArrayKernel:
    """Wraps a function on arrays; nothing is copied on the way in or out.

    The arrays share memory with the caller's tensors: a function that writes into its logits
    declares `Feature.IN_PLACE`.

    Args:
        function: (logits, `ArrayRows`) -> ids [B], or the pair of ids and processed logits.
        capabilities: what the function declares of itself.
        from_dlpack: makes the library's array, such as `numpy.from_dlpack`, `jax.dlpack.from_dlpack`
            or `cupy.from_dlpack`; the results are read back through `__dlpack__`.

    """

    def __init__(
        self,
        function: Callable[[Any, ArrayRows], Any],
        capabilities: Capabilities,
        from_dlpack: Callable[[Any], Any] = np.from_dlpack,
    ) -> None:
        self.function = function
        self.capabilities = capabilities
        self.from_dlpack = from_dlpack

    def draw(self, logits: Tensor, rows: Rows) -> Drawn:
        """Return the function's ids, and its processed logits if it gave them."""

        def array(tensor: Tensor | None) -> Any:
            return None if tensor is None else self.from_dlpack(tensor)

        result = self.function(
            self.from_dlpack(logits),
            ArrayRows(
                top_k=array(rows.top_k),
                top_p=array(rows.top_p),
                temperature=array(rows.temperature),
                min_p=array(rows.min_p),
                seed=array(rows.seed),
                step=array(rows.step),
                seeded=array(rows.seeded),
            ),
        )
        ids, *processed = result if isinstance(result, tuple) else (result,)
        return Drawn(from_dlpack(ids), *map(from_dlpack, processed))

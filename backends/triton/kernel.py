"""The Triton kernels as a level-1 backend: torch tensors in, ids out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from refsampler import __version__
from refsampler.backends.protocol import Capabilities, Drawn, DType, Feature, Fold, Rows
from refsampler.backends.triton.geometry import (
    INTERPRETED,
    TUNED,
    WAVES_OF_32,
    WAVES_OF_64,
    Geometry,
)
from refsampler.backends.triton.launch import Launcher
from refsampler.backends.triton.verify import Drafts, verify_drafts
from refsampler.semantics import Semantics

__all__ = ["TritonKernel"]

_DTYPES = frozenset(DType)
_TORCH_DTYPES = frozenset(one.torch for one in _DTYPES)
_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seed", "seeded", "step")
"""Parameters of a row, in the order of `Batch`."""
_FLOOR = 1e-9
"""Masses and noise reach further; this is the finest grade of `draw.tail`."""
_SLOW_FLOOR = 1e-6
"""In the interpreter, where a finer grade would need years."""
_INTERPRETER = threading.Lock()


@contextmanager
def _in_interpreter(_logits: Tensor) -> Iterator[None]:
    """Hold the interpreter, which keeps its place in the grid in a global, and IEEE arithmetic.

    Masked lanes compute with infinities, of which numpy would warn.
    """
    with _INTERPRETER, np.errstate(all="ignore"):
        yield


def _on_device() -> Callable[[Tensor], AbstractContextManager[object]]:
    """Return what makes the tensor's device the current one; where there is one, it is."""
    return nullcontext if torch.cuda.device_count() == 1 else torch.cuda.device_of


class TritonKernel:
    """Level 1, all of step 7, on float32, bfloat16 and float16 rows of any strides.

    Law: softmax(x / T) over what min-p, top-k and top-p leave, drawn by inverse CDF in the order of
    ids.  Everything equal to the k-th value stays, and equal logits at the edge of top-p stand or
    fall together (`top-k.ties`, `top-p.ties`: all); equal means equal after division by T.  Masses
    are integers and noise is Philox of (seed, step), so an id is a function of its row's logits,
    parameters, seed and step.  Unseeded rows get keys from torch's default generator, fresh ones
    when a CUDA graph is replayed.  NaN counts as -inf; a row that holds +inf gives the lowest id of one (`nonfinite.contained`).

    Args:
        device: where the logits live; None is the GPU, or the CPU under `TRITON_INTERPRET=1`.
        geometry: sizes of blocks; None is what was tuned for the device.

    Raises:
        ModuleNotFoundError: triton is not installed (extra `triton`).
        RuntimeError: there is no GPU, and the interpreter is not asked for.

    """

    def __init__(self, device: str | None = None, geometry: Geometry | None = None) -> None:
        import triton

        interpreted = bool(triton.knobs.runtime.interpret)
        if device is None:
            device = "cpu" if interpreted else "cuda"
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("triton needs a GPU, or TRITON_INTERPRET=1 to run on the CPU")
        self._geometry = geometry or (INTERPRETED if interpreted else _tuned())
        self._nvidia = not interpreted and torch.version.hip is None
        self._draw_rows = Launcher(self._geometry, nvidia=self._nvidia)
        self._context = _in_interpreter if interpreted else _on_device()
        features = {Feature.SEED, Feature.BITWISE}
        if not interpreted:
            features.add(Feature.GRAPH)
        self.capabilities = Capabilities(
            name="triton",
            version=f"{__version__}, triton {triton.__version__}",
            level=1,
            device=device,
            semantics=Semantics(profile="vllm, ties at p together", top_p_ties="all"),
            floor=_SLOW_FLOOR if interpreted else _FLOOR,
            dtypes=_DTYPES,
            features=frozenset(features),
            folds=frozenset(Fold),
        )

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return int32 ids [B]; the input stays as it is.

        Raises:
            TypeError: the logits are of another dtype than float32, bfloat16 or float16.
            ValueError: the logits are not [B, V] with V >= 1, or a parameter is not [B].

        """
        columns = [getattr(rows, name) for name in _COLUMNS]
        _check(logits, columns)
        if not logits.shape[0]:
            return Drawn(torch.empty(0, dtype=torch.int32, device=logits.device))
        noise = None
        if len(rows.generators) != logits.shape[0]:
            noise = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device).random_()
        with self._context(logits):
            return Drawn(self._draw_rows(logits, (*columns, noise)))

    def verify(self, given: Drafts) -> Int32[Tensor, "requests places"]:
        """Return what each request emits, -1 behind it (clause `spec.law`)."""
        with self._context(given.logits):
            return verify_drafts(self._geometry, given, nvidia=self._nvidia)

    def left_over(self) -> Tensor:
        """Return what each row of this thread's last batch left to the last kernel, for tests.

        0 is nothing; see `device/nucleus.py` and `device/top_k.py`.
        """
        return self._draw_rows.left_over()


def _tuned() -> Geometry:
    """Return the sizes for the current GPU."""
    if torch.version.hip is None:
        return TUNED
    return WAVES_OF_32 if torch.cuda.get_device_properties().warp_size == 32 else WAVES_OF_64


def _check(logits: Tensor, columns: Sequence[Tensor | None]) -> None:
    """Refuse what the kernels would read wrongly."""
    if logits.dtype not in _TORCH_DTYPES:
        allowed = ", ".join(sorted(_DTYPES))
        raise TypeError(f"logits.dtype = {logits.dtype} is refused: allowed are {allowed}")
    if logits.ndim != 2 or logits.shape[1] < 1:
        raise ValueError(f"logits.shape = {tuple(logits.shape)} is refused: allowed is [B, V >= 1]")
    allowed_shape = logits.shape[:1]
    for name, column in zip(_COLUMNS, columns, strict=True):
        if column is not None and (column.shape != allowed_shape or not column.is_contiguous()):
            raise ValueError(
                f"{name}.shape = {tuple(column.shape)} is refused: allowed is "
                f"{tuple(allowed_shape)}, contiguous"
            )

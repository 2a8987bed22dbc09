"""The CPU sampler as a level-1 backend: torch tensors in, ids out."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from refsampler import __version__
from refsampler.backends.protocol import Capabilities, Drawn, DType, Feature, Fold, Rows
from refsampler.semantics import Semantics

__all__ = ["Compiled", "CpuKernel"]

_SMALLEST_SHARED: Final = 2**16
"""Logits of a batch from which on threads are worth their start."""


_Job: Final = ctypes.c_int64 * 20
"""The numbers of a call, in the order of `loops.JOB`."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the first call cost.

    Attributes:
        seconds: until the sampler was ready to draw.
        from_cache: numba found it compiled.

    """

    seconds: float
    from_cache: bool


class CpuKernel:
    """Level 1, all of step 7 on contiguous or strided float32, bfloat16 and float16 rows.

    Law: softmax(x / T) in float64 over what min-p, top-k and top-p leave.  Everything equal to the
    k-th value stays, and equal logits at the edge of top-p stand or fall together (`top-k.ties`,
    `top-p.ties`: all).  A row's id is a function of its seed, step, logits and parameters; unseeded
    rows get keys from torch's default generator.  Rows run on as many threads as torch is set to.

    Args:
        processed: whether `draw` returns the logits drawn from as well, which costs passes.
        floor: least probability of an id whose tail is declared, and hence asked for.

    Raises:
        ModuleNotFoundError: numba is not installed (extra `cpu`).

    """

    def __init__(self, *, processed: bool = False, floor: float = 1e-6) -> None:
        import numba

        self._processed = processed
        self._threads = int(numba.config.NUMBA_NUM_THREADS)
        self._local = threading.local()
        self._shared = threading.Lock()
        self._process = os.getpid()
        self._loops: Any = None
        self._draw_rows: Any = None
        self._read_rows: Any = None
        features = {Feature.SEED, Feature.BITWISE}
        if processed:
            features |= {Feature.PROCESSED, Feature.SAME_PATH}
        self.capabilities = Capabilities(
            name="cpu",
            version=f"{__version__}, numba {numba.__version__}",
            level=1,
            semantics=Semantics(profile="vllm, ties at p together", top_p_ties="all"),
            dtypes=frozenset(DType),
            features=frozenset(features),
            folds=frozenset(Fold),
            floor=floor,
        )

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return int32 ids [B]; the input stays as it is.

        Raises:
            TypeError: the logits are of another dtype than float32, bfloat16 or float16.
            ValueError: the logits are not [B, V] on the CPU with V >= 1, a parameter is not [B],
                or a temperature, p or min-p is out of range.

        """
        shown = torch.empty(logits.shape, dtype=torch.float32) if self._processed else None
        return Drawn(self._run(logits, rows, shown), shown)

    def processed_logits(self, logits: Float[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        """Return the logits that `draw` draws from: x / T where kept, -inf elsewhere."""
        shown = torch.empty(logits.shape, dtype=torch.float32)
        self._run(logits, rows, shown)
        return shown

    def processed_logprobs(
        self, logits: Float[Tensor, "B V"], rows: Rows
    ) -> Float32[Tensor, "B V"]:
        """Return log-probabilities of the law that `draw` draws from."""
        return self.processed_logits(logits, rows).log_softmax(dim=-1)

    def read(self, logits: Float32[Tensor, "B V"], times: int = 1) -> None:
        """Read contiguous float32 rows, each `times` times in a row: the memory floor.

        Raises:
            ValueError: the rows are not float32, or not contiguous.

        """
        loops = self._loops or self._compiled()
        if _kind(logits) != loops.FLOAT32 or logits.stride(1) != 1:
            raise ValueError(f"logits = {logits.dtype} of stride {logits.stride()} are refused")
        batch, vocab = logits.shape
        sizes = (logits.data_ptr(), logits.stride(0), 1, loops.FLOAT32, batch, vocab, times)
        job = _Job(*sizes)
        self._in_loop(self._read_rows, job, batch, self._wanted_threads(batch, logits.numel()))

    def draw_after_reading(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Tensor:
        """Read each row once, then draw from it: its logits are in the cache, nothing else is."""
        return self._run(logits, rows, None, touch=1)

    def prepare(self) -> Compiled:
        """Compile, or load from numba's cache, what a call needs; a second time costs nothing."""
        started = time.perf_counter()
        loops = self._compiled()
        if self._threads > 1:
            zero = torch.zeros(2, dtype=torch.int64)
            rows = Rows(None, None, None, None, zero, zero, zero == 0, {})
            self._run(torch.zeros(2, 1), rows, None, threads=2)
        from_cache = loops.draw_rows.cache_hits > 0
        return Compiled(time.perf_counter() - started, from_cache)

    def _compiled(self) -> Any:
        if self._loops is None:
            from refsampler.backends.cpu import loops

            # Made anew at every look, hence kept.
            self._draw_rows, self._read_rows = loops.draw_rows.ctypes, loops.read_rows.ctypes
            self._loops = loops
        return self._loops

    def _run(
        self,
        logits: Tensor,
        rows: Rows,
        shown: Tensor | None,
        *,
        threads: int | None = None,
        touch: int = 0,
    ) -> Tensor:
        """Draw, and fill `shown` if it is there; with `touch` each row is read once before."""
        loops = self._loops or self._compiled()
        kind = _kind(logits)
        batch, vocab = logits.shape
        ids = torch.empty(batch, dtype=torch.int32)
        if batch == 0:
            return ids
        # Kept alive until the loop is through: it gets addresses.
        held = (
            _column(rows.temperature, "temperature", torch.float32, batch),
            _column(rows.top_k, "top_k", torch.int32, batch),
            _column(rows.top_p, "top_p", torch.float32, batch),
            _column(rows.min_p, "min_p", torch.float32, batch),
            _column(rows.seed, "seed", torch.int64, batch),
            _column(rows.step, "step", torch.int64, batch),
            _column(rows.seeded, "seeded", torch.bool, batch),
            None if bool(rows.seeded.all()) else torch.empty(batch, dtype=torch.int64).random_(),
            ids,
            shown,
        )
        if threads is None:
            threads = self._wanted_threads(batch, batch * vocab)
        stride = logits.stride(1) if vocab > 1 else 1
        scratch = self._scratch(vocab, threads, kind != loops.FLOAT32 or stride != 1)
        addresses = [0 if one is None else one.data_ptr() for one in (*held, *scratch)]
        sizes = (logits.data_ptr(), logits.stride(0), stride, kind, batch, vocab, touch)
        job = _Job(*sizes, *addresses)
        if self._in_loop(self._draw_rows, job, batch, threads) < 0:
            _refuse(rows)
        return ids

    def _in_loop(self, loop: Any, job: Any, batch: int, threads: int) -> int:
        """Run a loop, in this thread if another one has the others."""
        address = ctypes.addressof(job)
        if threads == 1 or not self._shared.acquire(blocking=False):
            return int(loop(address, 0, batch, 0))
        try:
            self._loops.numba.set_num_threads(threads)
            function = ctypes.cast(loop, ctypes.c_void_p).value
            return int(self._loops.in_parallel(function, address, batch))
        finally:
            self._shared.release()

    def _wanted_threads(self, batch: int, elements: int) -> int:
        """Return how many threads a batch is worth.

        One after a fork: GNU's OpenMP ends a process that forked while it had threads.
        """
        if batch == 1 or elements < _SMALLEST_SHARED or os.getpid() != self._process:
            return 1
        return min(torch.get_num_threads(), self._threads, batch)

    def _scratch(self, vocab: int, threads: int, widen: bool) -> tuple[Tensor, ...]:
        """Return this thread's scratch memory, kept from the last call of the same shape."""
        wanted = (vocab, threads, widen)
        if getattr(self._local, "made_for", None) != wanted:
            sizes = self._loops.scratch_sizes.py_func(vocab, widen)
            types = (torch.float32, torch.int32, torch.float64)
            self._local.scratch = tuple(
                torch.empty(threads * size, dtype=dtype)
                for size, dtype in zip(sizes, types, strict=True)
            )
            self._local.made_for = wanted
        scratch: tuple[Tensor, ...] = self._local.scratch
        return scratch


_KINDS: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def _kind(logits: Tensor) -> int:
    """Return what the loops call the dtype, or refuse the logits."""
    kind = _KINDS.get(logits.dtype)
    if kind is None:
        names = ", ".join(sorted(DType))
        raise TypeError(f"logits.dtype = {logits.dtype} is refused: allowed are {names}")
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.device.type != "cpu":
        raise ValueError(
            f"logits = {tuple(logits.shape)} on {logits.device} is refused: allowed is [B, V] on"
            " the CPU with V >= 1"
        )
    return kind


def _column(column: Tensor | None, name: str, dtype: torch.dtype, batch: int) -> Tensor | None:
    """Return a parameter as the loops read it."""
    if column is None:
        return None
    if column.shape != (batch,):
        raise ValueError(f"{name}.shape = {tuple(column.shape)} is refused: allowed is ({batch},)")
    if column.dtype is not dtype:
        column = column.to(dtype)
    return column.contiguous()


def _refuse(rows: Rows) -> None:
    """Name the parameter that a loop refused.

    Raises:
        ValueError: always.

    """
    for name, column, low, high, allowed in (
        ("temperature", rows.temperature, 0.0, sys.float_info.max, "0 or more, finite"),
        ("top_p", rows.top_p, sys.float_info.min, math.inf, "above 0"),
        ("min_p", rows.min_p, 0.0, 1.0, "0 to 1"),
    ):
        for row, value in enumerate([] if column is None else column.tolist()):
            if not low <= value <= high:
                raise ValueError(f"{name}[{row}] = {value!r} is refused: allowed is {allowed}")
    raise AssertionError("a row was refused whose parameters are in range")

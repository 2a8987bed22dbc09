"""What Python calls: a loop over rows, compiled once a machine and kept in numba's cache.

The loop is a C function, which one thread calls as it is and several threads call by its address:
compiled once, so that a row's id cannot depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from refsampler.backends.cpu.passes import row_max
from refsampler.backends.cpu.rows import argmax_row, draw_row
from refsampler.backends.cpu.scalars import LOWEST, NEGINF
from refsampler.backends.cpu.vectors import BLOCK, bits_of_float, float_of_bits, pointer

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "JOB",
    "draw_rows",
    "in_parallel",
    "read_rows",
    "scratch_sizes",
]

FLOAT32: Final = 0
BFLOAT16: Final = 1
FLOAT16: Final = 2
"""Kinds of logits, as the loops are told."""

JOB: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            "logits",
            "row_stride",
            "stride",
            "kind",
            "batch",
            "vocab",
            "touch",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "step",
            "seeded",
            "fresh",
            "ids",
            "shown",
            "floats",
            "ints",
            "doubles",
        )
    ]
)
"""A call: sizes, and addresses that are 0 where nobody asks.

`touch` says how often `read_rows` reads a row, and whether `draw_rows` reads it once before.
"""

_REFUSED: Final = -1
_GREEDY_BELOW: Final = float(np.float32(1e-5))
_TWO_112: Final = np.float32(2.0**112)
_SMALLEST_LISTS: Final = 4096


@njit(error_model="numpy")
def _lengths(vocab: int) -> tuple[int, int, int]:
    """Return the lengths of block maxima, of lists of candidates and of sums of blocks."""
    return vocab // 64 + 129, max(_SMALLEST_LISTS, vocab // 16) + 4 * BLOCK, vocab // BLOCK + 18


@njit(error_model="numpy")
def scratch_sizes(vocab: int, widen: bool) -> tuple[int, int, int]:
    """Return how many float32, int32 and float64 numbers a thread works with.

    Some 1.2 bytes a logit, and 4 more for rows that are not contiguous float32.
    """
    maxima, lists, blocks = _lengths(vocab)
    return BLOCK + lists + maxima + (vocab if widen else 0), lists, 2 * blocks + lists + BLOCK


@njit(error_model="numpy")
def _widen(address: int, stride: int, kind: int, row: Any, bits: Any) -> None:
    """Write a row of any stride and dtype as float32; `bits` is `row` seen as int32."""
    n = row.size
    if kind == FLOAT32:
        floats = numba.carray(pointer(address), (n * stride,), np.float32)
        for j in range(n):
            row[j] = floats[j * stride]
        return
    halves = numba.carray(pointer(address), (n * stride,), np.uint16)
    if kind == BFLOAT16:
        for j in range(n):
            bits[j] = np.int32(halves[j * stride]) << np.int32(16)
        return
    for j in range(n):
        half = np.int32(halves[j * stride])
        moved = (half & np.int32(0x7FFF)) << np.int32(13)
        number = bits_of_float(float_of_bits(moved) * _TWO_112)
        is_special = half & np.int32(0x7C00) == np.int32(0x7C00)  # infinities and NaN
        number = moved | np.int32(0x7F800000) if is_special else number
        bits[j] = number | ((half & np.int32(0x8000)) << np.int32(16))


@njit(error_model="numpy")
def _row(job: Any, r: int, wide: int) -> Any:
    """Return row r as contiguous float32: where it lies, or widened into scratch."""
    size = 4 if job.kind == FLOAT32 else 2
    address = job.logits + r * job.row_stride * size
    if job.kind == FLOAT32 and job.stride == 1:
        return numba.carray(pointer(address), (job.vocab,), np.float32)
    row = numba.carray(pointer(wide), (job.vocab,), np.float32)
    bits = numba.carray(pointer(wide), (job.vocab,), np.int32)
    if job.stride == 1:  # a constant stride makes vectors of the loops
        _widen(address, 1, job.kind, row, bits)
    else:
        _widen(address, job.stride, job.kind, row, bits)
    return row


@njit(error_model="numpy")
def _show(row: Any, least: np.float32, temperature: np.float32, shown: Any) -> None:
    """Write the logits drawn from: x / T in float32 where kept, -inf elsewhere."""
    for j in range(row.size):
        shown[j] = row[j] / temperature if row[j] >= least else NEGINF


@njit(error_model="numpy")
def _parameters(job: Any, r: int) -> tuple[np.float32, Any, float, float]:
    """Return T, k, p and min-p of row r."""
    t, k, p, min_p = np.float32(1.0), np.int64(0), 1.0, 0.0
    if job.temperature != 0:
        t = numba.carray(pointer(job.temperature), (job.batch,), np.float32)[r]
    if job.top_k != 0:
        k = np.int64(numba.carray(pointer(job.top_k), (job.batch,), np.int32)[r])
    if job.top_p != 0:
        p = float(numba.carray(pointer(job.top_p), (job.batch,), np.float32)[r])
    if job.min_p != 0:
        min_p = float(numba.carray(pointer(job.min_p), (job.batch,), np.float32)[r])
    return t, k, p, min_p


@njit(error_model="numpy")
def _draw_rows(address: int, start: int, stop: int, thread: int) -> int:
    """Draw the rows start..stop-1 of a job; `_REFUSED` if a parameter is out of range, else 0."""
    job = numba.carray(pointer(address), (1,), JOB)[0]
    vocab, batch = job.vocab, job.batch
    maxima_n, lists, blocks = _lengths(vocab)
    widen = not (job.kind == FLOAT32 and job.stride == 1)
    sizes = scratch_sizes(vocab, widen)
    floats_n, ints_n, doubles_n = sizes
    floats = numba.carray(pointer(job.floats + 4 * thread * floats_n), (floats_n,), np.float32)
    ids = numba.carray(pointer(job.ints + 4 * thread * ints_n), (ints_n,), np.int32)
    doubles = numba.carray(pointer(job.doubles + 8 * thread * doubles_n), (doubles_n,), np.float64)
    pad, values = floats[:BLOCK], floats[BLOCK : BLOCK + lists]
    maxima = floats[BLOCK + lists : BLOCK + lists + maxima_n]
    wide = job.floats + 4 * (thread * floats_n + BLOCK + lists + maxima_n)
    out = numba.carray(pointer(job.ids), (batch,), np.int32)
    seeded = numba.carray(pointer(job.seeded), (batch,), np.uint8)
    step = numba.carray(pointer(job.step), (batch,), np.uint64)
    state = 0
    for r in range(start, stop):
        x = _row(job, r, wide)
        if job.touch != 0:
            row_max(x)
        t, k, p, min_p = _parameters(job, r)
        if not (0.0 <= t < np.inf and p > 0.0 and 0.0 <= min_p <= 1.0):
            state = _REFUSED
            continue
        least = LOWEST
        if t < _GREEDY_BELOW:
            t = np.float32(1.0)
            out[r] = argmax_row(x, pad, maxima)
        else:
            own = seeded[r] != 0
            keys = numba.carray(pointer(job.seed if own else job.fresh), (batch,), np.uint64)
            out[r], least = draw_row(
                x,
                1.0 / float(t),
                k,
                p,
                min_p,
                keys[r],
                step[r],
                np.uint64(0 if own else 1),
                job.shown != 0,
                pad,
                maxima,
                values,
                ids,
                doubles[:blocks],
                doubles[blocks : 2 * blocks],
                doubles[2 * blocks : 2 * blocks + lists],
                doubles[2 * blocks + lists :],
            )
        if job.shown != 0:
            at = pointer(job.shown + r * vocab * 4)
            _show(x, least, t, numba.carray(at, (vocab,), np.float32))
    return state


@njit(error_model="numpy")
def _read_rows(address: int, start: int, stop: int, _thread: int) -> int:
    """Read the float32 rows start..stop-1 of a job `touch` times: the memory floor."""
    job = numba.carray(pointer(address), (1,), JOB)[0]
    seen = 0
    for r in range(start, stop):
        at = pointer(job.logits + r * job.row_stride * 4)
        row = numba.carray(at, (job.vocab,), np.float32)
        for _i in range(job.touch):
            seen += row_max(row) > 0
    return seen


@intrinsic
def _call(_typing: Any, _loop: Any, _job: Any, _start: Any, _stop: Any, _thread: Any) -> Any:
    """Call a loop by its address."""

    def code(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        long = ir.IntType(64)
        kind = ir.FunctionType(long, [long] * 4).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), code


def _rows_in_parallel(function: int, job: int, batch: int) -> int:
    """Call a loop for each row, on the threads that numba is set to; the least of its results."""
    worst: Any = np.int64(0)
    for r in prange(batch):
        state = _call(function, job, r, r + 1, numba.get_thread_id())
        worst = min(worst, state)
    return worst


def _digest() -> str:
    """Return a digest of this folder's sources."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _cached(decorator: Callable[..., Any], *signature: Any, **options: Any) -> Callable[..., Any]:
    """Return a numba decorator that caches where something can be written, else does not."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return decorator(*signature, cache=True, **options)(function)
        except RuntimeError:
            return decorator(*signature, **options)(function)

    return decorate


def _loops(digest: str) -> tuple[Any, Any]:
    """Compile the loops to C functions, or load what an earlier process compiled.

    Numba's cache looks at the file of a function and at what it closes over, not at the other files
    here; with the digest among that, a change of any of them counts.
    """
    signature = types.int64(*[types.int64] * 4)

    def draw(job: int, start: int, stop: int, thread: int) -> int:
        _ = digest
        return _draw_rows(job, start, stop, thread)

    def read(job: int, start: int, stop: int, thread: int) -> int:
        _ = digest
        return _read_rows(job, start, stop, thread)

    compiled = _cached(numba.cfunc, signature, error_model="numpy")
    return compiled(draw), compiled(read)


if "NUMBA_THREADING_LAYER_PRIORITY" not in os.environ:
    # Two threads on rows in the cache: omp is 1.85 times as fast as one, tbb 1.1 to 1.6 times,
    # workqueue slower than one.
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
draw_rows, read_rows = _loops(_digest())
in_parallel = _cached(njit, nogil=True, parallel=True)(_rows_in_parallel)

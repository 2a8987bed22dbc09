"""Read one: the maximum of each chunk of neighbouring ids and, if wanted, its mass."""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import chunk_masses, row_max
from refsampler.backends.triton.device.rows import load_tile, row_temperature

__all__ = ["scan_kernel"]


@triton.jit(do_not_specialize=["blocks"])
def scan_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    chunk_max,
    chunk_mass,
    V,
    chunks,
    blocks,
    STRIDED: tl.constexpr,
    SUMS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Write R maxima and masses relative to them a program; grid rows * blocks.

    `chunks` is a multiple of R: the padding gets -inf and 0.
    """
    program = tl.program_id(0)
    row, block = (program // blocks).to(tl.int64), program % blocks
    chunk = block * R + tl.arange(0, R)
    start = logits + row * row_stride
    x = load_tile(start, block * R * C, id_stride, V, STRIDED, R, C)
    top = row_max(x)
    tl.store(chunk_max + row * chunks + chunk, top)
    if SUMS:
        t, _ = row_temperature(temperature, row)
        tl.store(chunk_mass + row * chunks + chunk, chunk_masses(x, top, t))

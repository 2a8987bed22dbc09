"""Read one: the maximum of each chunk of neighbouring ids and, if wanted, its mass."""

import triton
import triton.language as tl

from refsampler.backends.triton.device.numbers import chunk_masses, chunk_max, row_max
from refsampler.backends.triton.device.rows import (
    controls,
    load_chunks,
    row_temperature,
)

__all__ = ["scan_kernel", "scan_mixed_kernel", "store_masses"]


@triton.jit
def store_masses(x, t, maxima, masses, PTX: tl.constexpr):
    """Write the maxima of the chunks of x [R, H, LANES] and the masses relative to them."""
    top, r = chunk_max(x), tl.arange(0, x.shape[0])
    tl.store(maxima + r, top)
    tl.store(masses + r, chunk_masses(x, top, t, PTX))


@triton.jit(do_not_specialize=["blocks"])
def scan_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    mass_max,
    chunk_mass,
    V,
    chunks,
    blocks,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write R maxima and masses a program; grid rows * blocks.

    `chunks` is a multiple of R: the padding gets -inf and 0.
    """
    program = tl.program_id(0)
    row, block = (program // blocks).to(tl.int64), program % blocks
    x = load_chunks(logits + row * row_stride, block * R, id_stride, V, STRIDED, R, C, LANES)
    t, _ = row_temperature(temperature, row)
    mass_max, chunk_mass = mass_max + row * chunks, chunk_mass + 2 * row * chunks
    store_masses(x, t, mass_max + block * R, chunk_mass + block * R, PTX)


@triton.jit(do_not_specialize=["blocks"])
def scan_mixed_kernel(
    logits,
    row_stride,
    id_stride,
    temperature,
    top_k,
    min_p,
    top_max,
    mass_max,
    chunk_mass,
    V,
    chunks,
    mass_chunks,
    blocks,
    STRIDED: tl.constexpr,
    PTX: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    MASS_C: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write R maxima of C ids a program, and in rows without top-k and min-p what the scan above does."""
    MASS_R: tl.constexpr = R * C // MASS_C
    program = tl.program_id(0)
    row, block = (program // blocks).to(tl.int64), program % blocks
    start = logits + row * row_stride
    x = load_chunks(start, block * MASS_R, id_stride, V, STRIDED, MASS_R, MASS_C, LANES)
    maxima = row_max(tl.reshape(x, (R, C)))
    tl.store(top_max + row * chunks + block * R + tl.arange(0, R), maxima)
    t, greedy = row_temperature(temperature, row)
    k, _, least = controls(top_k, None, min_p, row, greedy, V)
    if (k >= V) & (least <= 0):
        at = row * mass_chunks + block * MASS_R
        store_masses(x, t, mass_max + at, chunk_mass + at + row * mass_chunks, PTX)

"""Sizes of blocks and workspaces: tuned for speed, without any influence on an id."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["INTERPRETED", "TUNED", "Geometry", "padded", "up"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a row is cut.

    Attributes:
        mass_chunk: ids of a chunk whose mass is kept; at most 256, and 4096 a segment.
        mass_rows: chunks of a segment.
        scan_rows: chunks that one program of the scan for masses reads.
        scan_warps: warps of such a program.
        scan_registers, above_registers: limits for the two reads, 0 for none.
        top_chunk: ids of a chunk of which only the maximum is kept.
        top_rows: chunks that one program of the scan for maxima reads.
        reopened: chunks that top-k reopens at a time, in small and in large batches.
        most_chunks: chunks beyond which top-k reopens none.
        candidates: longest list that top-k writes.
        ranked: longest list that is ranked by comparing all pairs.
        tiles: segments a program in later rounds of top-p.
        rounds: rounds of four proposals.
        block: ids that a program of the last kernel reads at a time.
        rest_warps: warps of such a program, with top-k and with top-p alone.
        least_chunks, least_top_chunks, least_blocks: what a row is padded to inside a program, so
            that all vocabularies up to 131072 share one compiled kernel.

    """

    mass_chunk: int = 256
    mass_rows: int = 16
    scan_rows: int = 16
    scan_warps: int = 4
    scan_registers: int = 0
    above_registers: int = 0
    top_chunk: int = 64
    top_rows: int = 64
    reopened: tuple[int, int] = (64, 32)
    most_chunks: int = 1024
    candidates: int = 2048
    ranked: int = 256
    tiles: int = 8
    rounds: int = 3
    block: int = 4096
    least_chunks: int = 512
    least_top_chunks: int = 2048
    least_blocks: int = 32
    rest_warps: tuple[int, int] = (8, 16)


TUNED = Geometry()
"""Measured on an H200 at V = 128256."""

INTERPRETED = Geometry(
    mass_chunk=16,
    mass_rows=8,
    scan_rows=4,
    top_chunk=8,
    top_rows=16,
    reopened=(8, 4),
    most_chunks=24,
    candidates=128,
    ranked=16,
    tiles=2,
    block=256,
    least_chunks=16,
    least_top_chunks=16,
    least_blocks=1,
)
"""Small enough for Triton's interpreter, and for rows of a few hundred ids to meet every path."""


def up(count: int, multiple: int) -> int:
    """Return the next multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


def padded(count: int, least: int) -> int:
    """Return the least power of two that is at least both; `least` is one."""
    return max(least, 1 << (count - 1).bit_length())

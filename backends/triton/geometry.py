"""Sizes of blocks and workspaces: tuned for speed, without any influence on an id but `rounds`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = [
    "INTERPRETED",
    "TUNED",
    "WAVES_OF_32",
    "WAVES_OF_64",
    "Geometry",
    "Sizes",
    "padded",
    "sizes_of",
    "up",
]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a row is cut.

    Attributes:
        mass_chunk: ids of a chunk whose mass is kept; at most 256.
        mass_rows: chunks that one program of the scan for masses reads.
        scan_warps: warps of such a program.
        scan_registers, above_registers, rest_registers: limits for the two reads and the last
            kernel beside top-k, 0 for none; the row kernels of large batches have one of 128.
        lanes: ids of neighbouring places that a warp reads at a time.
        above_tile: of a program of read two: how often each warp reads, and how many read.
        top_chunk: ids of a chunk of which only the maximum is kept.
        top_rows: chunks that one program of the scan for maxima reads.
        reopened: chunks that top-k reopens at a time.
        most_chunks: chunks beyond which top-k reopens none.
        candidates: longest list that top-k writes; at most 2^20.
        ranked: longest list that is ranked by comparing all pairs.
        level_tile: parts of a plateau that a program reads at a time, and ids of a part.
        rounds: rounds of four proposals before the row is searched.
        rounds_tile: pieces of `lanes` ids in a row that a warp reads for later rounds, and how many
            warps read; whole chunks.
        rounds_beside: the same beside rows with top-k.
        rest_block: ids that a program of the last kernel reads at a time.
        rest_warps: warps of such a program.
        opened: chunks that the search for the edge of a target reopens at a time.
        least_chunks, least_top_chunks, least_blocks: what a row is padded to inside a program, so
            that all vocabularies up to 131072 share one compiled kernel.
        least_drafts: places of a request, likewise.

    """

    mass_chunk: int = 256
    mass_rows: int = 16
    scan_warps: int = 4
    scan_registers: int = 0
    above_registers: int = 80
    rest_registers: int = 128
    lanes: int = 128
    above_tile: tuple[int, int] = (8, 4)
    top_chunk: int = 64
    top_rows: int = 64
    reopened: int = 64
    most_chunks: int = 1024
    candidates: int = 2048
    ranked: int = 256
    level_tile: tuple[int, int] = (4, 1024)
    rounds: int = 8
    rounds_tile: tuple[int, int] = (8, 8)
    rounds_beside: tuple[int, int] = (4, 8)
    rest_block: int = 4096
    rest_warps: int = 8
    opened: int = 8
    least_chunks: int = 512
    least_top_chunks: int = 2048
    least_blocks: int = 32
    least_drafts: int = 8


TUNED = Geometry()
"""Measured on an H200 at V = 128256."""

WAVES_OF_64 = replace(TUNED, rounds_tile=(4, 8))
"""For AMD's GPUs whose waves have 64 lanes.  Compiled, not run."""

WAVES_OF_32 = replace(WAVES_OF_64, rest_warps=16, reopened=32)
"""For AMD's GPUs whose waves have 32 lanes: so many threads, and so little at a time, that a kernel keeps
to its registers.  Compiled, not run."""

INTERPRETED = Geometry(
    mass_chunk=16,
    mass_rows=8,
    lanes=8,
    above_tile=(4, 4),
    top_chunk=8,
    top_rows=16,
    reopened=8,
    most_chunks=24,
    candidates=128,
    ranked=16,
    level_tile=(4, 64),
    rounds_tile=(4, 8),
    rounds_beside=(2, 8),
    rest_block=256,
    opened=4,
    least_chunks=16,
    least_top_chunks=16,
    least_blocks=1,
    least_drafts=2,
)
"""Small enough for Triton's interpreter, and for rows of a few hundred ids to meet every path."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of the workspace for one vocabulary.

    Attributes:
        mass_chunks, top_chunks: chunks of the two scans.
        above_blocks, parts: tiles of read two a row, and parts of a row.
        level_parts, blocks: parts of a plateau and tiles of the last kernel, padded.
        lists: candidates of a row.

    """

    mass_chunks: int
    top_chunks: int
    above_blocks: int
    parts: int
    level_parts: int
    blocks: int
    lists: int


def sizes_of(geometry: Geometry, vocab: int) -> Sizes:
    """Return the widths for V = `vocab`."""
    g = geometry
    tile = g.above_tile[0] * g.above_tile[1] * g.lanes
    # Both scans and read two cover the same ids.
    ids = up(
        vocab,
        math.lcm(
            g.mass_rows * g.mass_chunk,
            tile,
            g.top_rows * g.top_chunk,
        ),
    )
    return Sizes(
        mass_chunks=ids // g.mass_chunk,
        top_chunks=ids // g.top_chunk,
        above_blocks=ids // tile,
        parts=ids // (g.above_tile[0] * g.lanes),
        level_parts=padded(-(-vocab // g.level_tile[1]), g.level_tile[0] * g.least_blocks),
        blocks=padded(-(-vocab // g.rest_block), g.least_blocks),
        lists=min(g.candidates, up(vocab, 16)),
    )


def up(count: int, multiple: int) -> int:
    """Return the next multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


def padded(count: int, least: int) -> int:
    """Return the least power of two that is at least both; `least` is one."""
    return max(least, 1 << (count - 1).bit_length())

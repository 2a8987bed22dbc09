"""Which kernels a batch needs, in which order, over which workspace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from refsampler.backends.triton.device.draw import draw_kernel
from refsampler.backends.triton.device.nucleus import above_kernel
from refsampler.backends.triton.device.rest import rest_kernel
from refsampler.backends.triton.device.scan import scan_kernel, scan_mixed_kernel
from refsampler.backends.triton.device.top_k import top_k_kernel
from refsampler.backends.triton.geometry import Geometry, padded, sizes_of

__all__ = ["Batch", "Call", "Made", "Workspace"]

_MANY_ROWS = 256
"""Above this all programs of a row kernel are resident only with fewer registers each."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a call hands over; a filter that is None is off for the whole batch.

    Attributes:
        logits: float32, bfloat16 or float16 [B, V], any strides.
        temperature, top_p, min_p: float32 [B].
        top_k: int32 [B].
        seed, step: int64 [B].
        noise: int64 [B], the keys of unseeded rows; None if every row is seeded.
        seeded: bool [B].

    """

    logits: Tensor
    temperature: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    seed: Tensor
    seeded: Tensor
    step: Tensor
    noise: Tensor | None

    @property
    def by_count(self) -> bool:
        """Whether top-k or min-p may act."""
        return self.top_k is not None or self.min_p is not None

    def complete(self, neutral: tuple[Tensor, ...]) -> Batch:
        """Give absent parameters neutral values, so that fewer variants have to be compiled.

        Args:
            neutral: p or T, k, min-p and noise that do nothing, for as many rows.

        """
        one, no_k, no_min_p, no_noise = neutral
        return replace(
            self,
            temperature=one if self.temperature is None else self.temperature,
            top_k=no_k if self.top_k is None and self.min_p is not None else self.top_k,
            top_p=one if self.top_p is None and self.by_count else self.top_p,
            min_p=no_min_p if self.min_p is None and self.top_k is not None else self.min_p,
            noise=no_noise if self.noise is None else self.noise,
        )


class Workspace:
    """Scratch memory of one call: int64, int32 and float32 arrays [rows, ...]."""

    def __init__(self, geometry: Geometry, batch: Batch) -> None:
        rows, vocab = batch.logits.shape
        self.sizes = sizes = sizes_of(geometry, vocab)
        count, alone = batch.by_count, batch.top_p is not None and not batch.by_count

        def array(width: int, dtype: torch.dtype, *, wanted: bool = True) -> Tensor:
            return torch.empty(rows * width * wanted, dtype=dtype, device=batch.logits.device)

        real, whole, long = torch.float32, torch.int32, torch.int64
        self.mass_max = array(sizes.mass_chunks, real)
        self.chunk_mass = array(2 * sizes.mass_chunks, long)
        self.todo = array(1, whole)
        self.chunk_max = array(sizes.top_chunks, real, wanted=count)
        self.picked = array(max(sizes.top_chunks, sizes.level_parts), whole, wanted=count)
        self.cand_x = array(sizes.lists, real, wanted=count)
        self.cand_i = array(sizes.lists, whole, wanted=count)
        self.block_mass = array(sizes.blocks, long, wanted=count or alone)
        self.proposed = array(4, whole, wanted=alone)
        self.turn = array(4, whole, wanted=alone)
        self.edge = array(4, real, wanted=alone)
        self.part = array(4 * sizes.parts, real, wanted=alone)
        self.total = array(1, long, wanted=alone)
        self.largest = array(1, real, wanted=alone)


@dataclass(frozen=True, slots=True)
class Made:
    """One launch that was made.

    Attributes:
        compiled: what Triton made of the kernel.
        programs: of the grid.
        arguments: in the order of the kernel's, constants included.

    """

    compiled: Any
    programs: int
    arguments: tuple[Any, ...]


class Call:
    """One batch on its way through the kernels.

    Args:
        geometry: sizes of blocks.
        batch: complete.
        work: its workspace.
        out: int32 [B], for the ids.
        nvidia: whether the compiler is NVIDIA's.

    Attributes:
        made: the launches so far; empty in the interpreter.

    """

    def __init__(
        self,
        geometry: Geometry,
        batch: Batch,
        work: Workspace,
        out: Tensor,
        *,
        nvidia: bool,
    ) -> None:
        self.made: list[Made] = []
        self._g, self._sizes, self._batch = geometry, work.sizes, batch
        self._work, self._out, self._nvidia = work, out, nvidia
        self._rows, self._vocab = batch.logits.shape
        self._many = self._rows > _MANY_ROWS
        row_stride, id_stride = batch.logits.stride()
        self._start = (batch.logits, row_stride, id_stride, batch.temperature)
        self._who = (batch.seed, batch.noise, batch.seeded, batch.step)
        bits = min(44, 62 - (self._vocab - 1).bit_length())
        self._strided = {"STRIDED": id_stride != 1 and self._vocab > 1}
        self._reads = {**self._strided, "PTX": nvidia}
        self._scaled = {**self._strided, "SCALE": float(2**bits)}

    def launch(self) -> None:
        """Launch what the batch needs."""
        if self._batch.by_count:
            self._scan_mixed()
            self._top_k()
            self._rest(settle=False)
            return
        self._scan()
        if self._batch.top_p is None:
            self._draw(1)
            return
        self._draw(4)
        self._above()
        self._rest(settle=True)

    def _run(
        self,
        kernel: Any,
        programs: int,
        *arguments: Any,
        warps: int,
        registers: int = 0,
        **constants: Any,
    ) -> None:
        limits = {"maxnreg": registers} if registers and self._nvidia else {}
        compiled = kernel[(programs,)](*arguments, **constants, num_warps=warps, **limits)
        if compiled is not None:
            rest = [constants[name] for name in kernel.arg_names[len(arguments) :]]
            self.made.append(Made(compiled, programs, (*arguments, *rest)))

    def _scan(self) -> None:
        """Read one, for masses."""
        g, work, chunks = self._g, self._work, self._sizes.mass_chunks
        blocks = chunks // g.mass_rows
        self._run(
            scan_kernel,
            self._rows * blocks,
            *self._start,
            work.mass_max,
            work.chunk_mass,
            self._vocab,
            chunks,
            blocks,
            **self._reads,
            R=g.mass_rows,
            C=g.mass_chunk,
            LANES=g.lanes,
            warps=g.scan_warps,
            registers=g.scan_registers,
        )

    def _scan_mixed(self) -> None:
        """Read one, for maxima, and for masses in rows that need them."""
        g, work, sizes = self._g, self._work, self._sizes
        blocks = sizes.top_chunks // g.top_rows
        self._run(
            scan_mixed_kernel,
            self._rows * blocks,
            *self._start,
            self._batch.top_k,
            self._batch.min_p,
            work.chunk_max,
            work.mass_max,
            work.chunk_mass,
            self._vocab,
            sizes.top_chunks,
            sizes.mass_chunks,
            blocks,
            **self._reads,
            R=g.top_rows,
            C=g.top_chunk,
            MASS_C=g.mass_chunk,
            LANES=g.lanes,
            warps=g.scan_warps,
            registers=g.scan_registers,
        )

    def _top_k(self) -> None:
        """Reopen a few chunks of each row that has top-k or min-p."""
        g, work, batch, sizes = self._g, self._work, self._batch, self._sizes
        width, length = g.level_tile
        self._run(
            top_k_kernel,
            self._rows,
            *self._start,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            *self._who,
            work.chunk_max,
            work.picked,
            work.cand_x,
            work.cand_i,
            work.todo,
            self._out,
            self._vocab,
            sizes.top_chunks,
            len(work.picked) // self._rows,
            sizes.lists,
            **self._reads,
            SCALE=self._scaled["SCALE"],
            CHUNKS=padded(sizes.top_chunks, g.least_top_chunks),
            C=g.top_chunk,
            G=g.reopened,
            CAP=g.candidates,
            FAST=g.ranked,
            MOST=g.most_chunks,
            W=width,
            L=length,
            PARTS=sizes.level_parts,
            warps=4,
            registers=128 if self._many else 0,
        )

    def _draw(self, proposals: int) -> None:
        """Draw from the masses."""
        g, work, sizes = self._g, self._work, self._sizes
        self._run(
            draw_kernel,
            self._rows,
            *self._start,
            self._batch.top_p,
            *self._who,
            work.mass_max,
            work.chunk_mass,
            work.todo,
            self._out,
            work.proposed,
            work.turn,
            work.edge,
            work.total,
            work.largest,
            self._vocab,
            sizes.mass_chunks,
            **self._scaled,
            CHUNKS=padded(sizes.mass_chunks, g.least_chunks),
            C=g.mass_chunk,
            N=proposals,
            warps=4,
            registers=128 if self._many else 0,
        )

    def _above(self) -> None:
        """Read two."""
        g, work, sizes = self._g, self._work, self._sizes
        deep, width = g.above_tile
        self._run(
            above_kernel,
            self._rows * sizes.above_blocks,
            *self._start,
            self._batch.top_p,
            work.chunk_mass,
            work.edge,
            work.part,
            work.largest,
            self._vocab,
            sizes.mass_chunks,
            sizes.above_blocks,
            **self._reads,
            A=deep,
            W=width,
            LANES=g.lanes,
            C=g.mass_chunk,
            warps=4,
            registers=g.above_registers,
        )

    def _rest(self, *, settle: bool) -> None:
        """Draw what is left; `settle` if proposals were made."""
        g, work, batch, sizes = self._g, self._work, self._batch, self._sizes
        deep, width = g.rounds_tile if settle else g.rounds_beside
        self._run(
            rest_kernel,
            self._rows,
            *self._start,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            *self._who,
            work.mass_max,
            work.chunk_mass,
            work.block_mass,
            work.cand_x,
            work.todo,
            self._out,
            work.proposed,
            work.turn,
            work.edge,
            work.part,
            work.total,
            self._vocab,
            sizes.mass_chunks,
            sizes.parts,
            sizes.lists,
            **self._reads,
            SCALE=self._scaled["SCALE"],
            SETTLE=settle,
            ROUNDS=g.rounds,
            PARTS=padded(sizes.parts, g.least_blocks * g.above_tile[1]),
            CHUNKS=padded(sizes.mass_chunks, g.least_chunks),
            C=g.mass_chunk,
            A=deep,
            W=width,
            LANES=g.lanes,
            BLOCK=g.rest_block,
            BLOCKS=sizes.blocks,
            warps=g.rest_warps,
            registers=0 if settle else g.rest_registers,
        )

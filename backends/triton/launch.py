"""Which kernels a batch needs, in which order, over which workspace."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from refsampler.backends.triton.device.draw import draw_kernel
from refsampler.backends.triton.device.nucleus import above_kernel
from refsampler.backends.triton.device.rest import rest_kernel
from refsampler.backends.triton.device.scan import scan_kernel
from refsampler.backends.triton.device.top_k import top_k_kernel
from refsampler.backends.triton.geometry import Geometry, padded, up

__all__ = ["Batch", "Launcher", "Sizes", "sizes_of"]

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
    noise: Tensor | None
    seeded: Tensor
    step: Tensor

    @property
    def by_count(self) -> bool:
        """Whether top-k or min-p may act."""
        return self.top_k is not None or self.min_p is not None

    @property
    def filtered(self) -> bool:
        """Whether any filter may act."""
        return self.by_count or self.top_p is not None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all tensors, in one order."""
        return (
            self.logits,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seed,
            self.noise,
            self.seeded,
            self.step,
        )

    def form(self) -> tuple[object, ...]:
        """Return what decides which kernels run, with which constants."""
        absent = tuple(one is None for one in self.tensors())
        logits = self.logits
        return (tuple(logits.shape), logits.stride(), logits.dtype, logits.device, absent)


class _Workspace:
    """Scratch memory of one call: int64, int32 and float32 arrays [rows, ...]."""

    def __init__(self, form: object, geometry: Geometry, batch: Batch, stream: int) -> None:
        rows, vocab = batch.logits.shape
        sizes = sizes_of(geometry, vocab, by_count=batch.by_count)

        def array(width: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(rows * width, dtype=dtype, device=batch.logits.device)

        real, whole, long = torch.float32, torch.int32, torch.int64
        self.form, self.rows, self.sizes, self.stream = form, rows, sizes, stream
        lists = sizes.lists if batch.filtered else 0
        self.chunk_max = array(sizes.chunks, real)
        self.chunk_mass = array(sizes.mass_chunks, long)
        self.todo = array(1, whole)
        self.block_mass = array(sizes.blocks, long)
        self.picked = array(sizes.picked, whole)
        self.cand_x = array(lists, real)
        self.cand_i = array(lists, whole)
        self.proposed = array(4, whole)
        self.edge = array(4, real)
        self.part = array(4 * sizes.segments, real)
        self.total = array(1, long)
        self.largest = array(1, real)
        self.pointers = tuple(one.data_ptr() for one in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all arrays, in one order."""
        return (
            self.chunk_max,
            self.chunk_mass,
            self.todo,
            self.block_mass,
            self.picked,
            self.cand_x,
            self.cand_i,
            self.proposed,
            self.edge,
            self.part,
            self.total,
            self.largest,
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of the workspace for one vocabulary and one kind of batch."""

    mass_chunks: int
    top_chunks: int
    chunks: int
    segments: int
    blocks: int
    picked: int
    lists: int


def sizes_of(geometry: Geometry, vocab: int, *, by_count: bool) -> Sizes:
    """Return the widths for V = `vocab`; `by_count` if top-k or min-p may act."""
    mass = up(-(-vocab // geometry.mass_chunk), geometry.mass_rows * geometry.tiles)
    top = up(-(-vocab // geometry.top_chunk), geometry.top_rows)
    return Sizes(
        mass_chunks=mass,
        top_chunks=top,
        chunks=max(mass, top) if by_count else mass,
        segments=mass // geometry.mass_rows,
        blocks=padded(-(-vocab // geometry.block), geometry.least_blocks),
        picked=top if by_count else 0,
        lists=min(geometry.candidates, up(vocab, 16)),
    )


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _distinct(batch: Batch) -> bool:
    """Whether each parameter is a tensor of its own, so that a launch tells them apart."""
    given = [batch.logits, batch.temperature, batch.top_k, batch.top_p, batch.min_p]
    given += [batch.seed, batch.noise, batch.seeded, batch.step]
    present = [id(one) for one in given if one is not None]
    return len(set(present)) == len(present)


@dataclass(frozen=True, slots=True)
class _Step:
    """One launch of a compiled kernel.

    Attributes:
        compiled: what Triton made.
        programs: of the grid.
        arguments: constants, and places in the tuple of a call's tensors.
        places: which of the arguments are places.

    """

    compiled: Any
    programs: int
    arguments: tuple[Any, ...]
    places: tuple[int, ...]

    def run(self, pointers: tuple[int, ...], stream: int) -> None:
        """Launch it on the addresses of a call's tensors."""
        arguments = list(self.arguments)
        for place in self.places:
            arguments[place] = pointers[arguments[place]]
        self.compiled[(self.programs, 1, 1)](*arguments, stream=stream)


class Launcher:
    """Launches the kernels over workspaces of its own, one a thread and stream.

    Triton's own launch looks at every argument, which costs more than the kernels; calls of a known
    form repeat the launches of the first one.

    Args:
        geometry: sizes of blocks.
        few_registers: whether the compiler takes a limit on registers (NVIDIA's does).

    """

    def __init__(self, geometry: Geometry, *, few_registers: bool) -> None:
        self._geometry = geometry
        self._few_registers = few_registers
        self._local = threading.local()
        self._steps: dict[object, tuple[_Step, ...]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Return int32 ids [B]; B and V are at least 1."""
        batch = self._complete(batch)
        work = self._workspace(batch)
        out = torch.empty(work.rows, dtype=torch.int32, device=batch.logits.device)
        pointers = tuple(0 if one is None else one.data_ptr() for one in batch.tensors())
        form = (work.form, tuple(one % 16 for one in pointers))
        steps = self._steps.get(form)
        if steps is not None:
            everything = (*pointers, *work.pointers, out.data_ptr())
            for step in steps:
                step.run(everything, work.stream)
            return out
        call = _Call(self._geometry, batch, work, out, few_registers=self._few_registers)
        call.launch()
        if call.compiled and _distinct(batch):
            self._steps[form] = call.steps((*batch.tensors(), *work.tensors(), out))
        return out

    def _complete(self, batch: Batch) -> Batch:
        """Give absent parameters neutral values, so that fewer variants have to be compiled."""
        one, no_k, no_min_p, no_noise = self._neutral(len(batch.logits), batch.logits.device)
        return replace(
            batch,
            temperature=one if batch.temperature is None else batch.temperature,
            top_k=no_k if batch.top_k is None and batch.min_p is not None else batch.top_k,
            top_p=one if batch.top_p is None and batch.by_count else batch.top_p,
            min_p=no_min_p if batch.min_p is None and batch.top_k is not None else batch.min_p,
            noise=no_noise if batch.noise is None else batch.noise,
        )

    def _neutral(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return p or T, k, min-p and noise that do nothing, for at least so many rows."""
        kept: tuple[Tensor, ...] | None = getattr(self._local, "neutral", None)
        if kept is not None and len(kept[0]) >= rows and kept[0].device == device:
            return kept
        kept = (
            torch.ones(rows, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )
        # Under capture these are filled when the graph is replayed, so only the graph may use them.
        if not _capturing(device):
            self._local.neutral = kept
        return kept

    def left_over(self) -> Tensor:
        """Return `todo` of this thread's last batch that no graph captured."""
        todo: Tensor = self._local.last.todo
        return todo

    def _workspace(self, batch: Batch) -> _Workspace:
        """Return this thread's and stream's workspace; a graph under capture gets its own.

        What a graph holds must outlive the call, and what is reused must not be a graph's.
        """
        form, device = batch.form(), batch.logits.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        if _capturing(device):
            return _Workspace(form, self._geometry, batch, stream)
        last: _Workspace | None = getattr(self._local, "last", None)
        if last is None or self._local.key != (form, stream):
            self._local.key = (form, stream)
            self._local.last = last = _Workspace(form, self._geometry, batch, stream)
        return last


class _Call:
    """One batch on its way through the kernels."""

    def __init__(
        self,
        geometry: Geometry,
        batch: Batch,
        work: _Workspace,
        out: Tensor,
        *,
        few_registers: bool,
    ) -> None:
        self.geometry, self.sizes, self.batch = geometry, work.sizes, batch
        self.work, self.out, self.few_registers = work, out, few_registers
        self.rows, self.vocab = batch.logits.shape
        self.registers = self._limits(128 if self.rows > _MANY_ROWS else 0)
        row_stride, id_stride = batch.logits.stride()
        self.start = (batch.logits, row_stride, id_stride, batch.temperature)
        self.who = (batch.seed, batch.noise, batch.seeded, batch.step)
        self.strided = id_stride != 1 and self.vocab > 1
        bits = min(44, 62 - (self.vocab - 1).bit_length())
        self.scale = float(2**bits)
        self.compiled: list[tuple[Any, int, tuple[Any, ...]]] = []

    def launch(self) -> None:
        """Launch what the batch needs."""
        if self.batch.by_count:
            self.top_k()
        elif self.batch.top_p is not None:
            self.nucleus()
        else:
            self.unfiltered()

    def steps(self, tensors: tuple[Tensor | None, ...]) -> tuple[_Step, ...]:
        """Return the launches made, for calls of the same form on other tensors."""
        place_of = {id(one): place for place, one in enumerate(tensors) if one is not None}
        steps = []
        for compiled, programs, arguments in self.compiled:
            places = tuple(at for at, one in enumerate(arguments) if isinstance(one, Tensor))
            shown = [place_of[id(one)] if isinstance(one, Tensor) else one for one in arguments]
            steps.append(_Step(compiled, programs, tuple(shown), places))
        return tuple(steps)

    def _limits(self, registers: int) -> dict[str, int]:
        return {"maxnreg": registers} if registers and self.few_registers else {}

    def _run(
        self,
        kernel: Any,
        programs: int,
        *arguments: Any,
        warps: int,
        limits: Any = None,
        **constants: Any,
    ) -> None:
        compiled = kernel[(programs,)](*arguments, **constants, num_warps=warps, **(limits or {}))
        if compiled is not None:
            rest = [constants[name] for name in kernel.arg_names[len(arguments) :]]
            self.compiled.append((compiled, programs, (*arguments, *rest)))

    def unfiltered(self) -> None:
        """Read once, draw."""
        self._scan(masses=True)
        self._draw(0, 1)

    def nucleus(self) -> None:
        """Read once, propose, read again; later rounds find little to do."""
        self._scan(masses=True)
        for number in range(self.geometry.rounds):
            self._draw(number, 4)
            self._above(number)
        self._rest(settle=True)

    def top_k(self) -> None:
        """Read once, reopen a few chunks; the rest is left to the last kernel."""
        g, work, batch = self.geometry, self.work, self.batch
        self._scan(masses=False)
        self._run(
            top_k_kernel,
            self.rows,
            *self.start,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            *self.who,
            work.chunk_max,
            work.picked,
            work.cand_x,
            work.cand_i,
            work.todo,
            self.out,
            self.vocab,
            self.sizes.top_chunks,
            self.sizes.lists,
            STRIDED=self.strided,
            SCALE=self.scale,
            CHUNKS=padded(self.sizes.top_chunks, g.least_top_chunks),
            C=g.top_chunk,
            G=g.reopened[self.rows > _MANY_ROWS],
            CAP=g.candidates,
            FAST=g.ranked,
            MOST=g.most_chunks,
            warps=4,
            limits=self.registers,
        )
        self._rest(settle=False)

    def _scan(self, *, masses: bool) -> None:
        g, work = self.geometry, self.work
        chunk, each = (g.mass_chunk, g.scan_rows) if masses else (g.top_chunk, g.top_rows)
        chunks = self.sizes.mass_chunks if masses else self.sizes.top_chunks
        blocks = chunks // each
        self._run(
            scan_kernel,
            self.rows * blocks,
            *self.start,
            work.chunk_max,
            work.chunk_mass,
            self.vocab,
            chunks,
            blocks,
            STRIDED=self.strided,
            SUMS=masses,
            R=each,
            C=chunk,
            warps=g.scan_warps if masses else 4,
            limits=self._limits(g.scan_registers if masses else 0),
        )

    def _draw(self, number: int, proposals: int) -> None:
        g, work, sizes = self.geometry, self.work, self.sizes
        self._run(
            draw_kernel,
            self.rows,
            *self.start,
            self.batch.top_p,
            *self.who,
            work.chunk_max,
            work.chunk_mass,
            work.todo,
            self.out,
            work.proposed,
            work.edge,
            work.part,
            work.total,
            work.largest,
            self.vocab,
            sizes.mass_chunks,
            sizes.segments,
            STRIDED=self.strided,
            SCALE=self.scale,
            CHUNKS=padded(sizes.mass_chunks, g.least_chunks),
            C=g.mass_chunk,
            N=proposals,
            ROUND=number,
            SEGMENTS=padded(sizes.segments, g.least_chunks // g.mass_rows),
            warps=4,
            limits=self.registers,
        )

    def _above(self, number: int) -> None:
        g, work, sizes = self.geometry, self.work, self.sizes
        tiles = 1 if number == 0 or self.rows < 64 else g.tiles
        blocks = sizes.segments // tiles
        self._run(
            above_kernel,
            self.rows * blocks,
            *self.start,
            self.batch.top_p,
            work.chunk_mass,
            work.todo,
            work.edge,
            work.part,
            work.largest,
            self.vocab,
            sizes.mass_chunks,
            sizes.segments,
            blocks,
            STRIDED=self.strided,
            R=g.mass_rows,
            C=g.mass_chunk,
            TILES=tiles,
            FIRST=number == 0,
            warps=4,
            limits=self._limits(g.above_registers),
        )

    def _rest(self, *, settle: bool) -> None:
        g, work, batch, sizes = self.geometry, self.work, self.batch, self.sizes
        self._run(
            rest_kernel,
            self.rows,
            *self.start,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            *self.who,
            work.chunk_max,
            work.chunk_mass,
            work.block_mass,
            work.cand_x,
            work.cand_i,
            work.todo,
            self.out,
            work.proposed,
            work.edge,
            work.part,
            work.total,
            self.vocab,
            sizes.mass_chunks,
            sizes.segments,
            sizes.lists,
            STRIDED=self.strided,
            SCALE=self.scale,
            SETTLE=settle,
            ROUNDS=g.rounds,
            SEGMENTS=padded(sizes.segments, g.least_chunks // g.mass_rows),
            CHUNKS=padded(sizes.mass_chunks, g.least_chunks),
            R=g.mass_rows,
            C=g.mass_chunk,
            CAP=g.candidates,
            BLOCK=g.block,
            BLOCKS=sizes.blocks,
            warps=g.rest_warps[settle],
        )

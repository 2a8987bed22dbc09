"""Which kernels a verification needs: tensors in, what each request emits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from refsampler.backends.triton.device.edges import edge_kernel
from refsampler.backends.triton.device.verify import (
    draft_scan_kernel,
    judge_kernel,
    residual_kernel,
    settle_kernel,
)
from refsampler.backends.triton.geometry import Geometry, padded, sizes_of

__all__ = ["Drafts", "Layout", "verify_drafts"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the drafts of a batch lie.

    Attributes:
        position: int64 [D], the row of the logits at which a draft is judged.
        owner: int32 [D], its request.
        first: int32 [B], the first draft of a request.
        sizes: int32 [B], how many it has.
        most: the largest of them.

    """

    position: Tensor
    owner: Tensor
    first: Tensor
    sizes: Tensor
    most: int

    @classmethod
    def of(cls, sizes: Sequence[int], device: torch.device) -> Layout:
        """Lay out requests with so many drafts each."""
        owner = [row for row, size in enumerate(sizes) for _ in range(size)]
        first = list(accumulate(sizes, initial=0))[:-1]
        position = [draft + row for draft, row in enumerate(owner)]

        def of(values: Sequence[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        whole = torch.int32
        return cls(
            of(position, torch.int64),
            of(owner, whole),
            of(first, whole),
            of(sizes, whole),
            max(sizes, default=0),
        )


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a verification is given; B requests, D drafts, at least one of each.

    Attributes:
        logits: float32, bfloat16 or float16 [D + B, V], any strides; bonus rows are not read.
        ids: int32 [D].
        laws: of any float type [D, V], neighbouring ids side by side; None if drafts are certain.
        layout: of the drafts.
        bonus: int32 or int64 [B], emitted where all drafts are accepted.
        temperature: float32 [B], below 1e-5 on greedy requests.
        top_k: int32 [B], or None.
        top_p: float32 [B], or None.
        seed, step: int64 [B].
        seeded: bool [B].
        noise: int64 [B], the keys of requests without seeds.

    """

    logits: Tensor
    ids: Tensor
    laws: Tensor | None
    layout: Layout
    bonus: Tensor
    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    seed: Tensor
    step: Tensor
    seeded: Tensor
    noise: Tensor


def verify_drafts(geometry: Geometry, given: Drafts, *, nvidia: bool) -> Tensor:
    """Return the ids that each request emits, int32 [B, most + 1], -1 behind them.

    Works while a CUDA graph is captured: nothing waits for the GPU.

    Args:
        geometry: sizes of blocks.
        given: the batch.
        nvidia: whether the compiler is NVIDIA's.

    """
    return _Verification(geometry, given, nvidia=nvidia).run()


class _Verification:
    def __init__(self, geometry: Geometry, given: Drafts, *, nvidia: bool) -> None:
        self._g, self._given = geometry, given
        self._drafts, self._requests = len(given.ids), len(given.bonus)
        self._vocab = given.logits.shape[1]
        self._sizes = sizes = sizes_of(geometry, self._vocab)
        self._blocks = sizes.mass_chunks // geometry.mass_rows
        row_stride, id_stride = given.logits.stride()
        self._start = (given.logits, row_stride, id_stride)
        law_stride = 0 if given.laws is None else given.laws.stride(0)
        self._drafted = (given.ids, given.laws, law_stride)
        self._who = (given.seed, given.noise, given.seeded, given.step)
        self._strided = {"STRIDED": id_stride != 1 and self._vocab > 1}
        self._reads = {**self._strided, "PTX": nvidia}
        self._scale: dict[str, Any] = {
            "SCALE": float(2 ** min(44, 62 - (self._vocab - 1).bit_length()))
        }
        chunks = padded(sizes.mass_chunks, geometry.least_chunks)
        self._chunks = {"CHUNKS": chunks, "C": geometry.mass_chunk}
        self._tile = {"R": geometry.mass_rows, "C": geometry.mass_chunk, "LANES": geometry.lanes}
        self._most = {"MOST": padded(given.layout.most + 1, geometry.least_drafts)}

        real, whole, long = torch.float32, torch.int32, torch.int64
        self._mass_max = self._array(self._drafts * sizes.mass_chunks, real)
        self._chunk_mass = self._array(self._drafts * sizes.mass_chunks, long)
        self._accepted, self._best = (self._array(self._drafts, whole) for _ in range(2))
        self._largest, self._over = (self._array(self._drafts, real) for _ in range(2))
        self._residual = self._array(self._requests * sizes.mass_chunks, long)
        self._low: Tensor | None = None
        self._kept: Tensor | None = None
        if given.top_k is not None or given.top_p is not None:
            self._low, self._kept = self._array(self._drafts, real), self._array(self._drafts, long)

    def _array(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device=self._given.logits.device)

    def run(self) -> Tensor:
        self._scan()
        if self._low is not None:
            self._find_edges()
        self._judge()
        self._subtract()
        return self._settle()

    def _launch(
        self, kernel: Any, programs: int, *arguments: Any, warps: int = 4, **constants: Any
    ) -> None:
        kernel[(programs,)](*arguments, **constants, num_warps=warps)

    def _scan(self) -> None:
        given = self._given
        self._launch(
            draft_scan_kernel,
            self._drafts * self._blocks,
            *self._start,
            given.layout.position,
            given.layout.owner,
            given.temperature,
            self._mass_max,
            self._chunk_mass,
            self._vocab,
            self._sizes.mass_chunks,
            self._blocks,
            **self._reads,
            **self._tile,
            warps=self._g.scan_warps,
        )

    def _find_edges(self) -> None:
        given, g, lists = self._given, self._g, self._sizes.lists
        self._launch(
            edge_kernel,
            self._drafts,
            *self._start,
            given.layout.position,
            given.layout.owner,
            given.temperature,
            given.top_k,
            given.top_p,
            self._mass_max,
            self._array(self._drafts * self._chunks["CHUNKS"], torch.int32),
            self._array(self._drafts * lists, torch.float32),
            self._array(self._drafts * lists, torch.int32),
            self._low,
            self._kept,
            self._vocab,
            self._sizes.mass_chunks,
            lists,
            **self._strided,
            **self._scale,
            **self._chunks,
            G=g.opened,
            CAP=g.candidates,
            BLOCK=g.rest_block,
            warps=g.rest_warps,
        )

    def _judge(self) -> None:
        given = self._given
        self._launch(
            judge_kernel,
            self._drafts,
            *self._start,
            *self._drafted,
            given.layout.position,
            given.layout.owner,
            given.layout.first,
            given.temperature,
            *self._who,
            self._mass_max,
            self._chunk_mass,
            self._low,
            self._kept,
            self._accepted,
            self._best,
            self._largest,
            self._over,
            self._vocab,
            self._sizes.mass_chunks,
            **self._strided,
            **self._scale,
            **self._chunks,
        )

    def _subtract(self) -> None:
        given = self._given
        self._launch(
            residual_kernel,
            self._requests * self._blocks,
            *self._start,
            *self._drafted,
            given.layout.position,
            given.layout.first,
            given.layout.sizes,
            given.temperature,
            self._low,
            self._accepted,
            self._largest,
            self._over,
            self._residual,
            self._vocab,
            self._sizes.mass_chunks,
            self._blocks,
            **self._reads,
            **self._most,
            **self._tile,
            warps=self._g.scan_warps,
        )

    def _settle(self) -> Tensor:
        given, width = self._given, self._given.layout.most + 1
        out = self._array(self._requests * width, torch.int32).view(self._requests, width)
        self._launch(
            settle_kernel,
            self._requests,
            *self._start,
            *self._drafted,
            given.layout.position,
            given.layout.first,
            given.layout.sizes,
            given.temperature,
            *self._who,
            self._low,
            self._accepted,
            self._best,
            self._largest,
            self._over,
            self._residual,
            self._array(self._requests * self._sizes.blocks, torch.int64),
            given.bonus,
            out,
            self._vocab,
            self._sizes.mass_chunks,
            width,
            **self._reads,
            **self._scale,
            **self._most,
            **self._chunks,
            BLOCK=self._g.rest_block,
            BLOCKS=self._sizes.blocks,
        )
        return out

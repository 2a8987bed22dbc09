"""Contestants: a backend of any level as something that samples a window of rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from refsampler.backends.cpu import CpuKernel
from refsampler.backends.protocol import BatchSampler, Engine, Fold, Kernel, Session, Subject
from refsampler.conformance.bench.workload import Cache, Cell, parameters
from refsampler.folding import divisor, kernel_rows
from refsampler.metadata import SamplingMetadata
from refsampler.request import Request

__all__ = ["Contestant", "Floor", "contestant"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A backend that is ready to sample the windows of one cell.

    Attributes:
        name: for the table.
        call: samples a window.
        reads_itself: the call reads every row once before it draws (`Cache.READ`).
        closing: gives back what the cell needed.

    """

    name: str
    call: Callable[[Tensor], Any]
    reads_itself: bool = False
    closing: AbstractContextManager[None] = field(default_factory=nullcontext)


def contestant(name: str, subject: Subject, cell: Cell) -> Contestant:
    """Return the backend as a contestant of a cell.

    A kernel that leaves the temperature to the pipeline is timed together with that division.
    """
    asked = [Request(parameters(cell.mode)) for _ in range(cell.batch)]
    capabilities = subject.capabilities
    if capabilities.level == 3:
        return _of_engine(name, cast("Engine", subject), asked, cell)
    metadata = SamplingMetadata.from_requests(asked, cell.vocab, device=capabilities.device)
    if capabilities.level == 2:
        sampler = cast("BatchSampler", subject)
        return Contestant(name, lambda window: sampler.sample(window, metadata))
    kernel = cast("Kernel", subject)
    assert metadata.temperature is not None
    temperature, folds = metadata.temperature, capabilities.folds
    rows = kernel_rows(metadata, temperature, folds)
    if cell.cache is Cache.READ and isinstance(kernel, CpuKernel):
        return Contestant(name, lambda window: kernel.draw_after_reading(window, rows), True)
    if Fold.TEMPERATURE in folds:
        return Contestant(name, lambda window: kernel.draw(window, rows))
    by = divisor(temperature)[:, None]
    return Contestant(name, lambda window: kernel.draw(window / by, rows))


class _Closing(AbstractContextManager[None]):
    def __init__(self, session: Session) -> None:
        self._session = session

    def __exit__(self, *_: object) -> None:
        self._session.close()


def _of_engine(name: str, engine: Engine, asked: list[Request], cell: Cell) -> Contestant:
    """Open a session with one request a row; histories stay as they are."""
    session = engine.open(cell.vocab, 7)
    ids = range(len(asked))
    for number, request in zip(ids, asked, strict=True):
        session.add(number, request)
    return Contestant(name, lambda window: session.sample(ids, window), closing=_Closing(session))


class Floor:
    """The memory floor: the logits are read once, and their maximum is taken.

    Numba's loop on the CPU where it is installed, else torch's `amax`.

    Args:
        device: where the logits lie.

    """

    def __init__(self, device: str) -> None:
        self._kernel: CpuKernel | None = None
        if torch.device(device).type == "cpu":
            try:
                self._kernel = CpuKernel()
            except ModuleNotFoundError:
                self._kernel = None
        self.name = "torch amax" if self._kernel is None else "numba maximum"
        if self._kernel is not None:
            self._kernel.prepare()

    def read(self, window: Tensor, times: int = 1) -> None:
        """Read every row `times` times."""
        if self._kernel is not None:
            self._kernel.read(window, times)
            return
        for _ in range(times):
            window.amax(dim=-1)

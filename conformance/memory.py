"""Memory: whether a device can hold large batches, what is missing, and whose turn it is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import torch
from filelock import FileLock, Timeout

__all__ = [
    "ELEMENTS",
    "ENDS",
    "SHARES",
    "as_if_free",
    "bytes_wanted",
    "free_bytes",
    "memory_short",
    "taking_turns",
]

ELEMENTS = 2**31
"""Where a signed 32-bit element index ends."""
ENDS = 2
"""The unsigned index ends at so many times that."""
SHARES = 6
"""Float32 tensors of that size that a backend may hold at a time beside the logits."""


_PATIENCE_S: Final = 30.0
"""Seconds to wait for a turn: less than a call may take, and more than others need on a GPU."""
_AS_IF: Final[ContextVar[int | None]] = ContextVar("_AS_IF", default=None)


@contextmanager
def as_if_free(free: int) -> Iterator[None]:
    """Let so many bytes count as free: a plan is made again as it was made where they were."""
    before = _AS_IF.set(free)
    try:
        yield
    finally:
        _AS_IF.reset(before)


def free_bytes(device: str = "cpu") -> int:
    """Return the bytes that are free on a device; 0 where nobody says."""
    as_if = _AS_IF.get()
    if as_if is not None:
        return as_if
    where = torch.device(device)
    if where.type == "cuda":
        free, _ = torch.cuda.mem_get_info(where)
        return int(free)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    figures = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return int(figures.get("MemAvailable", ["0"])[0]) * 1024


def bytes_wanted(elements: int) -> int:
    """Return the bytes of so many float32 logits and of what a backend may hold beside them."""
    return (1 + SHARES) * 4 * elements


def memory_short(device: str = "cpu", elements: int | None = None) -> str:
    """Say how much memory is missing for so many logits; empty if there is enough.

    None is `ELEMENTS` as it stands at the call: the audit may have set it.
    """
    elements = ELEMENTS if elements is None else elements
    wanted, free = bytes_wanted(elements), free_bytes(device)
    if free >= wanted:
        return ""
    tensor = 4 * elements / 1e9
    return (
        f"{free / 1e9:.1f} GB are free on {device}, {wanted / 1e9:.0f} GB are wanted for "
        f"{1 + SHARES} tensors of {tensor:.1f} GB"
    )


@contextmanager
def taking_turns(device: str, elements: int) -> Iterator[None]:
    """Keep so many logits on a device while no other process of this user keeps so many there.

    Shards and runs side by side would else want the memory several times at once.  What torch keeps
    of a GPU's goes back first; the caller's own tensors must be gone by then.  Who has waited too
    long goes on: `memory_short` says whether there is room.  Fewer than `ELEMENTS` wait for nobody.
    """
    with ExitStack() as held:
        if elements >= ELEMENTS:
            name = f"refsampler-{os.getuid()}-{device.replace(':', '-')}.lock"
            lock = FileLock(Path(tempfile.gettempdir()) / name)
            with suppress(Timeout):
                held.enter_context(lock.acquire(timeout=_PATIENCE_S))
        try:
            yield
        finally:
            if elements >= ELEMENTS and torch.device(device).type == "cuda":
                torch.cuda.empty_cache()

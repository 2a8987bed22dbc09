"""Many faults at a time: processes that take one fault after the other, and are ended if one hangs."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Lock
from typing import Final

from refsampler.conformance.audit.log import Settings
from refsampler.conformance.audit.one import (
    PLANNING_S,
    FaultResult,
    Found,
    audit_fault,
    not_asked,
    without_verdict,
)
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.faults.base import Fault
from refsampler.conformance.faults.registry import fault

__all__ = ["audit_faults", "keep_freed_memory"]

_LAST_CASE: Final = 0.9
"""Share of the limit after which no case begins; the process is ended when all of it is over."""
_NO_MAPS, _TRIM_AT = -4, -1
"""What glibc calls M_MMAP_MAX and M_TRIM_THRESHOLD."""


def audit_faults(
    faults: Sequence[Fault],
    settings: Settings,
    workers: int,
    tell: Callable[[FaultResult], None] = lambda _result: None,
) -> tuple[FaultResult, ...]:
    """Run the suite on every fault, and return the results in the same order.

    Args:
        faults: which.
        settings: how.
        workers: processes.
        tell: told each result as it comes, one after the other.

    """
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    telling = Lock()
    for _ in range(workers):
        idle.put(_Worker())

    def one(asked: Fault) -> FaultResult:
        result = not_asked(asked)
        if result is None:
            with _taken(idle) as worker:
                result = worker.ask(asked, settings)
        with telling:
            tell(result)
        return result

    try:
        with ThreadPoolExecutor(workers) as threads:
            return tuple(threads.map(one, faults))
    finally:
        while not idle.empty():
            idle.get().close()


@contextmanager
def _taken(idle: queue.SimpleQueue[_Worker]) -> Iterator[_Worker]:
    worker = idle.get()
    try:
        yield worker
    finally:
        idle.put(worker)


class _Worker:
    """A process, started when it is first asked and again after it was ended."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def ask(self, asked: Fault, settings: Settings) -> FaultResult:
        pipe = self._started()
        pipe.send((asked.id, settings))
        known: FaultResult | None = None
        # beyond its own limit it may end the case that it is at
        grace = (1 - _LAST_CASE) * settings.limit_s
        deadline, limit = time.monotonic() + PLANNING_S, PLANNING_S
        while pipe.poll(max(deadline - time.monotonic(), 0.0)):
            try:
                result, last = pipe.recv()
            except EOFError:
                self.close()
                return known or without_verdict(
                    asked, Found.ERROR, "the fault ended the process it ran in"
                )
            if last:
                assert isinstance(result, FaultResult)
                return result
            if isinstance(result, float):
                deadline, limit = time.monotonic() + result + grace, result + grace
            else:
                known = result
        self.close()
        return known or without_verdict(asked, Found.ERROR, f"no answer after {limit:g} s")

    def close(self) -> None:
        """End the process, and those that it started."""
        if self._process is not None and self._pipe is not None:
            assert self._process.pid is not None
            self._pipe.close()
            self._process.kill()
            # not joined yet, so the number is still its own; no group: it never came that far
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.join()
        self._process = self._pipe = None

    def _started(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=False)
            self._process.start()
            theirs.close()
        return self._pipe


def _serve(pipe: Connection) -> None:
    """Answer until the other end is closed."""
    # what it starts is ended with it
    os.setpgid(0, 0)
    keep_freed_memory()
    planner = Planner()
    while True:
        try:
            name, settings = pipe.recv()
        except EOFError:
            return
        result = audit_fault(
            fault(name),
            settings.profile,
            settings.run_seed,
            limit_s=_LAST_CASE * settings.limit_s,
            named_only=settings.named_only,
            leave_out=settings.leave_out,
            planner=planner,
            tell=lambda found: pipe.send((found, False)),
        )
        pipe.send((result, True))


def keep_freed_memory() -> None:
    """Let the C library keep what a call frees, where it is glibc.

    A subject gets tens of MiB of logits in every call, whose fresh pages would cost as much as its
    arithmetic.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_NO_MAPS, 0)
        mallopt(_TRIM_AT, 2**31 - 1)

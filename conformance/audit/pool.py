"""Many faults at a time: processes that take one fault after the other, and are ended if one hangs."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from refsampler.conformance.audit.one import (
    FaultResult,
    Found,
    audit_fault,
    not_asked,
    without_verdict,
)
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.faults.base import Fault
from refsampler.conformance.faults.registry import fault

__all__ = ["Request", "audit_faults"]

_GRACE_S: Final = 240.0
"""Beyond the limit: imports, plans, and the case that was running when time was up."""


@dataclass(frozen=True, slots=True)
class Request:
    """How faults are asked about; the fields are those of `audit_fault`."""

    profile: str
    run_seed: int
    limit_s: float
    named_only: bool = False
    leave_out: bool = False


def audit_faults(
    faults: Sequence[Fault],
    request: Request,
    workers: int,
    tell: Callable[[FaultResult], None] = lambda _result: None,
) -> tuple[FaultResult, ...]:
    """Run the suite on every fault, and return the results in the same order.

    Args:
        faults: which.
        request: how.
        workers: processes.
        tell: told each result as it comes.

    """
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for _ in range(workers):
        idle.put(_Worker())

    def one(asked: Fault) -> FaultResult:
        result = not_asked(asked)
        if result is None:
            with _taken(idle) as worker:
                result = worker.ask(asked, request)
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

    def ask(self, asked: Fault, request: Request) -> FaultResult:
        pipe = self._started()
        pipe.send((asked.id, request))
        if not pipe.poll(request.limit_s + _GRACE_S):
            self.close()
            words = f"no answer after {request.limit_s + _GRACE_S:g} s"
            return without_verdict(asked, Found.ERROR, words)
        try:
            result = pipe.recv()
        except EOFError:
            self.close()
            return without_verdict(asked, Found.ERROR, "the fault ended the process it ran in")
        assert isinstance(result, FaultResult)
        return result

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._pipe is not None:
            self._pipe.close()
            self._process.kill()
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
    planner = Planner()
    while True:
        try:
            name, request = pipe.recv()
        except EOFError:
            return
        result = audit_fault(
            fault(name),
            request.profile,
            request.run_seed,
            limit_s=request.limit_s,
            named_only=request.named_only,
            leave_out=request.leave_out,
            planner=planner,
        )
        pipe.send(result)

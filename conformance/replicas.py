"""Replicas: fresh processes of one backend side by side, each asked the same in the same order."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from refsampler.backends.process import IsolatedSubject, SubjectDidNotOpen
from refsampler.backends.registry import BackendNotFound
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check

__all__ = ["Replicas"]

_APART: Final = 2**20
"""Run seeds differ by more than a call has rows, so that rows with consecutive seeds share none."""


class Replicas:
    """Processes of one backend; they start when first asked, all at a time, and stay.

    What a process keeps between calls stands alike in all of them, unless it came from a seed or
    from outside: that is what their answers are compared for.

    Args:
        spec: of the backend.
        run_seed: of the first process; the others have other ones.
        timeout_s: limit of one call, in seconds.
        memory_bytes: limit of each process; None is no limit.

    """

    def __init__(
        self, spec: str, run_seed: int, *, timeout_s: float, memory_bytes: int | None
    ) -> None:
        self._spec, self._run_seed = spec, run_seed
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes
        self._starting: tuple[Future[IsolatedSubject], ...] = ()
        self._given_up = ""

    def ask(self, check: Check, case: Case) -> Asked:
        """Let every process hold the check's conversation, and say what they show together.

        Raises:
            SubjectError: the backend raised, or ended a process.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed in a process.

        """
        assert check.beside is not None
        count = check.beside.processes(case)
        if self._given_up:
            return Asked(unasked=self._given_up)
        try:
            asked = self._at_least(count)[:count]
        except (BackendNotFound, SubjectDidNotOpen) as error:
            self._given_up = f"{count} processes could not be opened side by side: {error}"
            return Asked(unasked=self._given_up)
        with ThreadPoolExecutor(count) as pool:
            answers = pool.map(lambda one: one.ask(check.name, case), asked)
            return check.beside.together(case, tuple(answers))

    def expect(self, count: int) -> None:
        """Start so many processes in the background: who asks first need not wait for all of it."""
        self._starting = self._start(count)

    def close(self) -> None:
        """Let every process end, all at a time: each takes about a second."""
        starting, self._starting = self._starting, ()
        opened = [one.result() for one in starting if one.exception() is None]
        with ThreadPoolExecutor(max(1, len(opened))) as pool:
            list(pool.map(IsolatedSubject.close, opened))

    def _at_least(self, count: int) -> tuple[IsolatedSubject, ...]:
        """Return the processes; all are started anew if more are wanted, so that they are alike."""
        if len(self._starting) < count:
            self.close()
            self._starting = self._start(count)
        error = next(filter(None, [one.exception() for one in self._starting]), None)
        if error is not None:
            self.close()
            raise error
        return tuple(one.result() for one in self._starting)

    def _start(self, count: int) -> tuple[Future[IsolatedSubject], ...]:
        pool = ThreadPoolExecutor(count)
        starting = tuple(pool.submit(self._open, place) for place in range(count))
        pool.shutdown(wait=False)
        return starting

    def _open(self, place: int) -> IsolatedSubject:
        return IsolatedSubject(
            self._spec,
            self._run_seed + place * _APART,
            timeout_s=self._timeout_s,
            memory_bytes=self._memory_bytes,
        )

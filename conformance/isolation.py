"""Isolation: who is asked where.

A case that may bring a process down is always asked in a child; the rest as the run wants it: built-in
backends in this process, which is faster, everybody else in a child, where a crash costs one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
from jaxtyping import Int64

from refsampler.backends.process import IsolatedSubject, SubjectEnded
from refsampler.backends.protocol import Capabilities
from refsampler.backends.registry import BUILT_IN, PROGRAM, resolve
from refsampler.conformance import memory
from refsampler.conformance.case import Case, Hazard
from refsampler.conformance.checks.base import Asked, Check
from refsampler.conformance.conversing import converse
from refsampler.conformance.replicas import Replicas
from refsampler.conformance.subject import Draw, OpenSubject

__all__ = [
    "MEMORY_BYTES",
    "TIMEOUT_S",
    "AskedSubject",
    "GuardedSubject",
    "Limits",
    "ask_check",
    "guarded",
    "isolated_by_default",
]

TIMEOUT_S: Final = 60.0
"""Seconds that one call may take in a process of its own."""
MEMORY_BYTES: Final = 4 * 2**30
"""What that process may use."""
_SECONDS_A_LOGIT: Final = 2e-7
"""Three times what a sort costs on one core."""

_NAMELESS: Final = "the backend has no name by which another process could open it"

_ENDS_IN_A_ROW: Final = 3
_ENDS: Final = 20

_Answer = TypeVar("_Answer")


class AskedSubject(Protocol):
    """A backend that can be asked, wherever it lives."""

    @property
    def capabilities(self) -> Capabilities:
        """What the backend declares."""

    def sample(self, case: Case, call: int, key: str) -> Draw:
        """Sample the case's batch once, from fresh request state."""

    def sample_many(self, case: Case, rows: int, call: int) -> Int64[np.ndarray, " rows"]:
        """Draw `rows` ids from the law of a case of one unseeded row, in one call."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call may use in a process of its own.

    Attributes:
        timeout_s: seconds.
        memory_bytes: of the whole process; None is no limit.

    """

    timeout_s: float = TIMEOUT_S
    memory_bytes: int | None = MEMORY_BYTES


def isolated_by_default(spec: str) -> bool:
    """Whether everything is asked in a child unless the user says otherwise.

    A program on stdio is a child already, with limits of its own.
    """
    return spec not in BUILT_IN and not spec.startswith(PROGRAM)


class GuardedSubject:
    """Asks a backend here or in a child, and says when asking has become pointless.

    The child is opened when it is first needed.  A backend that ended it three times in a row, or
    twenty times, is `spent`: asking on would cost a start-up or a time-out each and say nothing new.

    Args:
        spec: of the backend.
        run_seed: feeds the default generator of every call.
        isolate: everything goes to the child, and the backend is never imported here.
        limits: of a call in the child.

    Attributes:
        capabilities: what the backend declares.

    Raises:
        BackendNotFound: no backend goes by that name.
        BackendBroken: it could not be opened.

    """

    def __init__(self, spec: str, run_seed: int, *, isolate: bool, limits: Limits) -> None:
        self.spec, self.run_seed, self._limits = spec, run_seed, limits
        self._children: dict[Hazard, IsolatedSubject] = {}
        self._coming: Future[IsolatedSubject] | None = None
        self._replicas = Replicas(
            spec, run_seed, timeout_s=limits.timeout_s, memory_bytes=limits.memory_bytes
        )
        self._here = None if isolate else OpenSubject(resolve(spec), run_seed)
        self._ends = self._ends_in_a_row = 0
        opened: AskedSubject = self._in_child() if self._here is None else self._here
        self.capabilities = opened.capabilities

    def expect(self, processes: int) -> None:
        """Start in the background what a run will ask: a child, and so many side by side, if any."""
        if processes == 0:
            return
        if self._here is not None:
            pool = ThreadPoolExecutor(1)
            self._coming = pool.submit(self._child_for, Hazard.NONE)
            pool.shutdown(wait=False)
        self._replicas.expect(processes)

    @property
    def spent(self) -> bool:
        """Whether the backend has ended its process too often to be asked on."""
        return self._ends_in_a_row >= _ENDS_IN_A_ROW or self._ends >= _ENDS

    @property
    def where(self) -> str:
        """Where the backend is asked, in words."""
        if self._here is not None:
            return "in this process; hazardous cases in one of their own"
        return f"in a process of its own: {self._in_child().limits}"

    def sample(self, case: Case, call: int, key: str) -> Draw:
        """Sample the case's batch once, as `OpenSubject.sample` does.

        Raises:
            SubjectError: the backend raised, or ended its process.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed in the child.

        """
        return self._watched(lambda: self._for(case).sample(case, call, key))

    def sample_many(self, case: Case, rows: int, call: int) -> Int64[np.ndarray, " rows"]:
        """Draw `rows` ids from the law of a case of one row, as `OpenSubject.sample_many` does.

        Raises:
            SubjectError: the backend raised, gave no ids, or ended its process.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed in the child.

        """
        return self._watched(lambda: self._for(case).sample_many(case, rows, call))

    def ask(self, check: Check, case: Case) -> Asked:
        """Hold a check's own conversation, in several processes if it wants them.

        Raises:
            SubjectError: the backend raised, or ended its process.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed in the child.

        """
        if check.beside is not None:
            return self._watched(lambda: self._replicas.ask(check, case))
        return self._watched(lambda: ask_check(self._for(case), check, case))

    def close(self) -> None:
        """Let the child end, and what runs beside it."""
        coming = self._coming
        children: list[Replicas | IsolatedSubject] = [self._replicas, *self._children.values()]
        if coming is not None and coming.exception() is None:
            children.append(coming.result())
        with ThreadPoolExecutor(len(children)) as pool:
            ended = [pool.submit(child.close) for child in children]
        for one in ended:
            one.result()

    def _for(self, case: Case) -> OpenSubject | IsolatedSubject:
        if case.hazard is Hazard.MEMORY:
            return self._in_child(Hazard.MEMORY)
        if self._here is None or case.hazard is not Hazard.NONE:
            return self._in_child()
        return self._here

    def _in_child(self, hazard: Hazard = Hazard.NONE) -> IsolatedSubject:
        """Return the child that is asked about a hazard; large batches have one of their own.

        What a right backend needs for them is granted on top of the limits of other cases.
        """
        if hazard not in self._children:
            coming = self._coming if hazard is Hazard.NONE else None
            self._children[hazard] = self._child_for(hazard) if coming is None else coming.result()
            self._coming = None if hazard is Hazard.NONE else self._coming
        return self._children[hazard]

    def _child_for(self, hazard: Hazard) -> IsolatedSubject:
        limits = self._limits if hazard is Hazard.NONE else _for_large_batches(self._limits)
        return IsolatedSubject(
            self.spec,
            self.run_seed,
            timeout_s=limits.timeout_s,
            memory_bytes=limits.memory_bytes,
        )

    def _watched(self, answer: Callable[[], _Answer]) -> _Answer:
        """Count how often the backend ended its process."""
        try:
            answered = answer()
        except SubjectEnded:
            self._ends += 1
            self._ends_in_a_row += 1
            raise
        self._ends_in_a_row = 0
        return answered


def _for_large_batches(limits: Limits) -> Limits:
    """Return what the batches of `input.large` may use: their logits are asked for by the suite."""
    bytes_ = limits.memory_bytes
    return Limits(
        limits.timeout_s + _SECONDS_A_LOGIT * memory.ENDS * memory.ELEMENTS,
        None if bytes_ is None else bytes_ + memory.bytes_wanted(memory.ENDS * memory.ELEMENTS),
    )


def ask_check(subject: AskedSubject, check: Check, case: Case) -> Asked:
    """Hold a check's own conversation, in the subject's process if it has one."""
    assert check.ask is not None
    if isinstance(subject, GuardedSubject):
        return subject.ask(check, case)
    if check.beside is not None:
        return Asked(unasked=_NAMELESS)
    if isinstance(subject, OpenSubject):
        return converse(check, subject, case)
    assert isinstance(subject, IsolatedSubject)
    return subject.ask(check.name, case)


@contextmanager
def guarded(
    spec: str, run_seed: int, *, isolate: bool | None = None, limits: Limits = Limits()
) -> Iterator[GuardedSubject]:
    """Open a backend, and let its child end at the end.

    Args:
        spec: of the backend.
        run_seed: feeds the default generator of every call.
        isolate: whether everything is asked in a child; None is what suits the backend.
        limits: of a call in the child.

    """
    alone = isolated_by_default(spec) if isolate is None else isolate
    subject = GuardedSubject(spec, run_seed, isolate=alone, limits=limits)
    try:
        yield subject
    finally:
        subject.close()

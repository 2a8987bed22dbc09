"""A subject in its own process: a crash, a hang or a runaway costs one case, not the run.

The real `OpenSubject` lives in a child started as a fresh interpreter, so nothing is forked with
torch's threads, and answers over pipes: JSON headers and safetensors, never pickle.  Only the case
travels there; its logits are built in the child.  Tensors come back on the CPU, whatever the
subject's device.

Memory is limited by the parent, which kills the child when it uses too much
(`refsampler.backends.limits` says why the kernel's limits would judge wrongly); the child's own
helper processes and memory on a GPU are not counted.  POSIX only; memory on Linux only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec
import numpy as np
import torch
from jaxtyping import Int64

from refsampler.backends.limits import CAN_LIMIT_MEMORY
from refsampler.backends.process_child import (
    Child,
    SubjectCrashed,
    SubjectEnded,
    SubjectGarbage,
    SubjectOutOfMemory,
    SubjectTimedOut,
)
from refsampler.backends.process_messages import (
    PREFIX_SIZE,
    Answer,
    Converse,
    Drew,
    Failed,
    Law,
    Open,
    Opened,
    Question,
    Sample,
    Told,
    Unreadable,
    as_draw,
    as_ids,
    framed,
    read_answer,
    read_sizes,
)
from refsampler.backends.protocol import Capabilities
from refsampler.backends.registry import BackendBroken, BackendNotFound
from refsampler.backends.trouble import WorkerFault
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.checks.base import Asked
from refsampler.conformance.subject import Draw, SubjectError

__all__ = [
    "IsolatedSubject",
    "SubjectCrashed",
    "SubjectDidNotOpen",
    "SubjectEnded",
    "SubjectGarbage",
    "SubjectOutOfMemory",
    "SubjectTimedOut",
    "WorkerFault",
]

_WORKER: Final = "refsampler.backends.process_worker"

_Read = TypeVar("_Read")
_Worker = Child[tuple[bytes, bytes]]


class SubjectDidNotOpen(BackendBroken):
    """The subject could not be opened, at first or after it had ended: an ERROR, never a FAIL."""


class IsolatedSubject:
    """A subject that is asked like `OpenSubject`, and whose end is a `SubjectError`.

    After an end the next call opens it again; one that cannot be opened again is not tried a third
    time.  Not safe to share between threads.

    Args:
        spec: a backend, as `refsampler.backends.registry.resolve` takes it.
        run_seed: feeds the default generator of every call.
        timeout_s: limit of one call, in seconds.
        memory_bytes: limit of the child's memory, interpreter and torch (about 0.2 GiB) included;
            None is no limit.
        opening_s: limit of start-up and of opening the subject, in seconds.

    Attributes:
        capabilities: what the backend declares.

    Raises:
        BackendNotFound: no backend goes by that name.
        SubjectDidNotOpen: it could not be opened; the message says why.
        ValueError: a limit is not positive.

    """

    def __init__(
        self,
        spec: str,
        run_seed: int,
        *,
        timeout_s: float,
        memory_bytes: int | None,
        opening_s: float = 120.0,
    ) -> None:
        limits = {"timeout_s": timeout_s, "memory_bytes": memory_bytes, "opening_s": opening_s}
        for name, value in limits.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} = {value!r} is refused: allowed is above 0")
        self.spec, self.run_seed = spec, run_seed
        self._timeout_s, self._opening_s = timeout_s, opening_s
        self._memory_bytes = memory_bytes
        self._encoded: tuple[Case, msgspec.Raw] | None = None
        self._given_up: SubjectDidNotOpen | None = None
        self._closed = False
        self._child, self.capabilities = self._open()

    @property
    def limits(self) -> str:
        """What a call may use, in words."""
        if self._memory_bytes is None:
            memory = "memory not limited"
        elif not CAN_LIMIT_MEMORY:
            memory = "memory not limited on this platform"
        else:
            memory = f"{self._memory_bytes / 2**30:.2f} GiB"
        return f"{self._timeout_s:g} s a call, {memory}"

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def sample(self, case: Case, call: int, key: str) -> Draw:
        """Sample the case's batch once, as `OpenSubject.sample` does.

        Raises:
            SubjectError: the backend raised.
            SubjectEnded: the backend gave no answer that can be read; the class says why.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed.

        """
        return self._ask(Sample(self._encode(case), call, key), _drew(as_draw))

    def sample_many(self, case: Case, rows: int, call: int) -> Int64[np.ndarray, " rows"]:
        """Draw `rows` ids from the law of a case of one row, as `OpenSubject.sample_many` does.

        Raises:
            SubjectError: the backend raised, or gave no ids.
            SubjectEnded: the backend gave no answer that can be read; the class says why.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed.

        """
        return self._ask(Law(self._encode(case), rows, call), _drew(as_ids))

    def ask(self, check: str, case: Case) -> Asked:
        """Hold the conversation of the check of that name.

        Raises:
            SubjectError: the backend raised.
            SubjectEnded: the backend gave no answer that can be read; the class says why.
            SubjectDidNotOpen: the backend could not be opened again.
            WorkerFault: the harness failed.

        """
        return self._ask(Converse(check, self._encode(case)), _told)

    def close(self) -> None:
        """Let the child end; it is killed if it does not within five seconds."""
        self._closed = True
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, question: Question, read: Callable[[Answer, bytes], _Read]) -> _Read:
        """Put a question to a living child and read the answer."""
        child = self._ready()
        header, body = child.ask(framed(question), self._timeout_s)
        try:
            return self._read(header, body, read)
        except Unreadable as error:
            child.end()
            raise SubjectGarbage(str(error), child.last_lines) from error

    def _read(self, header: bytes, body: bytes, read: Callable[[Answer, bytes], _Read]) -> _Read:
        answer = read_answer(header)
        if isinstance(answer, Failed):
            raise self._failure(answer)
        return read(answer, body)

    def _failure(self, answer: Failed) -> Exception:
        match answer.kind:
            case "raised" | "refused":
                return SubjectError(answer.words, refused=answer.kind == "refused")
            case "memory":
                return SubjectOutOfMemory(answer.words, self._memory_bytes)
            case "garbage":
                return SubjectGarbage(answer.words)
            case "absent":
                return BackendNotFound(answer.words)
            case "broken":
                return SubjectDidNotOpen(answer.words)
            case "harness":
                return WorkerFault(f"{answer.words}\n{self._child.last_lines}")

    def _ready(self) -> _Worker:
        """Return a child that can be asked, opened again if the last one ended."""
        if self._closed:
            raise ValueError("the subject is closed")
        if self._given_up is not None:
            raise self._given_up
        if not self._child.alive:
            try:
                self._child = self._open_again()
            except (BackendNotFound, SubjectDidNotOpen) as error:
                self._given_up = SubjectDidNotOpen(f"not opened again: {error}")
                raise self._given_up from error
        return self._child

    def _open_again(self) -> _Worker:
        child, capabilities = self._open()
        if capabilities == self.capabilities:
            return child
        child.end()
        raise SubjectDidNotOpen(f"backend {self.spec!r} declares otherwise than at first")

    def _open(self) -> tuple[_Worker, Capabilities]:
        threads = torch.get_num_threads()
        patience = 2 * max(self._timeout_s, self._opening_s) + 10
        question = Open(self.spec, self.run_seed, threads, self._memory_bytes, patience)
        command = [sys.executable, "-P", "-u", "-m", _WORKER]
        # It finds what this interpreter finds.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}
        child = Child(command, self._memory_bytes, complete=_complete, environment=environment)
        try:
            header, _ = child.ask(framed(question), self._opening_s)
            answer = read_answer(header)
        except (SubjectError, Unreadable) as error:
            child.end()
            raise SubjectDidNotOpen(f"backend {self.spec!r} cannot be opened: {error}") from error
        if isinstance(answer, Opened):
            return child, answer.capabilities
        child.end()
        if isinstance(answer, Failed):
            raise self._failure(answer)
        raise SubjectDidNotOpen(f"backend {self.spec!r} cannot be opened: no declaration came")

    def _encode(self, case: Case) -> msgspec.Raw:
        """Return the case's JSON, kept from call to call."""
        if self._encoded is None or self._encoded[0] is not case:
            self._encoded = (case, msgspec.Raw(encode_case(case)))
        return self._encoded[1]


def _drew(read: Callable[[Drew, bytes], _Read]) -> Callable[[Answer, bytes], _Read]:
    """Return the reader that takes draws only."""

    def checked(answer: Answer, body: bytes) -> _Read:
        if not isinstance(answer, Drew):
            raise Unreadable(f"{type(answer).__name__} in place of a draw")
        return read(answer, body)

    return checked


def _told(answer: Answer, _: bytes) -> Asked:
    if not isinstance(answer, Told):
        raise Unreadable(f"{type(answer).__name__} in place of what a conversation showed")
    return answer.asked


def _complete(received: bytearray) -> tuple[bytes, bytes] | None:
    """Return header and body once all of them are there."""
    if len(received) < PREFIX_SIZE:
        return None
    header, body = read_sizes(bytes(received[:PREFIX_SIZE]))
    start = PREFIX_SIZE + header
    if len(received) < start + body:
        return None
    if len(received) > start + body:
        raise Unreadable(f"{len(received) - start - body} bytes follow the answer")
    return bytes(received[PREFIX_SIZE:start]), bytes(memoryview(received)[start:])


def _import_path() -> list[str]:
    """Return where this interpreter looks for modules; the empty entry is the current folder."""
    return [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109 - a string is wanted

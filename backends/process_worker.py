"""The child's side of `refsampler.backends.process`: one subject, one question at a time.

Started as ``python -m refsampler.backends.process_worker``; ends when its standard input does.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from typing import BinaryIO

import msgspec
import torch

from refsampler.backends.limits import bound_allocations, forbid_core_dumps
from refsampler.backends.process_messages import (
    Answer,
    Converse,
    Failed,
    FailureKind,
    Law,
    Open,
    Opened,
    Question,
    Sample,
    Told,
    Unreadable,
    framed,
    from_draw,
    from_ids,
    read_message,
)
from refsampler.backends.registry import BackendNotFound, resolve
from refsampler.conformance.case import Case, decode_case
from refsampler.conformance.conversing import converse
from refsampler.conformance.scripts.conversation import check_called
from refsampler.conformance.subject import OpenSubject, SubjectError

__all__ = ["main"]


def main() -> None:
    """Answer questions until there are no more."""
    forbid_core_dumps()
    faulthandler.enable()
    questions, answers = _private_pipes()
    worker = _Worker()
    while (message := read_message(questions)) is not None:
        question = msgspec.json.decode(message[0], type=Question)
        if isinstance(question, Open):
            worker.patience_s = question.patience_s
        # If the parent is killed during a call that hangs, nobody else ends this process.
        signal.setitimer(signal.ITIMER_REAL, worker.patience_s)
        answer = framed(*worker.answer(question))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(answer)
        answers.flush()


class _Worker:
    """The subject, and the case that it was asked about last."""

    def __init__(self) -> None:
        self.patience_s = 0.0
        self._subject: OpenSubject | None = None
        self._last: tuple[bytes, Case] | None = None

    def answer(self, question: Question) -> tuple[Answer, bytes]:
        """Return header and tensors; what the subject raises is an answer too."""
        try:
            if isinstance(question, Open):
                return self._open(question), b""
            assert self._subject is not None
            case = self._case(bytes(question.case))
            return _answered(self._subject, case, question)
        except SubjectError as error:
            kind: FailureKind = "refused" if error.refused else "raised"
            return _failed("memory" if _is_memory(error.__cause__) else kind, str(error)), b""
        except Unreadable as error:
            return _failed("garbage", str(error)), b""
        except Exception as error:  # noqa: BLE001 - the parent decides what a fault of ours costs
            traceback.print_exc()
            words = f"{type(error).__name__}: {error}"
            return _failed("memory" if _is_memory(error) else "harness", words), b""

    def _open(self, question: Open) -> Answer:
        torch.set_num_threads(question.threads)
        try:
            backend = resolve(question.spec)
            self._subject = OpenSubject(backend, question.run_seed)
            opened = Opened(self._subject.capabilities)
            msgspec.json.decode(msgspec.json.encode(opened), type=Opened)
        except BackendNotFound as error:
            return _failed("absent", str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the backend is not open
            return _failed("broken", str(error) or type(error).__name__)
        on_cpu = torch.device(self._subject.capabilities.device).type == "cpu"
        if question.memory_bytes is not None and on_cpu:
            bound_allocations(question.memory_bytes)
        return opened

    def _case(self, document: bytes) -> Case:
        """Return the same object for the same case, of which the subject keeps what it built."""
        if self._last is None or self._last[0] != document:
            self._last = (document, decode_case(document))
        return self._last[1]


def _answered(
    subject: OpenSubject, case: Case, question: Sample | Law | Converse
) -> tuple[Answer, bytes]:
    """Put the question to the subject."""
    if isinstance(question, Sample):
        return from_draw(subject.sample(case, question.call, question.key))
    if isinstance(question, Law):
        return from_ids(subject.sample_many(case, question.rows, question.call))
    return _conversed(subject, case, question.check), b""


def _conversed(subject: OpenSubject, case: Case, name: str) -> Answer:
    """Hold the conversation of the check of that name."""
    return Told(converse(check_called(name), subject, case))


def _failed(kind: FailureKind, words: str) -> Failed:
    """Say what happened, in words that JSON can carry whatever the backend put into them."""
    return Failed(kind, words.encode("utf-8", "replace").decode())


def _is_memory(error: BaseException | None) -> bool:
    """Tell whether memory could not be had; torch on a CPU says so in words only."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move both pipes to descriptors of their own; what a backend prints goes to standard error."""
    questions, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # The end of the answers tells the parent that this process is gone: only its death closes them.
    return os.fdopen(questions, "rb"), os.fdopen(answers, "wb", closefd=False)


if __name__ == "__main__":
    main()

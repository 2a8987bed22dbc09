"""A child process that answers one question at a time, under a time limit and a memory limit.

With a session of its own a signal reaches it and what it started, and nothing else; an interrupt from
the terminal reaches only the parent.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final, Generic, TypeVar

from refsampler.backends.limits import CAN_LIMIT_MEMORY, memory_in_use
from refsampler.backends.process_messages import Unreadable
from refsampler.conformance.subject import SubjectError

__all__ = [
    "Child",
    "SubjectCrashed",
    "SubjectEnded",
    "SubjectGarbage",
    "SubjectOutOfMemory",
    "SubjectTimedOut",
]

_LOOK_S: Final = 0.05
_LAST_WORDS_S: Final = 0.5
_FAREWELL_S: Final = 5.0
_CHUNK: Final = 2**20
_LINES: Final = 20
_LINE: Final = 200
_TAIL: Final = 2**16

_Reply = TypeVar("_Reply")


class SubjectEnded(SubjectError):  # noqa: N818 - reads as what happened
    """The subject gave no answer that counts.

    Attributes:
        last_lines: the end of what it wrote to standard error, at most 20 lines.

    """

    def __init__(self, words: str, last_lines: str = "") -> None:
        super().__init__(f"{words}\n{last_lines}" if last_lines else words)
        self.last_lines = last_lines


class SubjectCrashed(SubjectEnded):
    """The process died.

    Attributes:
        how: name of the signal, or the exit code.

    """

    def __init__(self, how: str, last_lines: str = "") -> None:
        super().__init__(f"the process died: {how}", last_lines)
        self.how = how


class SubjectTimedOut(SubjectEnded):
    """The call took longer than it may.

    Attributes:
        timeout_s: the limit in seconds.

    """

    def __init__(self, timeout_s: float, last_lines: str = "") -> None:
        super().__init__(f"no answer within {timeout_s:g} s", last_lines)
        self.timeout_s = timeout_s


class SubjectOutOfMemory(SubjectEnded):
    """The call used more memory than it may, or could not get any.

    Attributes:
        memory_bytes: the limit, None if none was set.

    """

    def __init__(self, words: str, memory_bytes: int | None, last_lines: str = "") -> None:
        limit = "" if memory_bytes is None else f" (limit {memory_bytes / 2**30:.2f} GiB)"
        super().__init__(f"out of memory{limit}: {words}", last_lines)
        self.memory_bytes = memory_bytes


class SubjectGarbage(SubjectEnded):
    """The answer cannot be read."""

    def __init__(self, words: str, last_lines: str = "") -> None:
        super().__init__(f"unreadable answer: {words}", last_lines)


class Child(Generic[_Reply]):
    """A program at the other end of three pipes.

    Args:
        command: program and arguments.
        memory_bytes: what it may keep in memory or swap; None, or a platform other than Linux, is
            no limit.  Looked at every 50 ms, and only during calls.
        complete: what was received -> the answer once all of it is there, else None; raises
            `Unreadable` if it will never be one.
        environment: of the process; None is this one's.
        own_session: whether a signal reaches it and what it started, and nothing else; otherwise
            it stays in this process's group, and what kills that kills it.

    """

    def __init__(
        self,
        command: Sequence[str],
        memory_bytes: int | None,
        *,
        complete: Callable[[bytearray], _Reply | None],
        environment: Mapping[str, str] | None = None,
        own_session: bool = True,
    ) -> None:
        self._memory_bytes = memory_bytes if CAN_LIMIT_MEMORY else None
        self._complete = complete
        self._looked = time.monotonic()
        self._tail = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=own_session,
            env=environment,
        )
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(self, _end, self._process, self._selector)
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Its process id, and that of its session if it has one of its own."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._finalizer.alive

    def ask(self, message: bytes, timeout_s: float) -> _Reply:
        """Send a message and return the answer.

        Raises:
            SubjectEnded: there is none; the process is gone then.

        """
        try:
            return self._exchange(message, timeout_s)
        except Unreadable as error:
            self.end()
            raise SubjectGarbage(str(error), self.last_lines) from error
        except BaseException:
            self.end()
            raise

    def close(self) -> None:
        """Let it end by itself, and end it if it does not within five seconds."""
        if self.alive:
            self._stdin.close()
            self._listen_until_closed(_FAREWELL_S)
            self.end()

    def end(self) -> None:
        """End it, and whatever it started in its session, now; keep its last words."""
        if self.alive:
            _kill(self._process)
            while self._hear():
                pass
            self._finalizer()

    @property
    def last_lines(self) -> str:
        """The end of what it wrote to standard error."""
        lines = self._tail.decode("utf-8", "replace").splitlines()
        # Python's fault handler ends with a list of every compiled module.
        told = [line for line in lines if line and not line.startswith("Extension modules:")]
        return "\n".join(line[:_LINE] for line in told[-_LINES:])

    def _exchange(self, message: bytes, timeout_s: float) -> _Reply:
        """Write and read until the answer is complete.

        An answer that comes in at the deadline has as long again; one that trickles has not.
        """
        deadline = time.monotonic() + timeout_s
        unsent = memoryview(message)
        received = bytearray()
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select(_LOOK_S)}
            if self._stderr in ready:
                self._hear()
            if self._stdin in ready:
                unsent = unsent[self._write(unsent) :]
                if not unsent:
                    self._selector.unregister(self._stdin)
            if self._stdout in ready:
                chunk = os.read(self._stdout.fileno(), _CHUNK)
                if not chunk:
                    raise self._after_death()
                received += chunk
            answer = self._complete(received)
            self._watch_memory()
            if answer is not None and not unsent:
                return answer
            late = time.monotonic() - deadline
            if late >= timeout_s or (late >= 0 and self._stdout not in ready):
                raise self._after_silence(timeout_s)

    def _write(self, unsent: memoryview) -> int:
        """Write what fits; a reader that is gone takes everything, and is noticed elsewhere."""
        try:
            return os.write(self._stdin.fileno(), unsent)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(unsent)

    def _hear(self) -> bool:
        """Read some of standard error; False if there is nothing more for now."""
        try:
            heard = os.read(self._stderr.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not heard and self._stderr in self._selector.get_map():
            self._selector.unregister(self._stderr)
        self._tail = (self._tail + heard)[-_TAIL:]
        return bool(heard)

    def _watch_memory(self) -> None:
        """Raise if it uses too much; looks no more often than every 50 ms."""
        now = time.monotonic()
        if self._memory_bytes is None or now < self._looked + _LOOK_S:
            return
        self._looked = now
        used = memory_in_use(self.pid)
        if used > self._memory_bytes:
            self.end()
            words = f"{used / 2**30:.2f} GiB were in use"
            raise SubjectOutOfMemory(words, self._memory_bytes, self.last_lines)

    def _after_death(self) -> SubjectCrashed:
        self.end()
        return SubjectCrashed(_how_it_ended(self._process.returncode), self.last_lines)

    def _after_silence(self, timeout_s: float) -> SubjectEnded:
        """Have it say where it hangs, then end it."""
        os.kill(self.pid, signal.SIGABRT)
        self._listen_until_closed(_LAST_WORDS_S)
        self.end()
        code = self._process.returncode
        if code not in (-signal.SIGABRT, -signal.SIGKILL, -signal.SIGALRM):
            # It had died before; a process that it started held the pipe open.
            return SubjectCrashed(_how_it_ended(code), self.last_lines)
        return SubjectTimedOut(timeout_s, self.last_lines)

    def _listen_until_closed(self, seconds: float) -> None:
        """Read both pipes until the process is gone or time is up."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready = {key.fileobj for key, _ in self._selector.select(left)}
            if self._stderr in ready:
                self._hear()
            if self._stdout in ready and not os.read(self._stdout.fileno(), _CHUNK):
                return

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def _stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    # We kill what is left of a process that closed its pipe, which reads the same.
    return f"{name}, or it closed its pipe" if -code == signal.SIGKILL else name


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group it leads, then reap it: until then nobody else can have its id."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()


def _end(process: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> None:
    _kill(process)
    selector.close()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()

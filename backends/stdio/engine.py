"""A program on standard input and output as an engine: `stdio:PROGRAM ARGUMENT...`.

A program that dies or does not answer in time has failed its case; one that answers against the wire
is a `WireFault`, an ERROR.  Either way it is ended, and the next session starts it again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
from torch import Tensor

from refsampler.backends.process_child import Child, SubjectGarbage
from refsampler.backends.process_messages import Unreadable
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.backends.stdio import wire
from refsampler.backends.stdio.tensors import read_output_file, write_tensors
from refsampler.backends.stdio.wire import WireFault
from refsampler.conformance.subject import SubjectError
from refsampler.request import Request
from refsampler.sampler import SamplerOutput

__all__ = ["StdioEngine", "StdioSession"]

_OPENING_S: Final = 300.0
_CALL_S: Final = 50.0
"""Below what one call of the suite may take, so that the program is ended before its asker is."""
_MEMORY_BYTES: Final = 16 * 2**30
_FAULTS: Final = 20
"""A program that broke the wire so often is not started again."""
_NOT_ON_THE_WIRE: Final = frozenset(
    {
        Feature.DRAFT,
        Feature.GRAPH,
        Feature.IN_PLACE,
        Feature.NOISE,
        Feature.PROCESSED,
        Feature.SAME_PATH,
        Feature.SPECULATIVE,
        Feature.THINKING,
    }
)


class StdioEngine:
    """Level 3: sessions of a program in a process of its own.

    Args:
        command: a program and its arguments, quoted as in a shell; no shell runs.
        call_s: seconds that a reply may take.
        opening_s: seconds that start-up and `describe` may take.

    Attributes:
        capabilities: what the program declares, less what the wire cannot carry.

    Raises:
        WireFault: it speaks another wire.
        SubjectError: it died, or did not answer.
        ValueError: the command is empty or cannot be found.

    """

    def __init__(
        self, command: str, *, call_s: float = _CALL_S, opening_s: float = _OPENING_S
    ) -> None:
        self._command = tuple(shlex.split(command))
        if not self._command or shutil.which(self._command[0]) is None:
            raise ValueError(f"{command!r} is refused: allowed is a program and its arguments")
        self._call_s, self._opening_s = call_s, opening_s
        self._program: _Program | None = None
        self._sessions = itertools.count(1)
        self._starting = threading.Lock()
        self._faults = 0
        self.capabilities = self._running().capabilities

    def open(self, vocab: int, seed: int) -> StdioSession:
        """Start a session over V = `vocab` ids; `seed` feeds unseeded requests."""
        number = next(self._sessions)
        with self._starting:
            program = self._running()
        program.ask(wire.Open(call=0, session=number, vocab=vocab, seed=seed))
        return StdioSession(program, number, vocab)

    def close(self) -> None:
        """Let the program end."""
        if self._program is not None:
            self._program.close()

    def _running(self) -> _Program:
        """Return the program, started again if it has ended."""
        if self._program is not None and self._program.alive:
            return self._program
        if self._program is not None:
            self._faults += self._program.broken
        if self._faults >= _FAULTS:
            raise WireFault(f"the program is not started again: it broke the wire {_FAULTS} times")
        self._program = _Program(self._command, self._call_s, self._opening_s)
        return self._program


class _Program:
    """A child that has described itself."""

    def __init__(self, command: Sequence[str], call_s: float, opening_s: float) -> None:
        self._call_s = call_s
        self._calls = 0
        self._numbers = itertools.count(1)
        self._one_at_a_time = threading.Lock()
        self.broken = False
        self.folder = Path(tempfile.mkdtemp(prefix="refsampler-wire-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        # In the process of another harness the program belongs to its group, and ends with it.
        nested = os.getsid(0) == os.getpid()
        self._child: Child[bytes] = Child(
            command, _MEMORY_BYTES, complete=_line, own_session=not nested
        )
        question = wire.Describe(call=0, wire=wire.VERSION, folder=str(self.folder))
        reply = self._exchange(question, opening_s)
        if not isinstance(reply, wire.Described) or reply.wire != wire.VERSION:
            raise self._fault(f"{reply!r}: expected is a description in wire {wire.VERSION}")
        self.capabilities = self._checked(reply.capabilities)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._child.alive

    def ask(self, question: wire.Ask) -> None:
        """Ask for something to be done.

        Raises:
            WireFault: the reply is not one.
            SubjectError: the program died, did not answer, or says that it failed.
            ValueError: the program refuses the input.

        """
        reply = self._exchange(question, self._call_s)
        if isinstance(reply, wire.Failed):
            raise ValueError(reply.words) if reply.kind == "refused" else SubjectError(reply.words)
        if not isinstance(reply, wire.Done):
            raise self._fault(f"{type(reply).__name__} in place of done or failed")

    def names(self) -> tuple[str, str]:
        """Return names of files for logits and output that no file has yet."""
        place = next(self._numbers)
        return f"logits-{place}.safetensors", f"output-{place}.safetensors"

    def read(self, name: str, rows: int, vocab: int) -> SamplerOutput:
        """Read an output; one that cannot be read ends the program."""
        try:
            return read_output_file(self.folder / name, rows, vocab)
        except WireFault as error:
            raise self._fault(str(error)) from error

    def close(self) -> None:
        """Let it end."""
        self._child.close()
        self._finalizer()

    def _exchange(self, question: wire.Ask, timeout_s: float) -> wire.Reply:
        """Ask one question at a time; threads of a conversation wait for each other."""
        with self._one_at_a_time:
            return self._alone(question, timeout_s)

    def _alone(self, question: wire.Ask, timeout_s: float) -> wire.Reply:
        if not self.alive:
            raise WireFault("the program of this session has ended")
        self._calls += 1
        numbered = msgspec.structs.replace(question, call=self._calls)
        try:
            reply = wire.read_reply(self._child.ask(wire.encode(numbered) + b"\n", timeout_s))
        except (SubjectGarbage, WireFault) as error:
            raise self._fault(str(error)) from error
        if reply.call != self._calls:
            raise self._fault(f"a reply to call {reply.call}: expected is one to {self._calls}")
        return reply

    def _checked(self, declared: Capabilities) -> Capabilities:
        if declared.level != 3 or declared.device != "cpu":
            raise self._fault(
                f"level = {declared.level}, device = {declared.device!r}: allowed are 3 and cpu"
            )
        return replace(declared, features=declared.features - _NOT_ON_THE_WIRE)

    def _fault(self, words: str) -> WireFault:
        """End the program, and say what it did and what it wrote last."""
        self.broken = True
        self._child.end()
        last = self._child.last_lines
        return WireFault(f"{words}\n{last}" if last else words)


class StdioSession:
    """A session in the program; ids and requests are those of the protocol."""

    def __init__(self, program: _Program, session: int, vocab: int) -> None:
        self._program, self._session, self._vocab = program, session, vocab

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        """Admit a request, or refuse it with the program's words."""
        sent = wire.from_request(request)
        self._program.ask(wire.Add(call=0, session=self._session, id=id, request=sent))

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        """Forget a request."""
        self._program.ask(wire.Remove(call=0, session=self._session, id=id))

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        """Sample one id for each of `ids`; logits [len(ids), V]."""
        given, taken = self._program.names()
        paths = [self._program.folder / name for name in (given, taken)]
        try:
            write_tensors(paths[0], {"logits": logits})
            self._program.ask(
                wire.Sample(
                    call=0, session=self._session, ids=tuple(ids), logits=given, output=taken
                )
            )
            return self._program.read(taken, len(ids), self._vocab)
        finally:
            for path in paths:
                # whatever the program left there goes with the folder at the latest
                with contextlib.suppress(OSError):
                    path.unlink()

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to the requests' outputs."""
        taken = tuple(tuple(one) for one in tokens)
        self._program.ask(wire.Accept(call=0, session=self._session, ids=tuple(ids), tokens=taken))

    def close(self) -> None:
        """Give back what the session holds; of a program that ended nothing is held."""
        if self._program.alive:
            self._program.ask(wire.Close(call=0, session=self._session))


def _line(received: bytearray) -> bytes | None:
    """Return a line once it has ended, and nothing may follow it."""
    end = received.find(b"\n")
    if end < 0:
        if len(received) > wire.LONGEST_REPLY:
            raise Unreadable(f"a reply of more than {wire.LONGEST_REPLY} bytes")
        return None
    if end + 1 < len(received):
        raise Unreadable(f"{len(received) - end - 1} bytes follow the reply")
    return bytes(received[:end])

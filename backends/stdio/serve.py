"""Serves a backend on standard input and output: `python -m refsampler.backends.stdio.serve SPEC`.

Ends when its standard input does.  What the backend prints goes to standard error.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, assert_never

from refsampler.backends.limits import forbid_core_dumps
from refsampler.backends.protocol import Engine, Session
from refsampler.backends.registry import resolve
from refsampler.backends.stdio import wire
from refsampler.backends.stdio.serving import as_engine
from refsampler.backends.stdio.tensors import output_tensors, read_tensors, write_tensors

__all__ = ["Server", "main", "serve"]

_USAGE: Final = "usage: python -m refsampler.backends.stdio.serve BACKEND"
_LARGEST: Final = 2**36


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the backend that the only argument names."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        raise SystemExit(_USAGE)
    forbid_core_dumps()
    faulthandler.enable()
    asks, replies = _private_pipes()
    serve(Server(as_engine(resolve(given[0]))), asks, replies)


def serve(server: Server, asks: BinaryIO, replies: BinaryIO) -> None:
    """Answer line by line until there are no more."""
    for line in asks:
        replies.write(wire.encode(server.answer(wire.read_ask(line))) + b"\n")
        replies.flush()


class Server:
    """Sessions of an engine, by the numbers that the harness gave them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: dict[int, Session] = {}
        self._folder = Path()

    def answer(self, ask: wire.Ask) -> wire.Reply:
        """Do what is asked; what the engine raises is an answer too."""
        try:
            return self._done(ask)
        except (ValueError, TypeError) as error:
            return wire.Failed(call=ask.call, kind="refused", words=_words(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the harness wants to know it
            words = f"{type(error).__name__}: {error}"
            return wire.Failed(call=ask.call, kind="raised", words=_words(words))

    def _done(self, ask: wire.Ask) -> wire.Reply:
        match ask:
            case wire.Describe():
                self._folder = Path(ask.folder)
                declared = self._engine.capabilities
                return wire.Described(call=ask.call, wire=wire.VERSION, capabilities=declared)
            case wire.Open():
                self._sessions[ask.session] = self._engine.open(ask.vocab, ask.seed)
            case wire.Add():
                self._session(ask.session).add(ask.id, wire.as_request(ask.request))
            case wire.Remove():
                self._session(ask.session).remove(ask.id)
            case wire.Sample():
                self._sample(ask)
            case wire.Accept():
                self._session(ask.session).accept(ask.ids, ask.tokens)
            case wire.Close():
                self._session(ask.session).close()
                del self._sessions[ask.session]
            case _:
                assert_never(ask)
        return wire.Done(call=ask.call)

    def _sample(self, ask: wire.Sample) -> None:
        logits = read_tensors(self._folder / ask.logits, _LARGEST)["logits"]
        output = self._session(ask.session).sample(ask.ids, logits)
        write_tensors(self._folder / ask.output, output_tensors(output))

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            raise ValueError(f"session = {number} is refused: allowed is one that is open")
        return self._sessions[number]


def _words(text: str) -> str:
    """Return text that JSON can carry, whatever the backend put into it."""
    return text.encode("utf-8", "replace").decode()


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move both pipes to descriptors of their own; what the backend prints goes to standard error."""
    asks, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(asks, "rb"), os.fdopen(replies, "wb")


if __name__ == "__main__":
    main()

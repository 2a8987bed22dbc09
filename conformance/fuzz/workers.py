"""Workers: the shards of a run in processes of this machine, a pipe from each.

A worker may die: its shard stands still at its last checkpoint, and the others go on.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Final

from refsampler.conformance.fuzz.shard import Shard, fuzz_shard
from refsampler.conformance.records import Header

__all__ = ["ThisMachine", "Workers"]

_PATIENCE_S: Final = 0.5


class Workers:
    """Shards at work, each in a process of its own that is called `shard` and its number.

    Args:
        shards: declared.

    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._processes: list[SpawnProcess] = []
        self._open: dict[Connection, SpawnProcess] = {}
        self._dead: list[str] = []
        for shard in shards:
            told, teller = spawn.Pipe(duplex=False)
            name = f"shard {shard.number}"
            process = spawn.Process(target=_work, args=(shard, teller), name=name)
            process.start()
            # the last copy of this end goes with the worker, which ends what can be read
            teller.close()
            self._processes.append(process)
            self._open[told] = process

    def messages(self) -> Iterator[bytes]:
        """Yield what they tell, and nothing more once all have ended; b"" now and then between."""
        while self._open:
            ready = wait([*self._open], timeout=_PATIENCE_S)
            if not ready:
                yield b""
            for one in [told for told in self._open if told in ready]:
                try:
                    message = one.recv_bytes()
                except (EOFError, OSError):
                    # one that is killed in the middle of a message spoils its own pipe only
                    self._ended(self._open.pop(one))
                else:
                    yield message

    def dead(self) -> Sequence[str]:
        """Say which ended otherwise than by themselves so far, and how."""
        return tuple(self._dead)

    def end(self) -> None:
        """End those that are still at work."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _ended(self, process: SpawnProcess) -> None:
        process.join()
        if process.exitcode:
            self._dead.append(f"{process.name} ended with code {process.exitcode}")


def _work(shard: Shard, teller: Connection) -> None:
    # an interrupt reaches all processes of a terminal; a driver that is gone has nobody to tell
    with suppress(KeyboardInterrupt, BrokenPipeError):
        fuzz_shard(shard, teller.send_bytes)


class ThisMachine:
    """Shards in processes of this machine, which write their reports themselves."""

    def room(self, device: str) -> int:  # noqa: ARG002 - whoever wants more says how many
        """Return 1."""
        return 1

    @contextmanager
    def working(self, shards: Sequence[Shard], first: Header) -> Iterator[Workers]:  # noqa: ARG002 - the code is the same
        """Start a process for each shard, and end those that are left at the end."""
        started = Workers(shards)
        try:
            yield started
        finally:
            started.end()

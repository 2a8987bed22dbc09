"""A shard far from its driver: it fuzzes in a thread, and posts what it finds when it is asked.

It goes on only when the driver has written down what was posted last.  Until it has ended by itself,
its report also lies in a folder of its own on its node.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from threading import Thread

from refsampler.conformance.fuzz.shard import Shard, fuzz_shard

__all__ = ["Ended", "Line", "Message", "Place", "Post", "PostedShard"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a shard is: host, process id, folder of its report there."""

    host: str
    process: int
    folder: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the shard's report."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """What the shard tells the driver, for `read_told`."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The last post: what went wrong; empty if the shard ended by itself."""

    error: str


Post = Place | Line | Message | Ended


class PostedShard:
    """A shard at work.

    Args:
        shard: declared; its folder is the driver's, and gives the one here its name.

    """

    def __init__(self, shard: Shard) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"{shard.folder.name}-"))
        self._shard = replace(shard, folder=folder)
        self._box: Queue[Post] = Queue(1)
        self._latest: tuple[int, Post] | None = None
        Thread(target=self._work, daemon=True).start()

    def take(self, number: int) -> Post:
        """Return post `number`, counted from 0, as soon as there is one.

        Asking for it says that the one before is on the driver's disk.  Asked for the same one again,
        as after an answer that got lost, it gives the same one.
        """
        if self._latest is None or number > self._latest[0]:
            if self._latest is not None:
                self._box.task_done()
            self._latest = number, self._box.get()
        return self._latest[1]

    def _work(self) -> None:
        folder = self._shard.folder
        self._post(Place(socket.gethostname(), os.getpid(), str(folder)))
        try:
            fuzz_shard(self._shard, self._as(Message), copy=self._as(Line))
        except Exception as error:  # noqa: BLE001 - whatever it is, only the driver can say it
            self._box.put(Ended(f"{type(error).__name__}: {error}"))
        else:
            # all of it is on the driver's disk
            shutil.rmtree(folder, ignore_errors=True)
            self._box.put(Ended(""))

    def _as(self, kind: type[Line | Message]) -> Callable[[bytes], None]:
        return lambda content: self._post(kind(content))

    def _post(self, post: Post) -> None:
        """Post, and wait until it is on the driver's disk."""
        self._box.put(post)
        self._box.join()

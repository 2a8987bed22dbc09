"""Shards on a Ray cluster, which need not share a filesystem with the driver.

A shard is an actor that is asked for one post after the other.  It is never started again: a rerun
would be a shard that nobody declared (rule 10).  One that died, alone or with its node, stands still at
its last checkpoint, and the others go on.  When the driver is gone, Ray ends the shards.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final

import msgspec

from refsampler.conformance.fuzz.posted import Ended, Line, Message, Place, PostedShard
from refsampler.conformance.fuzz.shard import REPORT, Shard
from refsampler.conformance.records import Header

__all__ = ["Cluster", "RayShards", "connected"]

_PATIENCE_S: Final = 0.5
_WIDTH: Final = 200
_SAME: Final = (
    "backend",
    "backend_version",
    "refsampler",
    "torch",
    "contract_digest",
    "capabilities",
)
"""Fields of a header in which all nodes agree with the driver: one run is about one backend."""


class Cluster:
    """A Ray cluster that the driver is connected to.

    Args:
        ray: the module.
        note: told where shards are and which died, as it happens.

    """

    def __init__(self, ray: ModuleType, note: Callable[[str], None]) -> None:
        self._ray, self._note = ray, note

    def room(self, device: str) -> int:
        """Return one a CPU, or one a GPU for a backend on CUDA devices."""
        resources = self._ray.cluster_resources()
        return max(1, int(min(resources.get(name, 0) for name in _wanted(device))))

    @contextmanager
    def working(self, shards: Sequence[Shard], first: Header) -> Iterator[RayShards]:
        """Start an actor for each shard, and end those that are left at the end.

        Args:
            shards: declared.
            first: line of the run's report; a shard whose own differs is refused.

        """
        with ExitStack() as stack:
            started = RayShards(self._ray, self._note, shards, first, stack)
            stack.callback(started.end)
            yield started


class RayShards:
    """Shards at work on a cluster; what is posted is written below the driver's folder of the shard.

    Args:
        ray: the module.
        note: told where shards are and which died, as it happens.
        shards: declared.
        first: line of the run's report.
        stack: closes the shards' reports.

    """

    def __init__(
        self,
        ray: ModuleType,
        note: Callable[[str], None],
        shards: Sequence[Shard],
        first: Header,
        stack: ExitStack,
    ) -> None:
        self._ray, self._note, self._first = ray, note, first
        self._dead: list[str] = []
        self._places = ["not started yet"] * len(shards)
        for shard in shards:
            shard.folder.mkdir(parents=True, exist_ok=True)
        self._reports = [stack.enter_context((one.folder / REPORT).open("wb")) for one in shards]
        wanted = _wanted(first.device)
        remote = ray.remote(PostedShard).options(
            num_cpus=wanted["CPU"],
            num_gpus=wanted.get("GPU", 0),
            scheduling_strategy="SPREAD",
            max_restarts=0,
            # an answer may get lost on its way; the shard gives it again
            max_task_retries=-1,
        )
        self._actors = [remote.remote(one) for one in shards]
        self._asked: dict[Any, tuple[int, int]] = {}
        for at in range(len(shards)):
            self._ask(at, 0)

    def messages(self) -> Iterator[bytes]:
        """Yield what they tell, and nothing more once all have ended; b"" now and then between."""
        while self._asked:
            ready, _ = self._ray.wait([*self._asked], timeout=_PATIENCE_S)
            if not ready:
                yield b""
            for one in ready:
                at, number = self._asked.pop(one)
                try:
                    post = self._ray.get(one)
                except self._ray.exceptions.RayError as error:
                    self._lose(at, _words(error))
                    continue
                if isinstance(post, Message):
                    yield post.content
                elif isinstance(post, Ended):
                    if post.error:
                        self._lose(at, post.error)
                    continue
                elif not self._kept(at, post):
                    continue
                self._ask(at, number + 1)

    def dead(self) -> Sequence[str]:
        """Say which ended otherwise than by themselves so far, and how."""
        return tuple(self._dead)

    def end(self) -> None:
        """End those that are still at work."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _ask(self, at: int, number: int) -> None:
        self._asked[self._actors[at].take.remote(number)] = (at, number)

    def _kept(self, at: int, post: Place | Line) -> bool:
        """Write down a line, or where the shard is; whether the shard may go on."""
        if isinstance(post, Place):
            self._places[at] = f"{post.host}, process {post.process}, {post.folder}"
            self._note(f"shard {at} on {self._places[at]}")
            return True
        if not self._reports[at].tell():
            unlike = _unlike(post.content, self._first)
            if unlike:
                self._lose(at, f"refused, as not the same everywhere: {unlike}")
                return False
        self._reports[at].write(post.content)
        self._reports[at].flush()
        return True

    def _lose(self, at: int, why: str) -> None:
        self._ray.kill(self._actors[at])
        self._dead.append(f"shard {at} ended ({self._places[at]}): {why}")
        self._note(self._dead[-1])


def _wanted(device: str) -> dict[str, int]:
    """Return what a shard takes of its node; Ray hides the GPUs from whoever does not ask for one."""
    return {"CPU": 1, "GPU": 1} if device.startswith("cuda") else {"CPU": 1}


def _unlike(line: bytes, first: Header) -> str:
    """Return in which fields the first line of a shard differs from that of the run."""
    header = msgspec.json.decode(line, type=Header)
    return ", ".join(name for name in _SAME if getattr(header, name) != getattr(first, name))


def _words(error: Exception) -> str:
    """Return the last line of what Ray says, which is the cause."""
    return textwrap.shorten(str(error).strip().splitlines()[-1], _WIDTH)


@contextmanager
def connected(address: str, note: Callable[[str], None]) -> Iterator[Cluster]:
    """Connect to a cluster that is there.

    Args:
        address: of its head; "auto" is $RAY_ADDRESS, or else the cluster that was started last here.
        note: told where shards are and which died, as it happens.

    Raises:
        ModuleNotFoundError: the extra `ray` is not installed.
        ConnectionError: no cluster answers there.

    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ray is not installed; pip install 'refsampler[ray]'", name="ray"
        ) from error
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        yield Cluster(ray, note)
    finally:
        ray.shutdown()

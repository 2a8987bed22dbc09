"""A shard: one of several fuzzing runs that were declared together before the start, and what it tells.

A shard has a run seed of its own, so no two ask the same case with the same draws, and their evidence
about the law may be multiplied (rule 10).  What it finds stands in a report of its own before anything
else happens; the driver is told in bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np

from refsampler.conformance.collector import sparing_what_exists
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.fuzz.found import Found, FoundBook
from refsampler.conformance.fuzz.law import LawEvidence
from refsampler.conformance.fuzz.loop import Progress, fuzz
from refsampler.conformance.fuzz.report import header
from refsampler.conformance.isolation import Limits, guarded
from refsampler.conformance.records import Header, ReportWriter
from refsampler.conformance.subject import derived_seed
from refsampler.conformance.threads import one_thread

__all__ = [
    "REPORT",
    "AtWork",
    "Broken",
    "Machines",
    "Shard",
    "State",
    "Told",
    "declared",
    "fuzz_shard",
    "read_told",
]

REPORT: Final = "report.jsonl"
_EVERY_S: Final = 1.0
"""Seconds from one checkpoint to the next; what a killed shard drew since its last one does not count."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker does.

    Attributes:
        number: from 0.
        count: of the shards of the run.
        folder: of its report.
        spec: of the backend.
        run_seed: of its batches and draws.
        seconds: that it takes; None until it is ended.
        isolate: whether the backend is asked in a process of its own.
        limits: of a call there.

    """

    number: int
    count: int
    folder: Path
    spec: str
    run_seed: int
    seconds: float | None
    isolate: bool | None
    limits: Limits


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """A new cause of a shard: its clause, the features of the smallest case, and that case's id."""

    shard: int
    clause: str
    asks: tuple[str, ...]
    expected: str
    seen: str
    charge: float
    case: str


class State(msgspec.Struct, frozen=True, tag="state"):
    """A checkpoint: what the shard has done, and log e of every bet about the law as float64."""

    shard: int
    batches: int
    draws: int
    generating: float
    pairs: tuple[tuple[str, str], ...]
    possible: int
    errors: tuple[str, ...]
    law_draws: int
    components: bytes

    @property
    def bets(self) -> FloatArray:
        """Log e of every bet."""
        return np.frombuffer(self.components, np.float64)


Told = Broken | State
_decoder: Final = msgspec.msgpack.Decoder(Told)


def read_told(message: bytes) -> Told:
    """Read what a shard told."""
    return _decoder.decode(message)


class AtWork(Protocol):
    """Shards that were started, in processes here or on other machines.

    Before a finding is yielded, its case stands in the report in the shard's folder on this machine.
    """

    def messages(self) -> Iterator[bytes]:
        """Yield what they tell, and nothing more once all have ended; b"" now and then between."""

    def dead(self) -> Sequence[str]:
        """Say which ended otherwise than by themselves so far, and how."""


class Machines(Protocol):
    """Where shards can be started."""

    def room(self, device: str) -> int:
        """Return how many shards of a backend on that device are declared if nobody says how many."""

    def working(self, shards: Sequence[Shard], first: Header) -> AbstractContextManager[AtWork]:
        """Start each shard, and end those that are left at the end.

        Args:
            shards: declared.
            first: line of the run's report.

        """


def declared(run: Shard) -> tuple[Shard, ...]:
    """Return the shards of a run, before any draw.

    Args:
        run: a shard that stands for all of them, with the run's own seed and folder.

    Returns:
        Each with a seed derived from that of the run, and a folder beside it that ends in its number.

    """
    return tuple(
        replace(
            run,
            number=number,
            folder=run.folder.with_name(f"{run.folder.name}.{number}"),
            run_seed=derived_seed(run.run_seed, "fuzz shard", number),
        )
        for number in range(run.count)
    )


def fuzz_shard(
    shard: Shard, put: Callable[[bytes], None], copy: Callable[[bytes], None] | None = None
) -> None:
    """Fuzz until time is up; a finding is on disk before it is told, and before the next batch.

    Args:
        shard: declared.
        put: told what `read_told` reads.
        copy: told every line of the report when it is on disk, before anything else happens.

    Raises:
        BackendNotFound: no backend goes by that name.
        BackendBroken: it could not be opened.

    """
    encode = msgspec.msgpack.encode
    shard.folder.mkdir(parents=True, exist_ok=True)
    with (
        one_thread(),
        sparing_what_exists(),
        guarded(shard.spec, shard.run_seed, isolate=shard.isolate, limits=shard.limits) as subject,
        ReportWriter((shard.folder / REPORT).open("wb"), copy) as writer,
    ):
        share = 1 / shard.count
        writer.write(header(subject.capabilities, shard.spec, shard.run_seed, shard.seconds, share))
        law = LawEvidence(subject.capabilities)
        started = last = time.monotonic()

        def found(one: Found) -> None:
            put(encode(_broken(shard.number, one)))

        def tell(done: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY_S:
                last = time.monotonic()
                put(encode(_state(shard.number, done, law)))

        def stop(_done: Progress) -> bool:
            late = shard.seconds is not None and time.monotonic() - started >= shard.seconds
            return late or subject.spent

        book = FoundBook(writer, subject, tell=found)
        done = fuzz(subject, shard.run_seed, book, stop=stop, tell=tell, law=law, share=share)
        put(encode(_state(shard.number, done, law)))


def _broken(number: int, found: Found) -> Broken:
    cause, finding = found.cause, found.finding
    return Broken(
        number,
        cause.clause,
        cause.asks,
        finding.expected,
        finding.seen,
        finding.charge,
        found.case.id,
    )


def _state(number: int, done: Progress, law: LawEvidence) -> State:
    return State(
        number,
        done.batches,
        done.draws,
        done.generating,
        tuple(sorted(done.pairs)),
        done.possible,
        tuple(done.errors[:3]),
        law.draws,
        law.components.astype(np.float64).tobytes(),
    )

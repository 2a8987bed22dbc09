"""Check: cases of one clause group and a pure function that judges what a backend gave for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.subject import Draw, OpenSubject

__all__ = [
    "CERTAIN",
    "Arrangement",
    "Asked",
    "Check",
    "Finding",
    "Kind",
    "SideBySide",
    "Trial",
    "alone",
    "clause_ids",
]


CERTAIN: Final = 35.0
"""Nats: an event of probability e^-35 or less is near-certain not to happen (evidence rule 2)."""


class Kind(StrEnum):
    """How a check decides, hence what it may cost in false alarms."""

    EXACT = "exact"
    NEAR_CERTAIN = "near-certain"
    LAW = "law"
    TAIL = "tail"
    PAIRS = "pairs"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Finding:
    """A clause that was broken, as data.

    Attributes:
        clause: that was broken.
        expected: what every right backend gives, in words.
        seen: what this one gave.
        charge: probability that a right backend shows this; 0 for an exact comparison.
        row: of the batch, where one row is meant.
        call: of the case, where one call is meant.
        candidates: clauses each of which would explain it, `clause` among them; the run decides at
            the end which few clauses explain everything.
        given: counts only if this clause is found broken; None counts by itself.
        arrangement: place of the arrangement that showed it.
        unless: does not count if this clause is found broken; what never came says nothing where
            noise is not fresh.
        guess: that some clause is broken is sure, that it is this one is not; it counts only if
            nothing else is found broken.

    """

    clause: ClauseId
    expected: str
    seen: str
    charge: float = 0.0
    row: int | None = None
    call: int | None = None
    candidates: tuple[ClauseId, ...] = ()
    given: ClauseId | None = None
    arrangement: int = 0
    unless: ClauseId | None = None
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One way to ask the same thing: a batch, its exact laws, and the draws of every call."""

    case: Case
    expected: Expected
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a check judges.

    Attributes:
        capabilities: of the backend.
        arrangements: the case itself, then its other arrangements.
        kind: of the check.
        certain: nats beyond which what is improbable counts as impossible, in a near-certain check.

    """

    capabilities: Capabilities
    arrangements: tuple[Arrangement, ...]
    kind: Kind
    certain: float = CERTAIN

    @property
    def case(self) -> Case:
        """The case as planned."""
        return self.arrangements[0].case


@dataclass(frozen=True, slots=True)
class Asked:
    """What a conversation with a backend showed, where sampling a batch does not tell.

    Attributes:
        findings: clauses broken.
        draws: ids drawn.
        figures: clause and a measured figure in words, reported whatever the verdict.
        ids: drawn, where evidence judges them, as the check packs them.
        unasked: why this backend could not be asked; empty if it was.
        script: that holds the conversation again, where one was asked for.

    """

    findings: tuple[Finding, ...] = ()
    draws: int = 0
    figures: tuple[tuple[ClauseId, str], ...] = ()
    ids: bytes = b""
    unasked: str = ""
    script: str = ""


def alone(case: Case) -> tuple[Case, ...]:
    """Return the case as its only arrangement."""
    return (case,)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A conversation that several processes of one backend hold, each for itself.

    Attributes:
        processes: case -> how many; their run seeds differ.
        together: (case, what each of them showed) -> what they show together.

    """

    processes: Callable[[Case], int]
    together: Callable[[Case, tuple[Asked, ...]], Asked]


@dataclass(frozen=True, slots=True)
class Check:
    """What is asked of a backend about some clauses, and how the answer is judged.

    Attributes:
        name: unique, as shown by `refsampler explain`.
        clauses: that its cases speak about.
        kind: how it decides.
        cases: (capabilities, run seed) -> cases; the same arguments give the same cases.
        judge: what a trial shows beyond what is judged of every case (`checks.rows`).
        arrange: case -> its arrangements, the case first.
        profiles: in which it runs.
        ask: holds the whole conversation in place of sampling the arrangements, and judges it.
        beside: if not None, several fresh processes of the backend hold that conversation.
        seconds: that the native sampler takes for such a conversation, where it draws many more ids
            than the batch has rows; 0 if the batch says what it costs.

    """

    name: str
    clauses: tuple[ClauseId, ...]
    kind: Kind
    cases: Callable[[Capabilities, int], Iterable[Case]]
    judge: Callable[[Trial], tuple[Finding, ...]] | None = None
    arrange: Callable[[Case], tuple[Case, ...]] = alone
    profiles: tuple[str, ...] = ("quick", "full")
    ask: Callable[[OpenSubject, Case], Asked] | None = None
    beside: SideBySide | None = None
    seconds: float = 0.0


def clause_ids(*names: str) -> tuple[ClauseId, ...]:
    """Return names as clause ids."""
    return tuple(ClauseId(name) for name in names)

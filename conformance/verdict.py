"""Verdicts: what was decided about a clause, how surely, and how to see it again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from refsampler.clauses import ClauseId

__all__ = ["Certainty", "Exact", "ExitCode", "LogE", "Power", "Status", "Unplanned", "Verdict"]


class Status(StrEnum):
    """Outcome of a clause; only PASS and FAIL speak about the backend's behaviour."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INHERITED = "inherited"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not_run"
    ERROR = "error"


class ExitCode:
    """What the command line says to a CI job."""

    CONFORMS = 0
    DOES_NOT = 1
    USAGE = 2
    INCONCLUSIVE = 3
    HARNESS = 4
    NOTHING_RAN = 5


@dataclass(frozen=True, slots=True)
class Exact:
    """Decided by an exact comparison.

    Attributes:
        false_alarm: summed probability that a right backend fails it; 0 where no draw is involved.

    """

    false_alarm: float = 0.0
    kind: Literal["exact"] = "exact"


@dataclass(frozen=True, slots=True)
class LogE:
    """Decided by an e-value: P(e >= 1/alpha) <= alpha if the clause is obeyed.

    Attributes:
        log_e: natural log of the largest e-value reached.
        log_threshold: natural log of 1/alpha, where FAIL latches.

    """

    log_e: float
    log_threshold: float
    kind: Literal["log_e"] = "log_e"


Certainty = Exact | LogE


@dataclass(frozen=True, slots=True)
class Power:
    """A bias that would have been seen.

    Attributes:
        bias: in words, with its size.
        probability: that the run reports it, at least.

    """

    bias: str
    probability: float


@dataclass(frozen=True, slots=True)
class Unplanned:
    """What the profile's time or the machine does not allow.

    Attributes:
        clause: that it would have spoken about.
        words: what, and what it would have cost.

    """

    clause: ClauseId
    words: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One clause decided.

    Attributes:
        clause: id in the contract.
        status: what was found.
        expected: what the expectations file says, None without an entry.
        case: the smallest failing case, None if none failed.
        certainty: how the decision was made.
        effect: expected and seen, in words with units.
        draws: ids that went into the decision.
        would_see: what the check would have reported.
        seconds: spent on it.
        replay: command that shows the failing case again; empty without one.

    """

    clause: ClauseId
    status: Status
    expected: Status | None
    case: str | None
    certainty: Certainty
    effect: str
    draws: int
    would_see: tuple[Power, ...]
    seconds: float
    replay: str

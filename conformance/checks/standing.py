"""Standing: whether a clause can be credited to a backend, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass

from refsampler.backends.protocol import Capabilities, Feature, Fold
from refsampler.clauses import Clause, ClauseId, load
from refsampler.conformance.verdict import Status

__all__ = ["Standing", "owned_clauses", "standing"]

_FOLDED = {"temperature.scale": Fold.TEMPERATURE, "min-p.keep": Fold.MIN_P}
"""Clauses of level 2 that a kernel takes over by declaring a fold."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a clause stands before anything ran.

    Attributes:
        status: None if the backend owns the clause.
        reason: why it does not.

    """

    status: Status | None
    reason: str = ""


def standing(clause: Clause, capabilities: Capabilities) -> Standing:
    """Say whether the backend can be credited with the clause.

    What a level-1 kernel gets from the reference pipeline is INHERITED: the steps before the
    filters, and greedy rows unless it folds them.
    """
    level = capabilities.level
    if level == 1 and clause.id in _FOLDED:
        if _FOLDED[clause.id] in capabilities.folds:
            return Standing(None)
        return Standing(Status.INHERITED, "the reference pipeline does this step")
    if clause.owner > level:
        return Standing(Status.INHERITED, f"belongs to level {clause.owner}, the backend is {level}")
    if clause.capability == "greedy":
        if level > 1 or Fold.GREEDY in capabilities.folds:
            return Standing(None)
        return Standing(Status.INHERITED, "the reference pipeline takes the argmax")
    if clause.capability and Feature(clause.capability) not in capabilities.features:
        return Standing(Status.UNSUPPORTED, f"the backend does not declare {clause.capability}")
    if clause.needs:
        return Standing(Status.NOT_RUN, f"needs {clause.needs}")
    return Standing(None)


def owned_clauses(capabilities: Capabilities) -> frozenset[ClauseId]:
    """Return the clauses that the backend can break."""
    return frozenset(
        clause.id for clause in load().clauses if standing(clause, capabilities).status is None
    )

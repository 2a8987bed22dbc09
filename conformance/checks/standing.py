"""Standing: whether a clause can be credited to a backend, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass

from refsampler.backends.protocol import Capabilities, Feature, Fold
from refsampler.clauses import Clause, ClauseId, load
from refsampler.conformance.memory import memory_short
from refsampler.conformance.verdict import Status

__all__ = ["Standing", "missing", "owned_clauses", "standing"]

_FOLDED = {
    "temperature.scale": Fold.TEMPERATURE,
    "min-p.keep": Fold.MIN_P,
    "greedy.mixed": Fold.GREEDY,
    "greedy.threshold": Fold.GREEDY,
}
"""Clauses of level 2 that a kernel takes over by declaring a fold."""

_OF_METADATA = frozenset({"batch.flags", "mask.width"})
"""Clauses of level 2 about tensors that no request can express."""


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
    inherited = _inherited(clause, capabilities)
    if inherited:
        return Standing(Status.INHERITED, inherited)
    needed = clause.capability
    if needed and Feature(needed) not in capabilities.features:
        return Standing(Status.UNSUPPORTED, f"the backend does not declare {needed}")
    if capabilities.level == 3 and clause.id in _OF_METADATA:
        return Standing(Status.NOT_RUN, "an engine is given requests, never metadata")
    lacking = missing(clause.needs, capabilities.device)
    if lacking:
        return Standing(Status.NOT_RUN, f"needs {clause.needs}: {lacking}")
    return Standing(None)


def missing(needs: str, device: str = "cpu") -> str:
    """Say why what a clause needs is not here; empty if it is."""
    if needs == "large-memory":
        return memory_short(device)
    return "not available yet" if needs else ""


def _inherited(clause: Clause, capabilities: Capabilities) -> str:
    """Return who does the step in the backend's place, empty if it does it itself."""
    level = capabilities.credited
    if level == 1 and clause.id in _FOLDED:
        return "" if _FOLDED[clause.id] in capabilities.folds else "the pipeline does this step"
    if clause.owner > level:
        return f"belongs to level {clause.owner}, the backend is {level}"
    if clause.group == "greedy" and level == 1 and Fold.GREEDY not in capabilities.folds:
        return "the pipeline takes the argmax"
    return ""


def owned_clauses(capabilities: Capabilities) -> frozenset[ClauseId]:
    """Return the clauses that the backend can break."""
    return frozenset(
        clause.id for clause in load().clauses if standing(clause, capabilities).status is None
    )

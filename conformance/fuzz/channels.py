"""Channels: what is fuzzed of a backend of some level, by which strategy, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hypothesis.strategies import SearchStrategy

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check
from refsampler.conformance.checks.generated import legal_features
from refsampler.conformance.fuzz.batches import sketches
from refsampler.conformance.fuzz.oracles import CLAUSES, FUZZED

__all__ = ["CHECKS", "Channel", "channels_of"]

CHECKS: Final = (FUZZED,)
"""Judges of fuzzed cases, which `refsampler replay` finds by name; `check` plans none of them."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of cases.

    Attributes:
        name: as progress shows it.
        check: that judges them.
        cases: capabilities -> strategy; None if it has nothing to ask such a backend.
        share: how often it is chosen, relative to the others.

    """

    name: str
    check: Check
    cases: Callable[[Capabilities], SearchStrategy[Case] | None]
    share: float


def _batches(capabilities: Capabilities) -> SearchStrategy[Case]:
    legal = legal_features(capabilities)
    drawn = sketches(features=legal, dtypes=sorted(capabilities.dtypes))
    return drawn.map(lambda sketch: sketch.case(*CLAUSES))


_CHANNELS: Final = (Channel("batches", FUZZED, _batches, 10.0),)


def channels_of(
    capabilities: Capabilities,
) -> tuple[tuple[Channel, SearchStrategy[Case]], ...]:
    """Return what can be asked of a backend, each with its strategy."""
    made = ((one, one.cases(capabilities)) for one in _CHANNELS)
    return tuple((one, cases) for one, cases in made if cases is not None)

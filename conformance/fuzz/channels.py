"""Channels: what is fuzzed of a backend of some level, by which strategy, and how often.

Batches have a judge of their own.  Lifecycles, drafts and what no batch can ask are judged by checks of
the suite, which is given cases that nobody designed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks import (
    admission,
    ends,
    metadata,
    modes,
    seeds,
    sessions,
    speculative,
)
from refsampler.conformance.checks.base import Check
from refsampler.conformance.checks.generated import legal_features
from refsampler.conformance.fuzz import drafted, lifecycles, oddities
from refsampler.conformance.fuzz.asks import asks_of
from refsampler.conformance.fuzz.batches import sketch_of
from refsampler.conformance.fuzz.oracles import CLAUSES, FUZZED
from refsampler.conformance.fuzz.sketch import MODES

__all__ = ["CHANNELS", "CHECKS", "Channel", "channels_of"]

CHECKS: Final = (FUZZED,)
"""Judges of fuzzed cases, which `refsampler replay` finds by name; `check` plans none of them."""

_SEEDS: Final = st.integers(0, 2**32 - 1)
_Cases = SearchStrategy[Case] | None


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of cases.

    Attributes:
        name: as progress shows it.
        check: that judges them.
        cases: capabilities -> strategy; None if it has nothing to ask such a backend.
        share: of the cases, relative to the others.
        chunk: cases that are drawn in one go; the first of each is its simplest.

    """

    name: str
    check: Check
    cases: Callable[[Capabilities], _Cases]
    share: float
    chunk: int = 16


def _batches(capabilities: Capabilities) -> _Cases:
    # an engine admits every row as a request of its own, which takes longer than drawing it
    modes_ = tuple(one for one in MODES if one != "copies" or capabilities.level < 3)
    legal = legal_features(capabilities)
    dtypes = sorted(capabilities.dtypes)
    return _SEEDS.map(
        lambda seed: sketch_of(seed, features=legal, dtypes=dtypes, modes=modes_).case(*CLAUSES)
    )


def _lifecycles(capabilities: Capabilities) -> _Cases:
    if capabilities.level != 3:
        return None
    return _SEEDS.map(partial(lifecycles.lifecycle, asks=asks_of(capabilities.features)))


def _newcomers(capabilities: Capabilities) -> _Cases:
    if capabilities.level != 3:
        return None
    return _SEEDS.map(partial(oddities.newcomers, asks=asks_of(capabilities.features)))


def _drafted(capabilities: Capabilities) -> _Cases:
    if Feature.SPECULATIVE not in capabilities.features:
        return None
    return _SEEDS.map(partial(drafted.drafted, asks=asks_of(capabilities.features)))


def _refused(capabilities: Capabilities) -> _Cases:
    speculative_ = Feature.SPECULATIVE in capabilities.features
    return _SEEDS.map(drafted.refused) if speculative_ else None


def _modes(capabilities: Capabilities) -> _Cases:
    if capabilities.level != 2 or Feature.LOGPROBS not in capabilities.features:
        return None
    return _SEEDS.map(partial(oddities.moded, asks=asks_of(capabilities.features)))


def _ends(capabilities: Capabilities) -> _Cases:
    handed = capabilities.level < 3 and Feature.SEED in capabilities.features
    return _SEEDS.map(oddities.ends) if handed and capabilities.device == "cpu" else None


def _flat_seeds(capabilities: Capabilities) -> _Cases:
    return _SEEDS.map(oddities.flat_seeds) if Feature.SEED in capabilities.features else None


def _widths(capabilities: Capabilities) -> _Cases:
    masks = capabilities.level == 2 and Feature.MASKS in capabilities.features
    return _SEEDS.map(oddities.widths) if masks else None


def _precise(capabilities: Capabilities) -> _Cases:
    return _SEEDS.map(oddities.precise) if capabilities.level == 2 else None


def _named(checks: tuple[Check, ...], name: str) -> Check:
    return next(one for one in checks if one.name == name)


CHANNELS: Final = (
    Channel("lifecycles", _named(sessions.CHECKS, "session-operations"), _lifecycles, 20.0),
    Channel("batches", FUZZED, _batches, 20.0, 32),
    Channel("drafts", _named(speculative.CHECKS, "draft-positions"), _drafted, 10.0),
    Channel("modes", _named(modes.CHECKS, "logprobs-modes"), _modes, 4.0, 8),
    Channel("noise ends", _named(ends.CHECKS, "noise-ends-given"), _ends, 2.0, 8),
    Channel("seeds", _named(seeds.CHECKS, "seeds-differ"), _flat_seeds, 0.5, 3),
    Channel("newcomers", _named(admission.CHECKS, "bad-requests"), _newcomers, 0.5, 3),
    Channel("widths", _named(metadata.CHECKS, "mask-widths"), _widths, 0.5, 4),
    Channel("float64", _named(metadata.CHECKS, "double-logits"), _precise, 0.5, 4),
    Channel("refusals", _named(speculative.CHECKS, "refused-beside-drafts"), _refused, 0.5, 4),
)


def channels_of(
    capabilities: Capabilities,
) -> tuple[tuple[Channel, SearchStrategy[Case]], ...]:
    """Return what can be asked of a backend, each with its strategy."""
    made = ((one, one.cases(capabilities)) for one in CHANNELS)
    return tuple((one, cases) for one, cases in made if cases is not None)

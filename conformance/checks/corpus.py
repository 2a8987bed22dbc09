"""The regression corpus as checks: each of its cases is judged as it was when it was found.

What is nearly certain is charged like any other case of the suite, draw by draw at e^-35; batches are
judged beyond 50 nats, which leaves room for their other arrangements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check
from refsampler.conformance.checks.generated import legal_features
from refsampler.conformance.corpus import Entry, entries
from refsampler.conformance.fuzz.asks import NEEDS
from refsampler.conformance.fuzz.channels import CHANNELS, Channel
from refsampler.conformance.fuzz.sketch import features_in

__all__ = ["CHECKS"]


def _cases(
    channel: Channel, of_it: tuple[Entry, ...], capabilities: Capabilities, _run_seed: int
) -> Iterator[Case]:
    """Yield the cases that are legal for the backend."""
    if channel.cases(capabilities) is None:
        return
    legal = legal_features(capabilities)
    for entry in of_it:
        case = entry.read
        asked = {name for request in case.requests for name in features_in(request)}
        needed = {NEEDS[name] for name in asked if name in NEEDS}
        if needed <= legal and case.dtype in capabilities.dtypes:
            yield case


def _checks() -> Iterator[Check]:
    """Yield one check for each that judges cases of the corpus."""
    for channel in CHANNELS:
        of_it = tuple(one for one in entries() if one.check == channel.check.name)
        if of_it:
            yield replace(
                channel.check,
                name=f"corpus-{channel.name.replace(' ', '-')}",
                clauses=tuple(dict.fromkeys(ClauseId(one.clause) for one in of_it)),
                cases=partial(_cases, channel, of_it),
                profiles=("quick", "full"),
            )


CHECKS: tuple[Check, ...] = tuple(_checks())
"""In front of all others: what was once found costs little to ask."""

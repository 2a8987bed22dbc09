"""Noise of choice: rows whose generators give chosen words, so that rare noise comes at once.

For backends on the CPU that draw from the generators they are handed.  An id of probability 0 must not
be drawn from any noise, so a right backend shows none whatever the words are: nothing is charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from jaxtyping import UInt32

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Finding
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.noise import generator_giving
from refsampler.conformance.subject import OpenSubject
from refsampler.metadata import SamplingMetadata

__all__ = ["ask_given", "takes_given"]

_CLAUSE: Final = ClauseId("draw.support")


def takes_given(capabilities: Capabilities) -> bool:
    """Return whether the backend draws from generators that can be made to give chosen words."""
    seeded = capabilities.level < 3 and Feature.SEED in capabilities.features
    return seeded and capabilities.device == "cpu"


def ask_given(
    subject: OpenSubject, case: Case, words: Sequence[UInt32[np.ndarray, " n"]], noise: str
) -> Asked:
    """Hand every row a generator that gives its words first, and look for dead ids.

    What ordinary noise gives too is another clause's.

    Args:
        subject: whose backend takes them.
        case: of seeded rows.
        words: of each row, at most `MOST_WORDS`.
        noise: what they are, as a finding says it.

    """
    rows = len(case.requests)
    metadata = SamplingMetadata.from_requests(case.requests, case.logits.vocab)
    generators = {}
    for place, each in enumerate(words):
        try:
            generators[place] = generator_giving(each, place)
        except ValueError as error:
            return Asked(unasked=str(error))
    laws = Expected.of(case, subject.capabilities.semantics)

    def dead(given: SamplingMetadata) -> dict[int, int]:
        """Return row -> the id that its law excludes."""
        ids = subject.sample_prepared(case.build_logits(), given, subject.run_seed).ids
        return {
            place: int(token)
            for place, token in enumerate(ids)
            if 0 <= token < case.logits.vocab and not laws.row(place).allowed[token]
        }

    usual = dead(metadata)
    found = {
        place: token
        for place, token in dead(replace(metadata, generators=generators)).items()
        if place not in usual
    }
    if not found:
        return Asked((), 2 * rows)
    place, token = next(iter(found.items()))
    expected = f"an id of the support, as {np.flatnonzero(laws.row(place).allowed)[0]}"
    seen = f"id {token} from {noise}, and none from ordinary noise"
    return Asked((Finding(_CLAUSE, expected, seen, row=place),), 2 * rows)

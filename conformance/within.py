"""Within: whether a backend takes as many logits in one call as a case hands over."""

from __future__ import annotations

import math

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case

__all__ = ["within"]


def within(case: Case, capabilities: Capabilities) -> bool:
    """Whether no call of the case has more logits than the backend declares to take."""
    rows = max((len(step.ids) for step in case.steps), default=len(case.requests))
    return rows * case.logits.vocab <= (capabilities.max_elements or math.inf)

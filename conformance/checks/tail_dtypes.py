"""The tail of half-precision logits: the noise must not be as coarse as they are."""

from __future__ import annotations

from typing import Final

from refsampler.backends.protocol import Capabilities, DType
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.checks.tail import TAIL, prepare_tail
from refsampler.conformance.designed.tails import tail_case
from refsampler.conformance.evidence.grades import GRADES
from refsampler.conformance.evidence.tail import BAND
from refsampler.conformance.subject import OpenSubject

__all__ = ["CHECKS"]

_DRAWS: Final = 5120
"""Of the coarsest grade: about fifty fall into the tail, none with probability below e^-40."""


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return the coarsest grade in each dtype but float32; a kernel gets float32 in any case."""
    if capabilities.level == 1:
        return ()
    dtypes = sorted(capabilities.dtypes - {DType.FLOAT32})
    return tuple(tail_case(max(GRADES), dtype) for dtype in dtypes)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Count the draws that fall into the tail: none if the noise has few levels."""
    tail = prepare_tail(case, subject.capabilities)
    ids = subject.sample_many(case, _DRAWS, 0)
    inside = ids[(ids >= 0) & (ids < len(tail.tail))]
    if tail.tail[inside].any():
        return Asked((), _DRAWS)
    expected = (
        f"about {_DRAWS * tail.mass:.0f} of {_DRAWS} draws in the tail of {case.dtype} logits"
    )
    charge = (1 - tail.mass * (1 - BAND)) ** _DRAWS
    return Asked((Finding(TAIL, expected, "none", charge),), _DRAWS)


CHECKS: tuple[Check, ...] = (
    Check("tails-of-dtypes", (TAIL,), Kind.NEAR_CERTAIN, _cases, ask=_ask),
)

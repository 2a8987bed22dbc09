"""Steps drawn thousands of times: the laws whose emitted ids are tested jointly."""

from __future__ import annotations

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import masses, request, row
from refsampler.conformance.designed.drafted import Drafted, steps_case

__all__ = ["PENALTY", "certain_case", "draft_case", "own_case", "uneven_case"]

PENALTY = 1.0
"""What an id that was put out falls by, in nats: the second position depends on the first."""

_TARGET = masses({0: 0.1, 1: 0.45, 2: 0.45})
_DRAFT = masses({0: 0.7, 1: 0.25, 2: 0.05})


def own_case(*clauses: str, calls: int, penalties: bool = True) -> Case:
    """Return one draft and a bonus; what q leaves of p is proportional to neither."""
    asked = request(presence_penalty=PENALTY) if penalties else request()
    other = masses({0: 0.5, 1: 0.125, 2: 0.375})
    part = Drafted(asked, (0,), (_TARGET, other), (_DRAFT,))
    return steps_case(3, [part], *clauses, calls=calls)


def uneven_case(*clauses: str, calls: int) -> Case:
    """Return two drafts, of which a request may have the first few: filters, a temperature, four ids.

    Top-k takes the last id away, which the drafts propose.
    """
    first = masses({0: 0.3, 1: 0.1, 2: 0.4, 3: 0.2})
    second = masses({0: 0.2, 1: 0.35, 2: 0.1, 3: 0.35})
    last = masses({0: 0.25, 1: 0.25, 2: 0.4, 3: 0.1})
    laws = (masses({0: 0.1, 1: 0.5, 2: 0.15, 3: 0.25}), masses({0: 0.6, 1: 0.1, 2: 0.3}))
    part = Drafted(request(temperature=0.75, top_k=3), (0, 0), (first, second, last), laws)
    return steps_case(4, [part], *clauses, calls=calls)


def certain_case(*clauses: str, calls: int) -> Case:
    """Return two drafts without laws, as from a table of n-grams.

    The second is accepted more often than the first: with one uniform for both always.
    """
    first = masses({0: 0.1, 1: 0.3, 2: 0.4, 3: 0.2})
    second = masses({0: 0.25, 2: 0.5, 3: 0.25})
    part = Drafted(request(), (1, 2), (first, second, masses({0: 0.5, 3: 0.5})))
    return steps_case(4, [part], *clauses, calls=calls)


def draft_case(*clauses: str, calls: int) -> Case:
    """Return a row that drafts are drawn from behind a filter and a temperature.

    In bfloat16, whose numbers are half a nat apart there, both ids that stay are equal.
    """
    draft = row({0: 99.0, 1: 100.24, 2: 100.0, 3: 98.0})
    part = Drafted(request(temperature=0.75, top_k=2), (1,), (draft, draft), (draft,))
    return steps_case(4, [part], *clauses, calls=calls)

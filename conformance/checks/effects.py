"""Effects: a parameter that must change the id does, also after a call of that shape without it."""

from __future__ import annotations

from typing import Any

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.checks.batches import reordered
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.subject import OpenSubject

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("effect.parameters")
_BEST, _NEXT = 11, 4
_ROWS = 5
_VOCAB = 13

_ASKED: tuple[tuple[Feature, dict[str, Any]], ...] = (
    (Feature.PENALTIES, {"repetition_penalty": 2.0}),
    (Feature.PENALTIES, {"frequency_penalty": 2.0}),
    (Feature.PENALTIES, {"presence_penalty": 2.0}),
    (Feature.MASKS, {"allowed_token_ids": (_NEXT, 5)}),
    (Feature.MASKS, {"bad_words_token_ids": ((_BEST,),)}),
    (Feature.MASKS, {"logit_bias": ((_BEST, -2.0),)}),
    (Feature.MASKS, {"min_tokens": 3, "stop_token_ids": (_BEST,)}),
)
"""Each takes the best id, 4 against 3, from its place, in numbers that are exact."""


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return greedy rows without the parameter, then as many with it."""
    if capabilities.level == 1:
        return ()
    recipe = row({_BEST: 4.0, _NEXT: 3.0}, base=-8.0)
    without = request(temperature=0.0, output=(_BEST,))
    return tuple(
        batch(
            _VOCAB,
            [
                *[(recipe, without)] * _ROWS,
                *[(recipe, request(temperature=0.0, output=(_BEST,), **params))] * _ROWS,
            ],
            _CLAUSE,
        )
        for feature, params in _ASKED
        if feature in capabilities.features
    )


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Sample the rows without the parameter, then those with it: the ids must differ."""
    halves = (list(range(_ROWS)), list(range(_ROWS, 2 * _ROWS)))
    before, after = (
        subject.sample(reordered(case, rows), call, case.id).ids for call, rows in enumerate(halves)
    )
    if not len(before) == len(after) == _ROWS:
        return Asked((), 2 * _ROWS)
    same = (before == _BEST) & (after == _BEST)
    if not same.any():
        return Asked((), 2 * _ROWS)
    expected = f"id {_NEXT} where the parameter is set"
    seen = f"id {_BEST} in {int(same.sum())} of {_ROWS} rows, as in the call before without it"
    found = Finding(_CLAUSE, expected, seen, row=_ROWS + int(same.argmax()))
    return Asked((found,), 2 * _ROWS)


CHECKS: tuple[Check, ...] = (Check("effects-after-none", (_CLAUSE,), Kind.EXACT, _cases, ask=_ask),)

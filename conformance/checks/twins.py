"""Twins: what gives no id at all is asked beside a tame twin, and its own clause is named as well.

A crash or garbage in place of an id breaks `output.returns` or `output.range`, and says no more: it
may come on any input.  Where it comes on every call of a case and on no call of its twin, which
differs from it only in what the case was made for, that is what the sampler does not honour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import comb
from typing import Final

import numpy as np

from refsampler.backends.process import SubjectEnded
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Finding, clause_ids
from refsampler.conformance.logits import RowRecipe
from refsampler.conformance.subject import Draw, SubjectError
from refsampler.params import SamplingParams

__all__ = ["CHARGE", "TRAITS", "of_its_own", "tame"]

_GREEDY: Final = ClauseId("greedy.argmax")
TRAITS: Final = (
    *clause_ids("input.extreme", "temperature.scale", "top-k.off", "top-p.off"),
    _GREEDY,
)
"""Clauses whose cases have a twin."""

_PAIRS: Final = 24
CHARGE: Final = 1 / comb(2 * _PAIRS, _PAIRS)
"""Of garbage that does not depend on the input, asked by turns: 3e-14, charged where it comes only."""

_LARGEST: Final = 8.0
_NO_ID: Final = clause_ids("output.returns", "output.range")


def tame(case: Case) -> Case:
    """Return the case with ordinary numbers.

    Logits within 8 of 0, p = 1 in place of nearly 1, no temperature below 1/2, biases and penalties of
    a usual size, and k no larger than V + 1; than V, where it is k that is asked about.
    """
    largest_k = case.logits.vocab + (case.clauses[:1] != ("top-k.off",))
    rows = replace(case.logits, rows=tuple(_clipped(one) for one in case.logits.rows))
    asked = tuple(replace(one, params=_usual(one.params, largest_k)) for one in case.requests)
    return replace(case, logits=rows, requests=asked)


def _clipped(recipe: RowRecipe) -> RowRecipe:
    values = np.array([recipe.base, *recipe.values])
    kept = np.where(np.isfinite(values), values.clip(-_LARGEST, _LARGEST), values).tolist()
    return replace(recipe, base=kept[0], values=tuple(kept[1:]), scale=min(recipe.scale, 1.0))


def _greedy_off(case: Case) -> Case:
    """Return the case with random rows in place of its greedy ones, and nothing else new."""
    asked = (
        replace(one, params=replace(one.params, temperature=1.0)) if one.params.greedy else one
        for one in case.requests
    )
    return replace(case, requests=tuple(asked))


def _usual(params: SamplingParams, largest_k: int) -> SamplingParams:
    bias = tuple(
        (token, min(max(value, -_LARGEST), _LARGEST)) for token, value in params.logit_bias
    )
    return replace(
        params,
        temperature=params.temperature and max(params.temperature, 0.5),
        top_k=min(params.top_k, largest_k),
        top_p=1.0 if params.top_p > 1 - 2.0**-20 else params.top_p,
        repetition_penalty=min(max(params.repetition_penalty, 0.5), 2.0),
        logit_bias=bias,
    )


def of_its_own(
    case: Case,
    found: tuple[Finding, ...],
    sample: Callable[[Case, int], Draw],
    owned: frozenset[ClauseId],
) -> tuple[Finding, ...]:
    """Return a finding of the clause that a case was made for, if only it gives no id.

    Args:
        case: that gave none.
        found: what it showed.
        sample: draws a call of a case.
        owned: clauses that the subject is judged by.

    """
    clause = next((one for one in case.clauses if one in TRAITS and one in owned), None)
    wrong = next((one for one in found if one.clause in _NO_ID), None)
    if wrong is None or clause is None:
        return ()
    twin = _greedy_off(case) if clause == _GREEDY else tame(case)
    if twin == case:
        return ()
    for call in range(_PAIRS):
        here, there = (_without_id(one, call, sample) for one in (case, twin))
        if here is not True or there is not False:
            return ()
    twin_words = "random rows" if clause == _GREEDY else "ordinary numbers"
    seen = f"{wrong.seen} in {_PAIRS} calls of {_PAIRS}, in none with {twin_words}"
    return (Finding(clause, f"an id, as with {twin_words}", seen, CHARGE),)


def _without_id(case: Case, call: int, sample: Callable[[Case, int], Draw]) -> bool | None:
    """Whether a call gives no id; None if the process ended, which would take too long to repeat."""
    try:
        ids = sample(case, call).ids
    except SubjectEnded:
        return None
    except SubjectError:
        return True
    inside = (ids >= 0) & (ids < case.logits.vocab)
    return len(ids) != len(case.requests) or not bool(inside.all())

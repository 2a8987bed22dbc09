"""Refusals: what is not declared, or not honoured together, is refused by name or still right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.attribution import Seen
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.checks.batches import reordered
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.designed.build import Row, batch, flat, request, row
from refsampler.conformance.subject import Draw, OpenSubject, SubjectError
from refsampler.request import Request

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("refuse.unsupported")
_ORDER = ClauseId("order.pipeline")
_V = 4096
_LOW = -2000.0


@dataclass(frozen=True, slots=True)
class _Ask:
    """A parameter that must have an effect.

    Attributes:
        feature: under which a backend declares it.
        params: that ask for it; together they leave id 5 of the ids 11, 0 and 5.
        names: by which a refusal names it.

    """

    feature: Feature
    params: dict[str, Any]
    names: tuple[str, ...]


_BEST = row({11: 200.0, 0: 150.0, 5: 100.0}, base=_LOW)
_ASKS = (
    _Ask(Feature.MASKS, {"allowed_token_ids": (0, 5)}, ("allow", "mask")),
    _Ask(Feature.MASKS, {"bad_words_token_ids": ((11,),)}, ("bad_word", "bad word", "mask")),
    _Ask(Feature.MASKS, {"logit_bias": ((11, -300.0),)}, ("bias",)),
    _Ask(Feature.MASKS, {"min_tokens": 3, "stop_token_ids": (11,)}, ("min_tokens", "stop")),
    _Ask(Feature.PENALTIES, {"repetition_penalty": 4.0}, ("repetition", "penalt")),
    _Ask(Feature.PENALTIES, {"frequency_penalty": 2.0}, ("frequency", "penalt")),
    _Ask(Feature.LOGPROBS, {"logprobs": 2}, ("logprob",)),
    _Ask(Feature.LOGPROBS, {"logprob_token_ids": (7,)}, ("logprob",)),
    _Ask(Feature.SEED, {"seed": 71}, ("seed", "generator")),
)
_SEEDED_ROWS = 8
_FILTERS: tuple[dict[str, Any], ...] = ({"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05})
"""Which every backend has to honour, whatever else is asked for."""


def _rows(*asked: _Ask) -> list[Row]:
    """Return a greedy and a random row that ask for this, and flat rows if that is a seed."""
    params = {name: value for one in asked for name, value in one.params.items()}
    seed = params.pop("seed", None)
    # 60 ids of the best: the frequency penalty takes 120 off, the repetition three quarters
    history = {"output": (11,) * 60} if "frequency_penalty" in params else {"prompt": (11,)}
    more: dict[str, Any] = {} if seed is None else {"seed": seed}
    rows = [
        (_BEST, request(**history, **params, **more)),
        (_BEST, request(**history, **(params | {"temperature": 0.0}))),
    ]
    if seed is None:
        return rows
    fresh: list[Row] = [(flat(), request())] * _SEEDED_ROWS
    seeded = [(flat(), request(seed=seed + place, **params)) for place in range(_SEEDED_ROWS)]
    return [*rows, *(one for pair in zip(seeded, fresh, strict=True) for one in pair)]


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return every parameter that is not declared, and all pairs of those that are."""
    if capabilities.level == 1:
        return ()
    features = capabilities.features
    alone = [batch(_V, _rows(one), _CLAUSE) for one in _ASKS if one.feature not in features]
    declared = [one for one in _ASKS if one.feature in features]
    pairs = [
        batch(_V, _rows(one, other), _CLAUSE)
        for one, other in combinations(declared, 2)
        if not (one.feature is other.feature is Feature.LOGPROBS)
    ]
    filtered = [
        batch(_V, [(recipe, _with(asked, **kind)) for recipe, asked in _rows(one)], _CLAUSE)
        for one in declared
        for kind in _FILTERS
    ]
    return (*alone, *pairs, *filtered)


def _with(asked: Request, **fields: Any) -> Request:
    return replace(asked, params=replace(asked.params, **fields))


def _filter_of(case: Case) -> dict[str, Any]:
    """Return the filter that every row asks for; empty if there is none."""
    params = case.requests[0].params
    return next(
        (kind for kind in _FILTERS if all(getattr(params, name) == kind[name] for name in kind)), {}
    )


def _apart(case: Case, kind: dict[str, Any]) -> tuple[Case, Case]:
    """Return the case without its filter, and its rows with nothing but the filter."""
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    bare = tuple(_with(one, **{name: off[name] for name in kind}) for one in case.requests)
    only = tuple(
        request(temperature=one.params.temperature, **kind, prompt=one.prompt, output=one.output)
        for one in case.requests
    )
    return replace(case, requests=bare), replace(case, requests=only)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Take an error that names a parameter, or results that honour all of them.

    A pair counts only if each of the two is honoured without the other.
    """
    asked = [one for one in _ASKS if _in(case, one)]
    draws = 2 * len(case.requests)
    kind = _filter_of(case)
    wrong = _wrong(subject, case, asked)
    if not wrong:
        return Asked((), draws)
    if kind and any(_wrong(subject, one, asked) for one in _apart(case, kind)):
        return Asked((), draws)
    for one in asked if len(asked) > 1 else ():
        # in a batch of the same size, so that only the other parameter is missing
        fill: list[Row] = [(flat(), request())] * (len(case.requests) - len(_rows(one)))
        single = batch(_V, [*_rows(one), *fill], _CLAUSE)
        if _wrong(subject, single, [one]):
            return Asked((), draws)
    names = " with ".join([*("/".join(one.params) for one in asked), *kind])
    expected = f"{names} honoured, or an error that names one of them"
    # a step in a wrong place loses another one's work
    return Asked((Finding(_CLAUSE, expected, wrong, unless=_ORDER),), draws)


def _in(case: Case, asked: _Ask) -> bool:
    """Whether the case asks for this."""
    first = case.requests[0].params
    if "seed" in asked.params:
        return first.seed is not None
    return all(getattr(first, name) == value for name, value in asked.params.items())


def _wrong(subject: OpenSubject, case: Case, asked: list[_Ask]) -> str:
    """Say how the parameters were not honoured; empty if they were, or were refused by name."""
    names = tuple(name for one in asked for name in one.names)
    try:
        draw = subject.sample(case, 0, case.id)
        again = subject.sample(case, 1, f"{case.id}/again")
    except SubjectError as error:
        return "" if any(name in str(error).lower() for name in names) else str(error)
    tests: tuple[Callable[[OpenSubject, Case, Draw, Draw], str], ...] = (
        _outside,
        _not_again,
        _silent,
    )
    return next((words for test in tests if (words := test(subject, case, draw, again))), "")


def _outside(subject: OpenSubject, case: Case, draw: Draw, _again: Draw) -> str:
    """Look for an id that the row's law excludes."""
    first = reordered(case, [0, 1])
    laws = Expected.of(first, subject.capabilities.semantics)
    for place, token in enumerate(draw.ids[:2]):
        inside = 0 <= token < _V
        seen = Seen(np.bincount(draw.ids[place : place + 1] % _V, minlength=_V), fresh=False)
        if not inside or not seen.fits(laws.row(place)):
            return f"id {token} in row {place}"
    return ""


def _not_again(_subject: OpenSubject, case: Case, draw: Draw, again: Draw) -> str:
    """Compare seeded rows under other default noise."""
    for place, request_ in enumerate(case.requests):
        if request_.params.seed is not None and draw.ids[place] != again.ids[place]:
            return f"id {draw.ids[place]}, then id {again.ids[place]} for one seed"
    return ""


def _silent(_subject: OpenSubject, case: Case, draw: Draw, _again: Draw) -> str:
    """Look for logprobs where rows ask for them."""
    asks = any(
        one.params.logprobs is not None or one.params.logprob_token_ids for one in case.requests
    )
    given = draw.output is not None and draw.output.logprobs_tensors is not None
    return "no logprobs" if asks and not given else ""


CHECKS: tuple[Check, ...] = (Check("refusals", (_CLAUSE,), Kind.EXACT, _cases, ask=_ask),)

"""The processors' cases again: id 0 in place of the last id, all side by side, under a grammar.

A padded history shows where id 0 or the last id is at stake in a row shorter than its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import Row, batch, request, row
from refsampler.request import PLACEHOLDER, Request

__all__ = [
    "grammar_mask_cases",
    "grammar_penalty_cases",
    "one_path",
    "ragged",
    "swapped",
    "tied_cases",
]

_LOW = -2000.0


def swapped(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return the cases with id 0 and the last id exchanged, in logits, lists and histories."""
    return tuple(_swapped(case) for case in cases)


def one_path(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return each case's greedy rows by themselves, and its random ones.

    Batches of one kind may have a path of their own, on which a parameter can be forgotten.
    """
    return tuple(_of_kind(case, greedy=greedy) for case in cases for greedy in (True, False))


def _of_kind(case: Case, *, greedy: bool) -> Case:
    rows = zip(case.logits.rows, case.requests, strict=True)
    chosen = [(recipe, asked) for recipe, asked in rows if asked.params.greedy is greedy]
    return batch(case.logits.vocab, chosen, *case.clauses)


def _swapped(case: Case) -> Case:
    last = case.logits.vocab - 1

    def other(token: int) -> int:
        return {0: last, last: 0}.get(token, token)

    def others(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(other(token) for token in tokens)

    def exchanged(asked: Request) -> Request:
        params = asked.params
        changed = replace(
            params,
            allowed_token_ids=params.allowed_token_ids and others(params.allowed_token_ids),
            bad_words_token_ids=tuple(others(word) for word in params.bad_words_token_ids),
            stop_token_ids=others(params.stop_token_ids),
            eos_token_id=None if params.eos_token_id is None else other(params.eos_token_id),
            logit_bias=tuple((other(token), bias) for token, bias in params.logit_bias),
        )
        return Request(changed, others(asked.prompt), others(asked.output))

    rows = tuple(replace(one, ids=others(one.ids)) for one in case.logits.rows)
    requests = tuple(exchanged(one) for one in case.requests)
    return replace(case, logits=replace(case.logits, rows=rows), requests=requests)


def ragged(cases: Iterable[Case], *clauses: str) -> tuple[Case, ...]:
    """Return all rows of the cases in one batch, between rows on which nothing acts, both ways.

    Long histories stand beside empty ones, and ids at both ends are at stake in each.
    """
    cases = tuple(cases)
    vocab = cases[0].logits.vocab
    found: dict[Row, None] = {}
    for case in (*cases, *swapped(cases)):
        found |= dict.fromkeys(zip(case.logits.rows, case.requests, strict=True))
    idle = _idle(vocab, masks=any("penalty" not in one for one in clauses))
    rows = [
        one
        for place, row_ in enumerate(found)
        for one in ((row_, idle[place % len(idle)]) if place % 3 == 0 else (row_,))
    ]
    return (batch(vocab, rows, *clauses), batch(vocab, rows[::-1], *clauses))


def _idle(vocab: int, *, masks: bool) -> list[Row]:
    """Return rows whose parameters are set but change nothing."""
    last = vocab - 1
    best = row({0: 150.0, last: 200.0}, base=_LOW)
    params: list[dict[str, Any]] = [{}, {"temperature": 0.0}]
    if masks:
        params += [
            {"allowed_token_ids": tuple(range(vocab))},
            {"logit_bias": ((last, 0.0), (0, 0.0))},
            {"bad_words_token_ids": ((0, 1, last),)},
            {"min_tokens": 0, "stop_token_ids": (last,)},
        ]
    histories: tuple[dict[str, Any], ...] = (
        {},
        {"output": (0, last, PLACEHOLDER)},
        {"prompt": (last,) * 50},
    )
    return [(best, request(**one, **history)) for one in params for history in histories]


def grammar_mask_cases(vocab: int) -> tuple[Case, ...]:
    """Return masks and biases on rows of which a grammar left three ids."""
    last = vocab - 1
    left = row({0: 100.0, 5: 50.0, last: 200.0})
    asks: tuple[dict[str, Any], ...] = (
        {"allowed_token_ids": (0, 1, 2, 5)},
        {"allowed_token_ids": (5, 7)},
        {"bad_words_token_ids": ((last,), (3,))},
        {"bad_words_token_ids": ((last,), (0,)), "top_k": 8},
        {"logit_bias": ((3, 900.0), (5, 200.0))},
        {"logit_bias": ((last, -math.inf), (7, 900.0)), "min_p": 0.5},
        {"min_tokens": 2, "stop_token_ids": (last, 3), "top_p": 0.9},
        {"top_k": 8, "top_p": 0.9, "min_p": 0.1},
    )
    clauses = ("mask.allowed", "mask.bad-words", "mask.min-tokens", "bias.additive")
    return (batch(vocab, _greedy_too(left, asks), *clauses),)


def grammar_penalty_cases(vocab: int) -> tuple[Case, ...]:
    """Return penalties on ids that a grammar forbade and on those it left: -inf stays -inf."""
    last = vocab - 1
    left = row({0: 100.0, 5: 50.0, last: 160.0})
    asks: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 2.0, "output": (last, 3, 3)},
        {"repetition_penalty": 0.5, "output": (3, 7), "prompt": (7,)},
        {"frequency_penalty": 2.0, "output": (last,) * 60 + (3,)},
        {"frequency_penalty": -2.0, "output": (3, 7, 7)},
        {"presence_penalty": -2.0, "output": (3,), "temperature": 2.0**-6},
        {"repetition_penalty": 2.0, "frequency_penalty": 2.0, "output": (last,) * 30},
    )
    clauses = ("penalty.repetition", "penalty.frequency", "penalty.presence")
    return (batch(vocab, _greedy_too(left, asks), *clauses),)


def tied_cases(vocab: int) -> tuple[Case, ...]:
    """Return greedy rows whose maxima tie only once the penalty has acted, exactly."""
    twice: dict[str, Any] = {"repetition_penalty": 2.0, "temperature": 0.0}
    rows = [
        (row({low: first, high: second}, base=-8.0), request(output=(seen,), **twice))
        for low, high in ((0, vocab - 1), (3, 9), (0, 1))
        for first, second, seen in ((4.0, 2.0, low), (2.0, 4.0, high), (-1.0, -2.0, low))
    ]
    return (batch(vocab, rows, "penalty.repetition", "greedy.tie"),)


def _greedy_too(recipe: Any, asks: Iterable[dict[str, Any]]) -> list[Row]:
    """Return each request drawn and greedy."""
    return [
        (recipe, request(**(ask | more))) for ask in asks for more in ({}, {"temperature": 0.0})
    ]

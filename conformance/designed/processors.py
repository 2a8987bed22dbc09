"""Masks, bias, penalties, histories and thinking: order flips whose winner leads by 40 nats.

Every row has one right id, by 40 nats or as the only id left; the mistake that a row is made for
puts another id on top.  Each row is asked greedily and at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch, request, row
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers

__all__ = ["bias_cases", "history_cases", "mask_cases", "penalty_cases", "thinking_cases"]

_V = 12
_LOW = -2000.0


def _both(values: Mapping[int, float], asked: Request, *clauses: str) -> Case:
    """Return a greedy and a random row."""
    greedy = replace(asked, params=replace(asked.params, temperature=0.0))
    recipe = row(values, base=_LOW)
    return batch(_V, [(recipe, asked), (recipe, greedy), (recipe, asked)], *clauses)


def mask_cases() -> tuple[Case, ...]:
    """Return the best id forbidden in every way, and almost forbidden."""
    allowed, words, minimum = "mask.allowed", "mask.bad-words", "mask.min-tokens"
    best = {0: 100.0, 5: 50.0, 11: 200.0}
    cases = [
        _both(best, request(allowed_token_ids=(0, 5)), allowed, "effect.parameters"),
        _both(best, request(allowed_token_ids=(11, 3)), allowed),
        _both(best, request(allowed_token_ids=(5,)), allowed),
        _both(best, request(bad_words_token_ids=((11,),)), words, "effect.parameters"),
        _both({0: 100.0, 5: 50.0}, request(bad_words_token_ids=((0,), (11,))), words),
    ]
    # (word, prompt, output): is 11, the best id, banned?
    histories = (
        (((4, 11),), (), (4,)),
        (((4, 11),), (), (7, 4)),
        (((4, 11),), (4,), ()),
        (((4, 11),), (), (4, 7)),
        (((0, 11),), (), (0,)),
        (((0, 11),), (), (7,)),
        (((3, 4, 11),), (), (3, 4)),
        (((3, 4, 11),), (), (4,)),
        (((3, 4, 11),), (3,), (4,)),
        (((3, 3, 11),), (), (5, 3, 3)),
        (((3, 4, 11),), (), (3, 4, 4)),
        (((11, 11, 11),), (), (11, 11)),
        (((4, 5), (4, 11)), (), (4,)),
    )
    cases += [
        _both(best, request(bad_words_token_ids=banned, prompt=prompt, output=output), words)
        for banned, prompt, output in histories
    ]
    for output in ((), (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)):
        stops: dict[str, Any] = {"stop_token_ids": (0,), "eos_token_id": 11, "min_tokens": 3}
        cases.append(_both(best, request(output=output, **stops), minimum, "effect.parameters"))
    cases += [
        _both(best, request(min_tokens=2, eos_token_id=11, ignore_eos=True), minimum),
        _both(best, request(min_tokens=0, eos_token_id=11, stop_token_ids=(0,)), minimum),
        _both(best, request(stop_token_ids=(11,), min_tokens=1, prompt=(1, 2, 3)), minimum),
    ]
    return tuple(cases)


def bias_cases() -> tuple[Case, ...]:
    """Return biases that decide, in their place between min tokens and penalties."""
    bias, order = "bias.additive", "order.pipeline"
    return (
        _both({0: 100.0}, request(logit_bias=((11, 2200.0),)), bias, "effect.parameters"),
        _both({0: 100.0, 5: 50.0}, request(logit_bias=((0, -math.inf),)), bias),
        _both({0: 100.0, 5: 50.0}, request(logit_bias=((0, -100.0), (5, 10.0))), bias),
        # once: 0 + 160 stays below 200, twice it would be above
        _both({0: 200.0, 11: 0.0}, request(logit_bias=((11, 160.0),)), bias),
        # no bias lifts a ban
        _both({0: 0.0, 5: 50.0}, request(allowed_token_ids=(0,), logit_bias=((5, 900.0),)), bias),
        _both(
            {0: 0.0, 5: 0.0}, request(bad_words_token_ids=((5,),), logit_bias=((5, 900.0),)), bias
        ),
        _both(
            {0: 0.0, 5: 0.0},
            request(min_tokens=2, stop_token_ids=(5,), logit_bias=((5, 900.0),)),
            bias,
        ),
        # before temperature: (0 + 320) / 2 = 160 < 200
        _both(
            {0: 400.0, 11: 0.0}, request(temperature=2.0, logit_bias=((11, 320.0),)), order, bias
        ),
        # before the penalties: (100 - 300) * 2 = -400 < -325
        _both(
            {0: -325.0, 11: 100.0},
            request(prompt=(11,), repetition_penalty=2.0, logit_bias=((11, -300.0),)),
            order,
            bias,
        ),
    )


def penalty_cases() -> tuple[Case, ...]:
    """Return the sign rule, once per id, counts, who counts, and the order of the three."""
    repetition, frequency, presence = (
        "penalty.repetition",
        "penalty.frequency",
        "penalty.presence",
    )
    effect = "effect.parameters"
    many = (11,) * 100
    twice: dict[str, Any] = {"repetition_penalty": 2.0}
    return (
        # negative logits are multiplied: -100 -> -200, below -125
        _both({0: -125.0, 11: -100.0}, request(prompt=(11,), **twice), repetition, effect),
        # positive ones are divided: 200 -> 100, below 150
        _both({0: 150.0, 11: 200.0}, request(prompt=(11,), **twice), repetition, effect),
        _both({0: 150.0, 11: 200.0}, request(output=(11,), **twice), repetition, effect),
        # each step acts once: 800 -> 400, above 300; a second time it would be 200
        _both(
            {0: 300.0, 11: 800.0},
            request(prompt=(11,), **twice),
            "order.pipeline",
            repetition,
        ),
        # 300 - 2 * 50 = 200, above 150; a second time it would be 100
        _both(
            {0: 150.0, 11: 300.0},
            request(output=many[:50], frequency_penalty=2.0),
            "order.pipeline",
            frequency,
        ),
        # once per distinct id: 400 -> 200, above 150
        _both({0: 150.0, 11: 400.0}, request(prompt=(11, 11), output=(11,), **twice), repetition),
        # below 1 it rewards: 100 -> 200
        _both({0: 150.0, 11: 100.0}, request(output=(11,), repetition_penalty=0.5), repetition),
        # 300 - 2 * 100 = 100
        _both(
            {0: 200.0, 11: 300.0}, request(output=many, frequency_penalty=2.0), frequency, effect
        ),
        _both({0: 60.0, 11: 300.0}, request(output=many, frequency_penalty=2.0), frequency),
        _both({0: 200.0, 11: 100.0}, request(output=many, frequency_penalty=-2.0), frequency),
        # the prompt does not count
        _both({0: 200.0, 11: 300.0}, request(prompt=many, frequency_penalty=2.0), frequency),
        # 1 - 2 = -1 at T = 1/64: 64 nats below
        _both(
            {0: 0.0, 11: 1.0},
            request(output=(11,), presence_penalty=2.0, temperature=2.0**-6),
            presence,
            effect,
        ),
        # once, however often: 4 - 2 = 2
        _both(
            {0: 1.0, 11: 4.0},
            request(output=(11, 11, 11), presence_penalty=2.0, temperature=2.0**-6),
            presence,
        ),
        _both(
            {0: 0.0, 11: 1.0},
            request(prompt=(11,), presence_penalty=2.0, temperature=2.0**-6),
            presence,
        ),
        # repetition first: 300 / 2 - 200 = -50 < 0
        _both(
            {0: 0.0, 11: 300.0},
            request(output=many, repetition_penalty=2.0, frequency_penalty=2.0),
            "order.pipeline",
            repetition,
            frequency,
        ),
    )


def history_cases() -> tuple[Case, ...]:
    """Return ragged histories side by side, padding, placeholders, and id 0 as a real id."""
    history = "penalty.history"
    penal: dict[str, Any] = {"frequency_penalty": 2.0}
    recipe = row({0: 150.0, 11: 200.0}, base=_LOW)
    repeat: dict[str, Any] = {"repetition_penalty": 2.0}
    ragged = [
        (recipe, request(output=(11,) * 100, **penal)),
        (recipe, request(output=(), **penal)),
        (recipe, request(prompt=(11, 3, 4, 5, 6, 7), **repeat)),
        (recipe, request(prompt=(3,), **repeat)),
        (recipe, request(output=(0,) * 100, **penal)),
        (recipe, request()),
    ]
    # padding must not count as id 0, nor as the last id
    zero = row({0: 200.0, 11: 150.0}, base=_LOW)
    padded = [
        (zero, request(prompt=(3,) * 40, **repeat)),
        (zero, request(prompt=(5,), output=(1,), **repeat)),
        (recipe, request(prompt=(5,), output=(1,), **repeat)),
        (zero, request(output=(PLACEHOLDER, PLACEHOLDER), **repeat, **penal)),
        (recipe, request(output=(1, PLACEHOLDER), **repeat, **penal)),
        (zero, request(prompt=(0,), **repeat)),
    ]
    return (
        batch(_V, ragged, history),
        batch(_V, ragged[::-1], history),
        batch(_V, padded, history),
        batch(_V, padded[::-1], history),
        *_long_cases(history),
    )


def _long_cases(clause: str) -> Iterator[Case]:
    """Yield ids at one end of a history that is longer than any window of 99, for each penalty."""
    best, near = {0: 150.0, 11: 200.0}, {0: 0.0, 11: 1.0}
    twice: dict[str, Any] = {"repetition_penalty": 2.0}
    for early in (True, False):
        ids = (11, *(3,) * 99) if early else (*(3,) * 99, 11)
        half = ((11,) * 50, (3,) * 50) if early else ((3,) * 50, (11,) * 50)
        yield _both(best, request(output=ids, **twice), clause)
        yield _both(best, request(prompt=ids, **twice), clause)
        yield _both(near, request(output=ids, presence_penalty=2.0, temperature=2.0**-6), clause)
        # 300 - 2 * 50 = 200 < 250
        counted = request(output=half[0] + half[1], frequency_penalty=2.0)
        yield _both({0: 250.0, 11: 300.0}, counted, clause)


def thinking_cases() -> tuple[Case, ...]:
    """Return spent and unspent budgets, the forced id under every mask."""
    markers = ThinkingMarkers(start=(2,), end=(3, 4))
    best = row({0: 100.0, 11: 200.0}, base=_LOW)
    force = "thinking.force"

    def asked(output: tuple[int, ...], budget: int | None, **params: Any) -> Request:
        return request(prompt=(7, 2), output=output, thinking_token_budget=budget, **params)

    rows = [
        (best, asked((), 0)),
        (best, asked((8, 8), 2)),
        (best, asked((8, 8, 3), 2)),
        (best, asked((8,), 5)),
        (best, asked((), None)),
        (best, asked((8, 8), 2, allowed_token_ids=(0, 11))),
        (best, asked((8, 8), 2, bad_words_token_ids=((3,),))),
        (best, asked((8, 8), 2, logit_bias=((3, -math.inf), (11, 500.0)))),
        (best, asked((8, 8), 2, temperature=0.0)),
        (best, request(thinking_token_budget=1)),
    ]
    return (
        batch(_V, rows, force, thinking=markers),
        batch(_V, rows[::-1], force, thinking=markers),
    )

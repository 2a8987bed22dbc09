"""Rows that ask for logprobs: none, the sampled one, top N, all, lists, side by side."""

from __future__ import annotations

import math
from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import Row, batch, peak, request, row
from refsampler.conformance.logits import RowRecipe

__all__ = ["finite_cases", "logprobs_cases", "mode_cases"]

_CLAUSES = ("logprobs.raw", "logprobs.gather", "logprobs.rank")


def logprobs_cases(*, seeds: bool) -> tuple[Case, ...]:
    """Return batches in which rows ask for different logprobs under parameters that change them.

    Args:
        seeds: rows have seeds, so that asking can be compared with not asking.

    """
    bell = RowRecipe(shape="bell", seed=5)
    tied = row({3: 1.0, 8: 1.0, 12: 1.0}, base=0.0)
    asks: tuple[dict[str, Any], ...] = (
        {"logprobs": 0},
        {"logprobs": 5, "temperature": 0.5, "top_k": 3},
        {"logprobs": 2, "temperature": 0.0},
        {"logprobs": 1, "top_p": 0.5},
        {},
    )
    lists: tuple[dict[str, Any], ...] = (
        {"logprob_token_ids": (12, 0, 3)},
        {"logprob_token_ids": (40,), "top_k": 2},
    )
    plain: list[Row] = []
    for place, ask in enumerate((*asks, *asks)):
        seed: dict[str, Any] = {"seed": 1000 + place} if seeds else {}
        recipe = (bell, tied, peak(40, lead=2.0))[place % 3]
        plain.append((recipe, request(**(ask | seed))))
    listed: list[Row] = [
        (recipe, request(**(ask | ({"seed": 77 + place} if seeds else {}))))
        for place, (recipe, ask) in enumerate(
            ((bell, lists[0]), (tied, lists[1]), (bell, lists[1]))
        )
    ]
    own: dict[str, Any] = {"seed": 5} if seeds else {}
    everything: list[Row] = [
        (bell, request(logprobs=-1, temperature=0.7, **own)),
        (tied, request(logprobs=-1, temperature=0.0)),
    ]
    clauses = (*_CLAUSES, "logprobs.neutral")
    return (
        batch(41, plain, *clauses),
        batch(41, listed, *clauses),
        batch(41, [*listed, *plain[:4]], *clauses),
        batch(41, everything, *clauses),
    )


def mode_cases(*, masks: bool, penalties: bool, seeds: bool) -> tuple[Case, ...]:
    """Return batches in which processing changes every value, by exact amounts.

    A batch of greedy rows only and a mixed one; each row wants something else.  Ties at the top,
    so that a rank that counts strictly shows.
    """
    steps = row({3: 4.0, 8: 3.0, 12: 3.0, 0: 2.0, 40: 1.0}, base=-2.0)
    tied = row({5: 2.0, 39: 2.0, 40: 2.0}, base=-1.0)
    spread = row({7: 2.0, 20: 1.5, 1: 1.0, 33: 0.5}, base=-8.0)
    wants: tuple[dict[str, Any], ...] = (
        {"logprobs": 3},
        {"logprobs": 0},
        {"logprob_token_ids": (40, 0, 3)},
        {"logprobs": 6},
        {"logprob_token_ids": (5,)},
        {},
    )
    steps_of: list[dict[str, Any]] = [{}]
    if masks:
        steps_of += [
            {"logit_bias": ((3, -1.0), (7, 0.5), (5, 0.25))},
            {"bad_words_token_ids": ((3,), (5,), (7,))},
        ]
    if penalties:
        steps_of += [{"repetition_penalty": 2.0, "presence_penalty": 0.5}]
    filters: tuple[dict[str, Any], ...] = (
        {"temperature": 0.5},
        {"top_k": 3, "temperature": 2.0},
        {"top_k": 2},
        {},
    )
    greedy: list[Row] = []
    mixed: list[Row] = []
    for place in range(24):
        recipe = (steps, tied, spread)[place % 3]
        ask = wants[place % 6] | steps_of[(place // 2) % len(steps_of)]
        output = (3, 5, 7) if place % 2 else ()
        greedy.append((recipe, request(output=output, **(ask | {"temperature": 0.0}))))
        seed: dict[str, Any] = {"seed": 900 + place} if seeds and place % 2 else {}
        drawn = request(output=output, **(ask | filters[(place // 3) % 4] | seed))
        mixed += [(recipe, drawn), greedy[-1]] if place % 3 == 0 else [(recipe, drawn)]
    clauses = (*_CLAUSES, "logprobs.neutral", "logprobs.finite")
    return tuple(batch(41, rows, *clauses) for rows in (greedy, mixed, mixed[:5]))


def finite_cases(*, masks: bool) -> tuple[Case, ...]:
    """Return rows of extreme spread, of few finite ids and without a law; unfiltered.

    Args:
        masks: rows whose own masks leave nothing are among them.

    """
    wide = row({3: 65504.0, 4: 0.0, 5: -65504.0}, base=-300.0)
    few = [row({(7 * place) % 41: -place / 4 for place in range(n)}) for n in (1, 2, 3, 9)]
    lawful: list[Row] = [
        (recipe, request(**ask))
        for recipe in (wide, *few, RowRecipe(base=-65504.0), RowRecipe(base=65504.0))
        for ask in (
            {"logprobs": 41},
            {"logprobs": 3, "temperature": 0.0},
            {"logprob_token_ids": (5, 40, 0)},
        )
    ]
    broken = (
        row({2: math.nan}, base=0.0),
        row({2: math.inf}, base=0.0),
        RowRecipe(base=-math.inf),
        RowRecipe(base=math.nan),
    )
    lawless: list[Row] = [
        (recipe, request(logprobs=5, temperature=t)) for recipe in broken for t in (1.0, 0.0)
    ]
    if masks:
        lawless.append((row({4: 5.0}), request(allowed_token_ids=(1, 2), logprobs=5)))
    return (
        batch(41, lawful, "logprobs.finite"),
        batch(41, [*lawful[:3], *lawless, *lawful[3:6]], "logprobs.finite"),
    )

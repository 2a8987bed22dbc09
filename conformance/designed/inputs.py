"""Dtypes, layouts, shapes, extreme numbers, padding of the vocabulary, rows without a law."""

from __future__ import annotations

import math
from typing import Any

from refsampler.backends.protocol import Capabilities, DType
from refsampler.conformance.case import Case, Hazard, Layout
from refsampler.conformance.designed.build import Row, batch, flat, masses, peak, request, row
from refsampler.conformance.logits import LogitsRecipe, RowRecipe

__all__ = [
    "dtype_cases",
    "empty_cases",
    "extreme_cases",
    "few_finite_cases",
    "layout_cases",
    "nonfinite_cases",
    "padding_cases",
]

_GREEDY = request(temperature=0.0)


def _mixture(vocab: int) -> list[Row]:
    """Return rows of every kind whose ids are certain or among two, ends included."""
    last, middle = vocab - 1, vocab // 2
    return [
        (peak(last, seed=3), request()),
        (peak(0, seed=4), request(top_k=3, top_p=0.9)),
        (peak(middle, seed=5), _GREEDY),
        (row({0: 0.0, last: 0.0}), request(temperature=0.7)),
        (peak(last, lead=1.0, seed=6), _GREEDY),
        (row({middle: 0.0, last: -1.0, 0: -2.0}, base=-8.0), request(top_k=2)),
        (peak(0, seed=7), request(temperature=2.0, min_p=0.1)),
    ]


def layout_cases() -> tuple[Case, ...]:
    """Return every layout at prime and tiny vocabularies, V = 1, and a batch without rows."""
    laid = [
        batch(vocab, _mixture(vocab), "input.layout", layout=layout)
        for vocab in (2, 3, 31, 257, 1009)
        for layout in Layout
    ]
    one = [
        batch(1, [(flat(), request()), (flat(), _GREEDY), (flat(), asked)], "input.layout")
        for asked in (
            request(top_k=1),
            request(top_p=0.5),
            request(min_p=0.5, temperature=0.5),
            request(seed=3),
        )
    ]
    none = Case(LogitsRecipe(17, ()), (), clauses=laid[0].clauses)
    return (*laid, *one, none)


def dtype_cases(capabilities: Capabilities) -> tuple[Case, ...]:
    """Return equal questions in each declared dtype; in half precision neighbours must not merge.

    1.0 and 1.0078125 are neighbours in bfloat16, so a kernel that rounds products loses the order.
    """
    narrow = row({5: 1.0078125, 9: 1.0}, base=-8.0)
    cold = request(temperature=2.0**-13)
    rows: list[Row] = [*_mixture(64), (narrow, _GREEDY), (narrow, cold), (narrow, request(top_k=1))]
    # equal in half precision, 39 nats apart in float32
    fine = row({9: 8.00390625, 5: 8.0}, base=-8.0)
    single: list[Row] = [(fine, _GREEDY), (fine, request(temperature=1e-4))] * 8
    return tuple(
        batch(
            64, rows + single * (dtype is DType.FLOAT32), "input.dtypes", dtype=dtype, layout=layout
        )
        for dtype in sorted(capabilities.dtypes)
        for layout in (Layout.CONTIGUOUS, Layout.STRIDED)
    )


def extreme_cases() -> tuple[Case, ...]:
    """Return the largest numbers, the lowest temperature, huge weights and wide spreads."""
    cold, hot = request(temperature=1e-5), request(temperature=2.0)
    top = row({3: 65504.0}, base=-65504.0)
    pair = row({3: 65504.0, 6: 65504.0}, base=-65504.0)
    every: dict[str, Any] = {"top_k": 4, "top_p": 0.9, "min_p": 0.1}
    rows: list[Row] = [
        (top, cold),
        (top, hot),
        (top, _GREEDY),
        (top, request(temperature=1e-5, **every)),
        (pair, cold),
        (pair, request(temperature=1e-5, **every)),
        (row({3: -65504.0}), cold),
        (row({3: -65504.0}), request(temperature=2.0, **every)),
        (RowRecipe(base=-65504.0, ids=(2,), values=(-65000.0,)), cold),
        (RowRecipe(base=65504.0, ids=(2,), values=(60000.0,)), request(top_k=7)),
    ]
    # how clients write "no limit", beyond what 32 bits hold
    rows += [
        (row({3: 1.0, 6: 0.5}), request(top_k=k, temperature=t))
        for k in (2**31, 2**63 - 1)
        for t in (0.0, 1.0)
    ]
    weights: list[Row] = [
        (row({3: 5.0}, base=0.0), request(logit_bias=((1, 2.0**64),))),
        (row({3: 500.0}, base=0.0), request(logit_bias=((3, -(2.0**64)), (1, 100.0)))),
        (row({3: 500.0, 1: 100.0}, base=0.0), request(prompt=(3,), repetition_penalty=2.0**64)),
        (row({3: -1.0, 1: -90.0}, base=-200.0), request(prompt=(3,), repetition_penalty=2.0**64)),
        (row({3: 1.0}, base=0.0), request(prompt=(3,), repetition_penalty=2.0**-64)),
    ]
    return (batch(8, rows, "input.extreme"), batch(8, weights, "input.extreme"))


def padding_cases() -> tuple[Case, ...]:
    """Return vocabularies whose last ids are padding at -inf."""

    def padded(recipe: RowRecipe, real: int, vocab: int) -> RowRecipe:
        tail = tuple(range(real, vocab))
        values = (*recipe.values, *[-math.inf] * len(tail))
        return RowRecipe(
            recipe.shape, recipe.seed, recipe.base, recipe.scale, (*recipe.ids, *tail), values
        )

    asks = (request(), request(top_k=60), request(top_p=0.999), request(min_p=0.0), _GREEDY)
    return tuple(
        batch(
            vocab,
            [
                (padded(RowRecipe(scale=0.25, shape="bell", seed=3), real, vocab), one)
                for one in asks
            ]
            * 8,
            "output.vocab-padding",
        )
        for real, vocab in ((50, 64), (3, 128), (257, 260))
    )


def few_finite_cases() -> tuple[Case, ...]:
    """Return rows of 1 to 10 finite ids under every filter, asked 32 times."""
    rows: list[Row] = []
    for count in range(1, 11):
        ids = [(7 * place + 3) % 97 for place in range(count)]
        recipe = row({token: -place / 16 for place, token in enumerate(ids)})
        rows += [
            (recipe, request()),
            (recipe, request(top_k=5)),
            (recipe, request(top_k=50, top_p=0.95)),
            (recipe, request(top_p=0.99, min_p=0.01)),
        ]
    # a draw that runs past the kept mass gives the last of the candidates, and none between
    cut = row({3: 0.0, 8: -0.5, 1: -1.25, 5: -2.25})
    past = batch(12, [(cut, request(top_k=4, top_p=0.75))] * 1024, "draw.support")
    return (batch(97, rows, "draw.support", calls=32), past)


def nonfinite_cases() -> tuple[Case, ...]:
    """Return NaN, +inf and empty rows first, last and between good rows."""
    broken = [
        row({2: math.nan}, base=0.0),
        row({2: math.inf}, base=0.0),
        row({2: math.inf, 3: math.inf, 4: math.nan}, base=0.0),
        RowRecipe(base=math.nan),
        RowRecipe(base=-math.inf),
    ]
    good = _mixture(33)
    asks = (request(), request(top_k=2, top_p=0.5), _GREEDY)
    cases = []
    for number, recipe in enumerate(broken):
        bad = [(recipe, one) for one in asks]
        orders = ([*bad, *good], [*good, *bad], [good[0], *bad, *good[1:]])
        cases.append(
            batch(
                33,
                orders[number % 3],
                "nonfinite.contained",
                "batch.isolation",
                hazard=Hazard.CRASH,
                calls=8,
            )
        )
    return tuple(cases)


def empty_cases() -> tuple[Case, ...]:
    """Return rows without any id beside good rows: left so by their masks, and by the logits.

    The second needs nothing of a backend, so that one without masks has something to answer too.
    """
    nothing = row({4: 5.0})
    empty: list[Row] = [
        (nothing, request(allowed_token_ids=(1, 2))),
        (nothing, request(bad_words_token_ids=((4,),), top_k=2)),
        (nothing, request(logit_bias=((4, -math.inf),), temperature=0.0)),
        (nothing, request(min_tokens=1, stop_token_ids=(4,), top_p=0.5)),
    ]
    good: list[Row] = [
        (masses({1: 0.5, 30: 0.5}), request()),
        (peak(32, seed=8), request(top_k=4)),
        (peak(0, seed=9), _GREEDY),
    ]
    blank = RowRecipe(base=-math.inf)
    bare: list[Row] = [(blank, request()), (blank, request(top_k=2)), (blank, _GREEDY)]
    masked = [good[0], *empty[:2], good[1], *empty[2:], good[2]]
    blanks = [good[0], *bare[:2], good[1], *bare[2:], good[2]]
    clauses = ("mask.empty", "mask.flagged")
    return (
        batch(33, masked, *clauses, hazard=Hazard.CRASH, calls=8),
        # what raises here raises for any row without a law
        batch(33, blanks, "nonfinite.contained", *clauses, hazard=Hazard.CRASH, calls=8),
    )

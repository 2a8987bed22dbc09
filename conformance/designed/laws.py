"""Rows whose law is tested: each is where some fault is seen with the fewest draws."""

from __future__ import annotations

import math
from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch, masses, request, row
from refsampler.conformance.logits import RowRecipe, hashed

__all__ = ["MADE_FOR", "law_cases", "mixed_case"]

_MIXED_ROWS = 256
_MIXED_VOCAB = 4096
_EDGES = (0, 1023, 1024, 32767, 32768, 131071, 131072, 262143)  # of blocks


MADE_FOR = {
    "bfloat16 probabilities": (1,),
    "temperature *": (9, 10),
    "16-bit uniform": (11,),
    "first kept id*": (13,),
    "last kept id*": (13,),
    "noise that can be 0*": (14,),
    "greedy mixture*": (15,),
}
"""Declared alternatives -> places among `law_cases` of the rows that are there for their sake."""


def law_cases() -> tuple[Case, ...]:
    """Return cases of one row, from two ids to 262,144; a wide row costs most, so few are wide."""
    plain = request()
    two = row({0: 0.0, 7: 0.0})
    sixteen = row({(37 * place + 5) % 61: 0.0 for place in range(16)})
    ladder = row({(11 * place + 3) % 32: -place / 8 for place in range(24)})
    words = RowRecipe(shape="zipf", seed=11, scale=0.75)
    rows = (
        (2, row({0: -2.25, 1: 0.0}), plain),
        (8, _midway(), plain),
        (8, two, plain),
        (61, sixteen, plain),
        (32, ladder, request(temperature=0.7)),
        (32, ladder, request(temperature=1.5, top_k=12)),
        (32, ladder, request(top_p=0.83)),
        (256, words, request(temperature=0.8, top_k=50)),
        (256, words, request(min_p=0.02, top_k=100, top_p=0.9)),
        (64, _sea(64), request(temperature=0.5)),
        (4096, _sea(4096), plain),
        # a 16-bit grid cannot give every third id of the sea
        (16384, RowRecipe(ids=(5461,), values=(11.3125,)), plain),
        (32768, words, request(temperature=0.7)),
        (262144, row(dict.fromkeys(_EDGES, 0.0)), plain),
        # noise that can be 0 gives any of the others
        (262144, RowRecipe(base=-28.0, ids=(131071,), values=(0.0,)), plain),
        # of 256 ids the likeliest, by a little: a draw in a thousand more is a quarter more of its own
        (256, RowRecipe(ids=(101,), values=(0.0625,)), plain),
    )
    return tuple(batch(vocab, [(recipe, asked)], "draw.law") for vocab, recipe, asked in rows)


def mixed_case(calls: int) -> Case:
    """Return LLM-like rows, no two alike, each of which is drawn once in each call.

    Cold rows stand beside hot ones, filtered rows beside free ones: a row that takes its
    neighbour's parameters then draws what it should hardly ever draw.
    """
    rows = []
    for place in range(_MIXED_ROWS):
        mixed = hashed(place, 4).astype(float) / 2.0**64
        heat = 0.5 + 0.4 * mixed[0] if place % 2 else 1.3 + 0.7 * mixed[0]
        filters: tuple[dict[str, Any], ...] = (
            {},
            {"top_k": 10 + int(400 * mixed[1])},
            {},
            {"top_p": 0.7 + 0.29 * mixed[2]},
            {},
            {"min_p": 0.001 + 0.05 * mixed[3]},
            {"top_k": 500 + int(400 * mixed[1]), "top_p": 0.95},
            {},
        )
        asked = request(temperature=float(heat), **filters[place % len(filters)])
        rows.append((RowRecipe(shape="zipf", seed=100 + place, scale=0.75), asked))
    return batch(_MIXED_VOCAB, rows, "draw.law", calls=calls)


def _midway() -> RowRecipe:
    """Return masses just above and just below the middle of two neighbours of 8 bits.

    Rounding moves the ones up and the others down by 2^-8, nearly the most that it can, and their sum
    hardly at all.
    """
    above, below = 2.0**-8 + 2.0**-12, 2.0**-8 - 2.0**-12
    powers = {1: (2, above), 6: (2, above), 3: (2, below), 0: (3, below), 7: (4, below)}
    mass = {token: 2.0**-power * (1 + over) for token, (power, over) in powers.items()}
    return masses({**mass, 5: 1 - sum(mass.values())})


def _sea(vocab: int) -> RowRecipe:
    """Return one id against a flat sea of equal mass: nothing shows a wrong temperature sooner.

    The temperature 1/2 of the small sea is made up for, so that both have the same masses.
    """
    gap = math.log(vocab - 1) + 0.33
    scale = 0.5 if vocab == 64 else 1.0
    return RowRecipe(ids=(vocab // 3,), values=(gap * scale,))

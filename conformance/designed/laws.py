"""Rows whose law is tested: each is where some fault is seen with the fewest draws."""

from __future__ import annotations

import math

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.logits import RowRecipe

__all__ = ["law_cases"]


def law_cases() -> tuple[tuple[Case, int], ...]:
    """Return cases of one row, and how many draws each gets in the quick profile."""
    plain = request()
    two = row({0: 0.0, 31: 0.0})
    sixteen = row({(37 * place + 5) % 61: 0.0 for place in range(16)})
    ladder = row({(11 * place + 3) % 32: -place / 8 for place in range(24)})
    words = RowRecipe(shape="zipf", seed=11, scale=0.75)
    return tuple(
        (batch(vocab, [(recipe, asked)], "draw.law"), draws)
        for vocab, recipe, asked, draws in (
            (32, two, plain, 200_000),
            (61, sixteen, plain, 200_000),
            (32, ladder, request(temperature=0.7), 200_000),
            (32, ladder, request(temperature=1.5, top_k=12), 200_000),
            (32, ladder, request(top_p=0.83), 200_000),
            (256, words, request(temperature=0.8, top_k=50), 100_000),
            (256, words, request(min_p=0.02, top_k=100, top_p=0.9), 50_000),
            (64, _sea(64), request(temperature=0.5), 400_000),
            (4096, _sea(4096), plain, 16_000),
        )
    )


def _sea(vocab: int) -> RowRecipe:
    """Return one id against a flat sea of equal mass: nothing shows a wrong temperature sooner.

    The temperature 1/2 of the small sea is made up for, so that both have the same masses.
    """
    gap = math.log(vocab - 1) + 0.33
    scale = 0.5 if vocab == 64 else 1.0
    return RowRecipe(ids=(vocab // 3,), values=(gap * scale,))

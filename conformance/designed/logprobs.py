"""Rows that ask for logprobs: none, the sampled one, top N, all, lists, side by side."""

from __future__ import annotations

from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import Row, batch, peak, request, row
from refsampler.conformance.logits import RowRecipe

__all__ = ["logprobs_cases"]

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

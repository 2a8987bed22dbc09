"""The few words in which designed cases are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = [
    "COPIES",
    "Row",
    "batch",
    "copies",
    "distinct",
    "flat",
    "masses",
    "peak",
    "request",
    "row",
]

COPIES = 128
"""Equal rows in one call: an id of probability 0.25 stays away with probability e^-36."""

Row = tuple[RowRecipe, Request]


def request(*, prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> Request:
    """Return a request; temperatures are taken as they are, however small."""
    return Request(SamplingParams(temperature_floor=0.0, **params), tuple(prompt), tuple(output))


def row(values: Mapping[int, float], base: float = -math.inf) -> RowRecipe:
    """Return the row with these logits, and `base` elsewhere."""
    return RowRecipe(base=base, ids=tuple(values), values=tuple(values.values()))


def masses(values: Mapping[int, float]) -> RowRecipe:
    """Return the row whose softmax is these probabilities, and 0 elsewhere."""
    return row({token: math.log(mass) for token, mass in values.items()})


def peak(token: int, lead: float = 64.0, seed: int = 1) -> RowRecipe:
    """Return a row whose id `token` leads a background in [-4, 4] by at least `lead`."""
    return RowRecipe(shape="bell", seed=seed, ids=(token,), values=(lead + 4.0,))


def flat() -> RowRecipe:
    """Return the row of equal logits."""
    return RowRecipe()


def batch(vocab: int, rows: Sequence[Row], *clauses: str, **fields: Any) -> Case:
    """Return a case of these rows."""
    recipe = LogitsRecipe(vocab, tuple(one for one, _ in rows))
    return Case(recipe, tuple(one for _, one in rows), clauses=clause_ids(*clauses), **fields)


def copies(
    vocab: int, recipe: RowRecipe, asked: Request, *clauses: str, count: int = COPIES
) -> Case:
    """Return a case of equal rows, so that ids that must be drawn are drawn."""
    return batch(vocab, [(recipe, asked)] * count, *clauses)


def distinct(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return the cases without those that came up twice."""
    return tuple({case.id: case for case in cases}.values())

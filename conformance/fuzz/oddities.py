"""Batches of another sort: noise at its ends, masks that do not fit, float64, many seeds at once."""

from __future__ import annotations

import math
from random import Random

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.designed.build import batch, flat
from refsampler.conformance.fuzz.asks import asked_request
from refsampler.conformance.fuzz.rows import live_row
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = ["ends", "flat_seeds", "moded", "newcomers", "precise", "widths"]


def ends(seed: int) -> Case:
    """Return seeded rows with dead ids anywhere, for generators that give the ends of their range."""
    rng = Random(seed)
    vocab = rng.choice((2, 2, 3, 8, 40, 200))
    made = []
    for _ in range(rng.randint(1, 4)):
        ids = tuple(rng.sample(range(vocab), rng.randint(1, max(1, vocab - 1))))
        values = tuple(-0.5 * place for place in range(len(ids)))
        asks = rng.choice(((), (), ("top-k",), ("top-p",)))
        row = live_row("few", rng, vocab)
        asked = asked_request(rng, vocab, row, "warm", (*asks, "seed"))
        made.append((RowRecipe(base=-math.inf, ids=ids, values=values), asked))
    # each quarter of the rows is handed another end
    return batch(vocab, made * 4, "draw.support")


def flat_seeds(seed: int) -> Case:
    """Return flat rows of which some have seeds: ids of all kinds have to come."""
    rng = Random(seed)
    first = rng.randrange(2**31)
    step = rng.choice((1, 1, 7, 2**20))
    rows = []
    for place in range(24):
        rows.append((flat(), Request(SamplingParams(seed=first + step * place))))
        rows.append((flat(), Request(SamplingParams())))
    if rng.random() < 0.5:
        rng.shuffle(rows)
    return batch(4096, rows, "seed.effect", calls=2)


def moded(seed: int, asks: tuple[str, ...]) -> Case:
    """Return rows that ask for logprobs, for every mode in turn."""
    rng = Random(seed)
    vocab = rng.choice((8, 16, 33))
    made = []
    legal = [one for one in asks if one not in ("placeholder", "logprobs", "listed")]
    for _ in range(rng.randint(2, 6)):
        row = live_row(rng.choice(("clear", "zipf", "bell", "lattice", "ties")), rng, vocab)
        chosen = {*rng.sample(legal, min(rng.randint(0, 2), len(legal)))}
        chosen |= {rng.choice(("logprobs", "listed"))}
        asked = asked_request(rng, vocab, row, rng.choice(("greedy", "warm")), chosen)
        if asked.params.logprobs == -1:
            asked = asked_request(rng, vocab, row, "warm", {"listed"})
        made.append((row.recipe, asked))
    return _batch(vocab, made, clause_ids("logprobs.raw"))


def widths(seed: int) -> Case:
    """Return rows with allow-lists whose best id may lie beyond a narrow mask (V = 12)."""
    rng = Random(seed)
    made = []
    for _ in range(rng.randint(1, 4)):
        row = live_row("clear", rng, 12)
        chosen = tuple(sorted({0, *rng.sample(row.ids, rng.randint(1, len(row.ids)))}))
        params = SamplingParams(
            allowed_token_ids=chosen, temperature=rng.choice((0.0, 2.0**-9)), temperature_floor=0.0
        )
        made.append((row.recipe, Request(params)))
    return _batch(12, made, clause_ids("mask.width"))


def precise(seed: int) -> Case:
    """Return cold rows that are handed over in float64 (V = 12)."""
    rng = Random(seed)
    made = []
    for _ in range(rng.randint(2, 24)):
        row = live_row("clear", rng, 12)
        made.append((row.recipe, asked_request(rng, 12, row, rng.choice(("cold", "greedy")), ())))
    return _batch(12, made, clause_ids("input.dtypes"))


def newcomers(seed: int, asks: tuple[str, ...]) -> Case:
    """Return good requests, beside which bad ones knock (V = 64)."""
    rng = Random(seed)
    made = []
    legal = [one for one in asks if one not in ("placeholder", "logprobs", "listed", "seed")]
    for _ in range(rng.randint(1, 5)):
        row = live_row("clear", rng, 64)
        chosen = {*rng.sample(legal, min(2, len(legal)))}
        heat = rng.choice(("cold", "greedy"))
        made.append((row.recipe, asked_request(rng, 64, row, heat, chosen)))
    return _batch(64, made, clause_ids("input.validated"))


def _batch(
    vocab: int, rows: list[tuple[RowRecipe, Request]], clauses: tuple[ClauseId, ...]
) -> Case:
    recipe = LogitsRecipe(vocab, tuple(one for one, _ in rows))
    return Case(recipe, tuple(one for _, one in rows), clauses=clauses)

"""Sketch: a batch in a few words and a seed, written out as a case by plain integer choices."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random
from typing import Final

from refsampler.backends.protocol import DType
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.fuzz.asks import asked_request
from refsampler.conformance.fuzz.rows import DANGERS, LAWLESS, LiveRow, live_row
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.request import Request

__all__ = ["COPIES", "HEATS", "MODES", "Sketch", "features_in", "pairs_in", "pairs_of"]

COPIES: Final = 256
"""Equal rows of a batch of copies: an id of probability 0.18 stays away with probability e^-50."""

MODES: Final = (
    *("mixed", "mixed", "cold", "cold", "copies", "copies", "copies"),
    *("greedy", "seeded", "seeded", "lawless", "same"),
)
"""What a batch is good for:

`mixed` rows of any kind; `cold` and `greedy` rows have one right id, so that every mistake shows at
once; `copies` of one row show an id that should have come; `seeded` rows can be compared with
themselves elsewhere; `lawless` rows beside cold ones; `same` asks all rows for the same pair.
"""

HEATS: Final = ("greedy", "cold", "temperature")
"""Features of a request that are its temperature's."""

_PEAKED: Final = ("clear", "clear", "clear", "padded", "near", "huge", "lattice")
_COPIED: Final = ("few", "few", "few", "few", "plateau", "ties")
_SPREAD: Final = ("few", "few", "plateau", "ties", "flat", "lattice", "zipf")
_FILTERS: Final = ("top-k", "top-p", "min-p")
_FILTERED: Final = 0.4
"""Chance of each filter on rows of which it can be seen what they kept."""
_EXTRA: Final = 0.12
"""Chance of each further thing that a row asks."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A batch before it is written out.

    Attributes:
        mode: of `MODES`.
        vocab: V.
        rows: how many, but in a batch of copies.
        pair: two things that meet in its first row, and in others now and then.
        seed: of everything else.
        asks: that are legal.
        dtype: of the logits.
        layout: of the logits in memory.

    """

    mode: str
    vocab: int
    rows: int
    pair: tuple[str, ...]
    seed: int
    asks: tuple[str, ...]
    dtype: DType = DType.FLOAT32
    layout: Layout = Layout.CONTIGUOUS

    def case(self, *clauses: ClauseId) -> Case:
        """Return the batch."""
        rng = Random(self.seed)
        made = self._copies(rng) if self.mode == "copies" else self._rows(rng)
        recipe = LogitsRecipe(self.vocab, tuple(one for one, _ in made))
        requests = tuple(one for _, one in made)
        return Case(recipe, requests, self.dtype, self.layout, clauses=clauses)

    def _rows(self, rng: Random) -> list[tuple[RowRecipe, Request]]:
        made = []
        for place in range(self.rows):
            lawless = self.mode == "lawless" and (place == 0 or rng.random() < 0.2)
            row = live_row(self._danger(rng, lawless=lawless), rng, self.vocab)
            paired = place == 0 or self.mode == "same" or rng.random() < 0.3
            chosen = {*self.pair} if paired else {*rng.sample(self.asks, min(2, len(self.asks)))}
            if self.mode != "same":
                chosen |= {one for one in self.asks if rng.random() < _EXTRA}
            if self.mode == "seeded" and "seed" in self.asks and rng.random() < 0.8:
                chosen |= {"seed"}
            made.append((row.recipe, self._asked(rng, row, chosen)))
        return made

    def _copies(self, rng: Random) -> list[tuple[RowRecipe, Request]]:
        """Return equal rows, at times with others in front and behind."""
        row = live_row(rng.choice(_COPIED), rng, self.vocab)
        noise = {one for one in self.pair if one not in ("seed", "logprobs", "listed")}
        noise |= {one for one in _FILTERS if rng.random() < _FILTERED}
        heat = "temperature" if "temperature" in self.pair else "warm"
        one = (row.recipe, asked_request(rng, self.vocab, row, heat, noise))
        other = live_row("clear", rng, self.vocab)
        extras = [
            (other.recipe, asked_request(rng, self.vocab, other, heat, self.pair[:1]))
            for heat in ("greedy", "cold")[: rng.randint(0, 2)]
        ]
        return [*extras[:1], *[one] * COPIES, *extras[1:]]

    def _danger(self, rng: Random, *, lawless: bool) -> str:
        if lawless:
            return rng.choice(tuple(LAWLESS))
        if rng.random() < 0.2:
            return rng.choice(tuple(DANGERS))
        peaked = self.mode in ("cold", "greedy", "lawless")
        spread = self.mode == "seeded"
        return rng.choice(_PEAKED if peaked or (not spread and rng.random() < 0.5) else _SPREAD)

    def _asked(self, rng: Random, row: LiveRow, chosen: Collection[str]) -> Request:
        heat = {"cold": "cold", "lawless": "cold", "greedy": "greedy", "seeded": "warm"}
        kind = heat.get(self.mode, "any")
        # a lone row of another sort makes the batch a mixed one
        kind = "any" if rng.random() < 0.15 else kind
        kind = next((one for one in HEATS if one in chosen), kind)
        return asked_request(rng, self.vocab, row, kind, chosen)


def features_in(request: Request) -> Iterator[str]:
    """Yield what a request asks, by the names of `ASKS` and its temperature's."""
    params = request.params
    if params.greedy:
        yield "greedy"
    elif params.temperature < 0.02:
        yield "cold"
    elif params.temperature != 1:
        yield "temperature"
    told = {
        "top-k": params.top_k > 0,
        "top-p": params.top_p < 1,
        "min-p": params.min_p > 0,
        "seed": params.seed is not None,
        "history": bool(request.prompt or request.output),
        "repetition": params.repetition_penalty != 1,
        "frequency": params.frequency_penalty != 0,
        "presence": params.presence_penalty != 0,
        "placeholder": -1 in request.output,
        "allowed": params.allowed_token_ids is not None,
        "bad-words": bool(params.bad_words_token_ids),
        "min-tokens": params.min_tokens > 0,
        "bias": bool(params.logit_bias),
        "logprobs": params.logprobs is not None,
        "listed": bool(params.logprob_token_ids),
    }
    yield from (name for name, asked in told.items() if asked)


def pairs_in(case: Case) -> set[tuple[str, str]]:
    """Return the pairs of features that meet in a row, or in neighbours, of a case."""
    found: set[tuple[str, str]] = set()
    for request in {id(one): one for one in case.requests}.values():
        found |= {*combinations(sorted(features_in(request)), 2)}
    return found


@cache
def pairs_of(asks: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return every pair of features that can meet in one row; greedy rows have no filters."""
    filters, named = {*_FILTERS}, sorted({*asks, *HEATS})
    return tuple(
        pair
        for pair in combinations(named, 2)
        if not {*pair} <= {*HEATS}
        and pair != ("listed", "logprobs")
        and not ("greedy" in pair and filters & {*pair})
    )

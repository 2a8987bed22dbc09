"""What requests ask, feature by feature: boundary values, about the ids of the row that are alive.

Two features that meet are drawn for each row on purpose, others now and then: public faults mostly
take a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any, Final

from refsampler.backends.protocol import Feature
from refsampler.conformance.fuzz.rows import COLD, LiveRow
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.validation import MAX_LISTED_LOGPROBS

__all__ = ["ASKS", "NEEDS", "Heat", "asked_request", "asks_of"]

Heat = str
"""`cold`, `greedy`, `warm`, `temperature` (warm, but not 1) or `any`: how much noise a row leaves."""

_COLD: Final = (COLD, COLD, 2.0**-6, 1e-5, 0.005, 0.015)
_WARM: Final = (1.0, 1.0, 1.0, 0.5, 2.0, 0.7, 1.3)
_MASSES: Final = (0.5, 0.25, 0.9, 0.75, 1e-6, 1 - 2.0**-20, 1 - 2.0**-24, 0.999999, 1.0)


@dataclass(slots=True)
class _Draft:
    """A request while it is being written."""

    rng: Random
    vocab: int
    row: LiveRow
    temperature: float
    fields: dict[str, Any] = field(default_factory=dict)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    def token(self) -> int:
        """Return an id, mostly a live one, at times the first or the last of the vocabulary."""
        chance = self.rng.random()
        if chance < 0.7:
            return self.rng.choice(self.row.ids)
        return self.rng.choice((0, self.vocab - 1, self.rng.randrange(self.vocab)))

    def tokens(self, fewest: int, most: int) -> tuple[int, ...]:
        """Return some distinct ids."""
        count = self.rng.randint(fewest, most)
        return tuple(dict.fromkeys(self.token() for _ in range(count)))

    def masses(self) -> list[float]:
        """Return the cumulative masses of the live ids at the temperature, as a float64 would."""
        heat = max(self.temperature, 1e-3)
        top = self.row.values[0]
        weights = [math.exp(max((one - top) / heat, -700.0)) for one in self.row.values]
        return [one / math.fsum(weights) for one in accumulate(weights)]


def _top_k(draft: _Draft) -> None:
    live, vocab = len(draft.row.ids), draft.vocab
    near = (1, 2, 2, max(1, live - 1), live, live + 1)
    far = (-1, 0, vocab - 1, vocab, vocab + 1, 2**31 - 1, 2**31 + 3)
    draft.fields["top_k"] = draft.rng.choice(near if draft.rng.random() < 0.7 else far)


def _top_p(draft: _Draft) -> None:
    rng, p = draft.rng, draft.rng.choice(_MASSES)
    if draft.row.lone and math.isfinite(sum(draft.row.values)) and rng.random() < 0.7:
        edges = [0.0, *draft.masses()]
        at = rng.randrange(len(edges) - 1)
        low, high = edges[at], edges[at + 1]
        # between two boundaries, just below or above one, or exactly there
        p = rng.choice(((low + high) / 2, high - 0.004, high + 0.004, high, low + 0.25 * high))
    draft.fields["top_p"] = min(max(p, 1e-6), 1.0)


def _min_p(draft: _Draft) -> None:
    rng, p = draft.rng, draft.rng.choice((0.5, 0.125, 1.0, 1e-3, 0.05))
    if len(draft.row.values) > 1 and math.isfinite(sum(draft.row.values)) and rng.random() < 0.6:
        heat = max(draft.temperature, 1e-3)
        at = rng.randrange(1, len(draft.row.values))
        gap = (draft.row.values[at] - draft.row.values[0]) / heat
        ratio = math.exp(max(gap, -20.0))
        p = rng.choice((ratio * 0.8, ratio * 1.2, ratio))
    draft.fields["min_p"] = min(max(p, 0.0), 1.0)


def _seed(draft: _Draft) -> None:
    ends = (0, 1, 2**31, 2**63, 2**64 - 1)
    rng = draft.rng
    draft.fields["seed"] = rng.choice(ends) if rng.random() < 0.2 else rng.randrange(2**31)


def _repetition(draft: _Draft) -> None:
    draft.fields["repetition_penalty"] = draft.rng.choice((0.5, 2.0, 4.0, 1.3, 0.8))
    _history(draft)


def _frequency(draft: _Draft) -> None:
    draft.fields["frequency_penalty"] = draft.rng.choice((0.5, 1.0, 2.0, -1.0, -2.0, 0.3))
    _history(draft)


def _presence(draft: _Draft) -> None:
    draft.fields["presence_penalty"] = draft.rng.choice((0.5, 1.0, 2.0, -1.5, -2.0))
    _history(draft)


def _history(draft: _Draft) -> None:
    """Ragged histories of live ids, at times with many repeats, or long."""
    rng = draft.rng
    kind = rng.random()
    draft.prompt = [draft.token() for _ in range(rng.randint(0, 6))]
    draft.output = [draft.token() for _ in range(rng.randint(0, 6))]
    if kind < 0.15:
        # what came first is long ago: windows lose it
        draft.output = [draft.row.ids[0], *[draft.token()] * rng.choice((24, 70))]
    elif kind > 0.8:
        draft.output += [draft.token()] * rng.randint(1, 4)


def _placeholder(draft: _Draft) -> None:
    draft.output = [*draft.output, *([PLACEHOLDER] * draft.rng.randint(1, 2))]


def _allowed(draft: _Draft) -> None:
    draft.fields["allowed_token_ids"] = draft.tokens(1, 4)


def _bad_words(draft: _Draft) -> None:
    rng = draft.rng
    lengths = [rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(1, 3))]
    words = tuple(tuple(draft.token() for _ in range(length)) for length in lengths)
    draft.fields["bad_words_token_ids"] = words
    chosen = rng.choice(words)
    if rng.random() < 0.6:
        # a history that ends in the word's beginning, or in it by mistake of the prompt
        where = draft.output if rng.random() < 0.8 else draft.prompt
        where += chosen[:-1]


def _min_tokens(draft: _Draft) -> None:
    rng = draft.rng
    draft.fields |= {
        "stop_token_ids": draft.tokens(1, 3)[: max(1, draft.vocab // 2)],
        "eos_token_id": draft.token() if rng.random() < 0.5 else None,
        "min_tokens": rng.randint(0, 4),
        "max_tokens": None,
    }
    if rng.random() < 0.5:
        # at the very number, or one beside it
        count = max(0, draft.fields["min_tokens"] + rng.choice((-1, 0)))
        draft.output = [draft.token() for _ in range(count)]


def _bias(draft: _Draft) -> None:
    sizes = (-1.5, 1.5, -4.0, 0.5, -100.0, 100.0, -math.inf, 0.0)
    draft.fields["logit_bias"] = tuple(
        (token, draft.rng.choice(sizes)) for token in draft.tokens(1, 3)
    )


def _logprobs(draft: _Draft) -> None:
    most = min(draft.vocab, 20)
    draft.fields["logprobs"] = draft.rng.choice((0, 1, min(3, most), most, -1))


def _listed(draft: _Draft) -> None:
    draft.fields.pop("logprobs", None)
    draft.fields["logprob_token_ids"] = draft.tokens(1, min(5, MAX_LISTED_LOGPROBS))


_Ask = Callable[[_Draft], None]

ASKS: Final[dict[str, _Ask]] = {
    "top-k": _top_k,
    "top-p": _top_p,
    "min-p": _min_p,
    "seed": _seed,
    "history": _history,
    "repetition": _repetition,
    "frequency": _frequency,
    "presence": _presence,
    "placeholder": _placeholder,
    "allowed": _allowed,
    "bad-words": _bad_words,
    "min-tokens": _min_tokens,
    "bias": _bias,
    "logprobs": _logprobs,
    "listed": _listed,
}
"""What a request can ask beside its temperature, in the order in which it is written down."""

NEEDS: Final = {
    "seed": Feature.SEED,
    "repetition": Feature.PENALTIES,
    "frequency": Feature.PENALTIES,
    "presence": Feature.PENALTIES,
    "allowed": Feature.MASKS,
    "bad-words": Feature.MASKS,
    "min-tokens": Feature.MASKS,
    "bias": Feature.MASKS,
    "logprobs": Feature.LOGPROBS,
    "listed": Feature.LOGPROBS,
}
"""What a backend has to declare before a request may ask for it."""


def asks_of(features: Collection[Feature]) -> tuple[str, ...]:
    """Return what may be asked of a backend of these features."""
    return tuple(name for name in ASKS if name not in NEEDS or NEEDS[name] in features)


def asked_request(
    rng: Random, vocab: int, row: LiveRow, heat: Heat, asks: Collection[str]
) -> Request:
    """Return a request about a row that asks these things; it is legal whatever they are."""
    draft = _Draft(rng, vocab, row, _temperature(rng, heat))
    for name, write in ASKS.items():
        if name in asks:
            write(draft)
    params = SamplingParams(temperature=draft.temperature, temperature_floor=0.0, **draft.fields)
    request = Request(params, tuple(draft.prompt), tuple(draft.output))
    request.verify(vocab)
    return request


def _temperature(rng: Random, heat: Heat) -> float:
    if heat == "any":
        heat = rng.choice(("cold", "greedy", "warm", "warm"))
    if heat == "cold":
        return rng.choice(_COLD)
    if heat == "temperature":
        return rng.choice(_WARM[3:])
    return 0.0 if heat == "greedy" else rng.choice(_WARM)

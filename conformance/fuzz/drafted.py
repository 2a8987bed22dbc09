"""Steps with drafts: targets and draft laws of few ids, which decide what any noise may emit."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Final

from refsampler.conformance.case import Case
from refsampler.conformance.designed.drafted import Drafted, steps_case
from refsampler.conformance.fuzz.asks import asked_request
from refsampler.conformance.fuzz.rows import LiveRow, live_row
from refsampler.conformance.logits import RowRecipe
from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request

__all__ = ["drafted", "refused"]

_V: Final = 12
_CALLS: Final = 6
_MINDED: Final = (
    *("history", "repetition", "frequency", "presence"),
    *("allowed", "bad-words", "min-tokens", "top-k", "top-p"),
)
"""What a verifier minds at every position; min-p and biases are refused beside drafts."""


def drafted(seed: int, asks: tuple[str, ...]) -> Case:
    """Return the step of a seed."""
    rng = Random(seed)
    kind = rng.choice(("laws", "laws", "certain", "empty"))
    legal: list[str] = [one for one in _MINDED if one in asks]
    parts = [_part(rng, legal, kind) for _ in range(rng.randint(1, 5))]
    clause = "spec.degenerate" if kind == "empty" else "spec.draft-law"
    case = steps_case(_V, parts, clause, calls=_CALLS)
    if _lawful(case):
        return case
    # a position without any id left says nothing about a verifier
    plain = [replace(one, asked=Request(SamplingParams())) for one in parts]
    return steps_case(_V, plain, clause, calls=_CALLS)


def _lawful(case: Case) -> bool:
    plain = tuple(replace(one, drafts=()) for one in case.requests)
    return bool(target_law(case.build_logits(), plain).valid.all())


def _part(rng: Random, asks: list[str], kind: str) -> Drafted:
    if kind == "empty":
        return _without_residual(rng)
    live = live_row(rng.choice(("few", "few", "clear", "plateau")), rng, _V)
    minded = rng.sample(asks, min(rng.choice((0, 0, 1, 2)), len(asks)))
    heat = rng.choice(("warm", "warm", "greedy", "cold"))
    asked = asked_request(rng, _V, live, heat, minded)
    count = rng.choice((0, 1, 1, 2, 3, 4))
    targets = tuple(_target(rng, live) for _ in range(count + 1))
    tokens = [_draft(rng, one) for one in targets[:-1]]
    if kind == "certain" and rng.random() < 0.15 and tokens:
        tokens[rng.randrange(count)] = PLACEHOLDER
    laws = tuple(_law(rng, token, live) for token in tokens) if kind == "laws" else ()
    return Drafted(asked, tuple(tokens), targets, laws)


def _target(rng: Random, live: LiveRow) -> RowRecipe:
    """Return one id, the live ids, or the live ids in another order of value."""
    chance = rng.random()
    if chance < 0.35:
        return _row({rng.randrange(_V): 0.0})
    if chance < 0.7 or len(live.recipe.ids) < 2:
        return live.recipe
    turned = (*live.recipe.values[1:], live.recipe.values[0])
    return RowRecipe(base=live.recipe.base, ids=live.recipe.ids, values=turned)


def _draft(rng: Random, target: RowRecipe) -> int:
    """Return the draft: mostly an id that the target likes."""
    return rng.choice(target.ids) if rng.random() < 0.75 else rng.randrange(_V)


def _law(rng: Random, token: int, live: LiveRow) -> RowRecipe:
    """Return a law that knows the draft: surely, as one of two, as the target, or hardly."""
    other = rng.randrange(_V)
    chance = rng.random()
    if chance < 0.3:
        return _row({other: 0.0, token: 0.0})
    if chance < 0.5:
        return _row({other: 0.0, token: math.log(0.25 / 0.75)})
    if chance < 0.7 and token in live.ids:
        return live.recipe
    return _row({token: 0.0, **{(token + step) % _V: -0.5 for step in range(1, 4)}})


def _without_residual(rng: Random) -> Drafted:
    """Return a law that has too much of one id only, so that nothing is left where it is rejected."""
    token, *others = rng.sample(range(_V - 1), 4)
    little = 2.0 ** -rng.randint(19, 26)
    rest = math.log((1 - little) / len(others))
    target = {token: math.log(little)} | dict.fromkeys(others, rest)
    law = target | {token: math.log(2 * little)}
    bonus = _row({_V - 1: 0.0})
    return Drafted(Request(SamplingParams()), (token,), (_row(target), bonus), (_row(law),))


def _row(values: dict[int, float]) -> RowRecipe:
    return RowRecipe(base=-math.inf, ids=tuple(values), values=tuple(values.values()))


def refused(seed: int) -> Case:
    """Return a step that no verifier can honour: min-p, a bias, or a processor of the user's own."""
    rng = Random(seed)
    live = live_row("few", rng, _V)
    asked = asked_request(rng, _V, live, "warm", rng.choice((("min-p",), ("bias",), ())))
    plain = not (asked.params.min_p or asked.params.logit_bias)
    asked = Request(SamplingParams()) if plain else asked
    part = Drafted(asked, (live.ids[0],), (live.recipe, live.recipe))
    return steps_case(_V, [part], "spec.processors")

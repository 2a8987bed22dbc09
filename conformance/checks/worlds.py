"""Worlds: a row as a particular mistake would see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from refsampler.conformance.logits import RowRecipe
from refsampler.request import Request
from refsampler.semantics import Semantics

__all__ = ["NEUTRAL", "Mistake", "World", "changed"]


@dataclass(frozen=True, slots=True)
class World:
    """One row as a particular mistake would see it."""

    recipe: RowRecipe
    request: Request
    semantics: Semantics


Mistake = Callable[[World], World | None]
"""A row -> what the mistake makes of it; None, or the row, if it minds nothing there."""


def changed(world: World, **fields: object) -> World:
    """Change parameters of the row's request."""
    params = replace(world.request.params, **fields)  # type: ignore[arg-type]  # named by callers
    return replace(world, request=replace(world.request, params=params))


NEUTRAL: tuple[tuple[str, str, object], ...] = (
    ("mask.allowed", "allowed_token_ids", None),
    ("mask.bad-words", "bad_words_token_ids", ()),
    ("mask.min-tokens", "min_tokens", 0),
    ("bias.additive", "logit_bias", ()),
    ("penalty.repetition", "repetition_penalty", 1.0),
    ("penalty.frequency", "frequency_penalty", 0.0),
    ("penalty.presence", "presence_penalty", 0.0),
    ("temperature.scale", "temperature", 1.0),
    ("min-p.keep", "min_p", 0.0),
    ("top-k.keep", "top_k", 0),
    ("top-p.keep", "top_p", 1.0),
    ("thinking.force", "thinking_token_budget", None),
)
"""Clause, parameter, and the value that switches it off."""

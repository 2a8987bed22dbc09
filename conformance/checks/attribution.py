"""Which clause a wrong id speaks about: the one step that, taken off or replaced, explains it.

A sampler that draws a wrong id has broken some clause; the case alone does not say which.  Each
alternative below is a law that a particular mistake would have.  The first one that allows what was
seen and demands what it demands names the clause; the case's own clauses are asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int64

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.expected import RowExpected, expect_row
from refsampler.conformance.logits import RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import Scope, Semantics, Step

__all__ = ["CERTAIN", "Evidence", "Kept", "Seen", "attribute", "ignored_parameter"]

CERTAIN = 35.0
"""Nats: an event of probability e^-35 or less is near-certain not to happen (evidence rule 2)."""


class Evidence(Protocol):
    """Something seen of a row, which a law allows or not."""

    def fits(self, law: RowExpected) -> bool:
        """Whether a right backend of that law could have shown it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How often each id was drawn for equal rows.

    Attributes:
        counts: of ids in range.
        fresh: the draws are independent, so that an id that never comes says something.
        near_certain: what is improbable beyond e^-35 counts as impossible.

    """

    counts: Int64[np.ndarray, " vocab"]
    fresh: bool = True
    near_certain: bool = True

    @property
    def draws(self) -> int:
        """How many draws there were."""
        return int(self.counts.sum())

    def impossible(self, law: RowExpected) -> Int64[np.ndarray, " ids"]:
        """Return drawn ids that the law excludes."""
        return np.flatnonzero((self.counts > 0) & ~law.allowed)

    def improbable(self, law: RowExpected) -> Int64[np.ndarray, " ids"]:
        """Return drawn ids whose summed mass is below e^-35."""
        if not self.near_certain:
            return np.empty(0, np.int64)
        tiny = law.allowed & (law.most < -CERTAIN - np.log(max(1, law.allowed.sum())))
        return np.flatnonzero((self.counts > 0) & tiny)

    def missing(self, law: RowExpected) -> Int64[np.ndarray, " ids"]:
        """Return ids that never came although that has a probability below e^-35."""
        if not (self.near_certain and self.fresh):
            return np.empty(0, np.int64)
        mass = np.minimum(np.exp(law.least), 1 - 1e-16)
        expected = law.core & (-self.draws * np.log1p(-mass) > CERTAIN)
        return np.flatnonzero(expected & (self.counts == 0))

    def fits(self, law: RowExpected) -> bool:
        """Whether the law could have given this: nothing impossible, nothing certain missing."""
        if not law.valid:
            return False
        wrong = (self.impossible(law), self.improbable(law), self.missing(law))
        return not any(len(ids) for ids in wrong)


@dataclass(frozen=True, slots=True)
class Kept:
    """The ids that a backend says it kept, from its processed logits."""

    ids: Bool[np.ndarray, " vocab"]

    def fits(self, law: RowExpected) -> bool:
        """Whether a right backend of that law may keep these ids."""
        return not ((self.ids & ~law.allowed) | (law.core & ~self.ids)).any()


@dataclass(frozen=True, slots=True)
class _World:
    """One row as a particular mistake would see it."""

    recipe: RowRecipe
    request: Request
    semantics: Semantics


_Mistake = Callable[[_World], _World | None]


def attribute(
    case: Case, row: int, seen: Evidence, semantics: Semantics, owned: Collection[ClauseId]
) -> ClauseId | None:
    """Return the clause whose breach explains what was seen, None if no alternative does.

    Args:
        case: the batch.
        row: of the batch; rows alike were counted with it.
        seen: what was drawn.
        semantics: declared.
        owned: clauses that can be broken at this level.

    """
    world = _World(case.logits.rows[row], case.requests[row], semantics)
    fitting = [
        clause
        for clause, mistaken in _mistakes(case, row, world)
        if clause in owned and seen.fits(_law(case, mistaken))
    ]
    own = [clause for clause in case.clauses if clause in fitting]
    return next(iter([*own, *fitting]), None)


def ignored_parameter(case: Case, row: int, seen: Evidence, semantics: Semantics) -> str | None:
    """Return the parameter without which the row would look as it was seen."""
    world = _World(case.logits.rows[row], case.requests[row], semantics)
    for _, name, neutral in _NEUTRAL:
        if getattr(world.request.params, name) == neutral:
            continue
        if seen.fits(_law(case, _with(world, **{name: neutral}))):
            return name
    return None


def _law(case: Case, world: _World) -> RowExpected:
    return expect_row(case, world.recipe, world.request, world.semantics)


def _mistakes(case: Case, row: int, world: _World) -> Iterator[tuple[ClauseId, _World]]:
    """Yield every mistake that would change this row, the simplest first."""
    for clause, name, neutral in _NEUTRAL:
        if getattr(world.request.params, name) != neutral:
            yield ClauseId(clause), _with(world, **{name: neutral})
    for clause, mistake in _MISTAKES:
        mistaken = mistake(world)
        if mistaken is not None and mistaken != world:
            yield ClauseId(clause), mistaken
    for other, request in enumerate(case.requests):
        if request.params != world.request.params:
            params = request.params
            yield ClauseId("batch.isolation"), replace(
                world, request=replace(world.request, params=params)
            )
        if case.logits.rows[other] != world.recipe:
            yield ClauseId("batch.isolation"), replace(world, recipe=case.logits.rows[other])
    for edge in (case.logits.vocab - 1, 0):
        yield ClauseId("relabel.equivariance"), replace(world, recipe=_without(world.recipe, edge))


def _with(world: _World, **fields: object) -> _World:
    """Change parameters of the row's request."""
    params = replace(world.request.params, **fields)  # type: ignore[arg-type]  # named by callers
    return replace(world, request=replace(world.request, params=params))


def _without(recipe: RowRecipe, token: int) -> RowRecipe:
    """Ban one id."""
    named = dict(zip(recipe.ids, recipe.values, strict=True)) | {token: -np.inf}
    return replace(recipe, ids=tuple(named), values=tuple(named.values()))


# clause, parameter, value that switches it off
_NEUTRAL: tuple[tuple[str, str, object], ...] = (
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


def _next_k(world: _World) -> _World | None:
    k = world.request.params.top_k
    return _with(world, top_k=k + 1) if k > 0 else None


def _previous_k(world: _World) -> _World | None:
    k = world.request.params.top_k
    return _with(world, top_k=k - 1) if k > 1 else None


def _shifted_p(shift: float) -> _Mistake:
    def mistake(world: _World) -> _World | None:
        p = world.request.params.top_p
        moved = min(max(p + shift, 1e-6), 1.0)
        return _with(world, top_p=moved) if p < 1 else None

    return mistake


def _crossing_dropped(world: _World) -> _World | None:
    """The id that crosses p is left out, as if its whole mass had to fit."""
    if world.request.params.top_p == 1:
        return None
    logits = world.recipe.build(max((*world.recipe.ids, 0)) + 1)
    finite = logits[np.isfinite(logits)]
    if not len(finite) or not np.isinf(world.recipe.base):
        return None
    mass = np.sort(np.exp(finite - finite.max()))[::-1]
    up_to = np.cumsum(mass / mass.sum())
    fitting = up_to[up_to <= world.request.params.top_p]
    return _with(world, top_p=float(fitting[-1]) * (1 - 1e-6)) if len(fitting) else None


def _moved(first: Step, second: Step) -> _Mistake:
    """`first` acts right before `second`."""

    def mistake(world: _World) -> _World | None:
        order = world.semantics.order
        if first not in order or second not in order:
            return None
        rest = [step for step in order if step is not first]
        rest.insert(rest.index(second), first)
        return replace(world, semantics=replace(world.semantics, order=tuple(rest)))

    return mistake


def _declared(**fields: object) -> _Mistake:
    def mistake(world: _World) -> _World | None:
        semantics = replace(world.semantics, **fields)  # type: ignore[arg-type]  # named below
        return replace(world, semantics=semantics)

    return mistake


def _temperature(change: Callable[[float], float]) -> _Mistake:
    def mistake(world: _World) -> _World | None:
        t = world.request.params.temperature
        return _with(world, temperature=min(change(t), 2.0)) if t > 0 else None

    return mistake


def _repetition_twice(world: _World) -> _World | None:
    r = world.request.params.repetition_penalty
    return _with(world, repetition_penalty=r * r) if r != 1 else None


def _history(change: Callable[[Request], Request]) -> _Mistake:
    def mistake(world: _World) -> _World | None:
        return replace(world, request=change(world.request))

    return mistake


def _once(request: Request) -> Request:
    return replace(request, output=tuple(dict.fromkeys(request.output)))


def _prompt_counts(request: Request) -> Request:
    return replace(request, output=(*request.prompt, *request.output))


def _padding_counts(request: Request) -> Request:
    return replace(request, output=(*request.output, 0))


def _bias_twice(world: _World) -> _World | None:
    doubled = tuple((token, 2 * bias) for token, bias in world.request.params.logit_bias)
    return _with(world, logit_bias=doubled)


def _taken_greedily(world: _World) -> _World | None:
    params: SamplingParams = world.request.params
    return _with(world, temperature=0.0) if params.temperature > 0 and params.n == 1 else None


def _drawn(world: _World) -> _World | None:
    return _with(world, temperature=1.0) if world.request.params.greedy else None


_MISTAKES: tuple[tuple[str, _Mistake], ...] = (
    ("top-k.keep", _next_k),
    ("top-k.keep", _previous_k),
    ("top-p.keep", _crossing_dropped),
    ("order.pipeline", _moved(Step.TOP_P, Step.TOP_K)),
    ("order.pipeline", _declared(top_p_mass="joint")),
    ("order.pipeline", _moved(Step.MIN_P, Step.TEMPERATURE)),
    ("order.pipeline", _moved(Step.LOGIT_BIAS, Step.MIN_P)),
    ("order.pipeline", _moved(Step.LOGIT_BIAS, Step.THINKING)),
    ("order.pipeline", _moved(Step.FREQUENCY, Step.REPETITION)),
    ("order.pipeline", _moved(Step.PRESENCE, Step.REPETITION)),
    ("top-p.keep", _declared(top_p_cut="inclusive")),
    ("top-p.keep", _shifted_p(0.02)),
    ("top-p.keep", _shifted_p(-0.02)),
    ("top-k.ties", _declared(top_k_ties="exactly_k")),
    ("top-k.ties", _declared(top_k_ties="all")),
    ("top-p.ties", _declared(top_p_ties="all")),
    ("min-p.keep", _declared(min_p_space="logit")),
    ("temperature.scale", _temperature(lambda t: t * t)),
    ("temperature.scale", _temperature(lambda t: 1 / t)),
    ("penalty.repetition", _repetition_twice),
    ("penalty.repetition", _declared(repetition_scope=Scope.OUTPUT)),
    ("penalty.frequency", _history(_once)),
    ("penalty.frequency", _declared(count_scope=Scope.PROMPT_OUTPUT)),
    ("penalty.history", _history(_prompt_counts)),
    ("penalty.history", _history(_padding_counts)),
    ("bias.additive", _bias_twice),
    ("greedy.tie", _declared(greedy_ties="any")),
    ("greedy.argmax", _drawn),
    ("draw.law", _taken_greedily),
)

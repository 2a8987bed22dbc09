"""Mistakes: each makes of a row what a particular wrong sampler would make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from refsampler.backends.protocol import DType
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.logits import RowRecipe
from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.semantics import Scope, Semantics, Step
from refsampler.validation import ParameterError

__all__ = ["NEUTRAL", "World", "changed", "mistakes"]


@dataclass(frozen=True, slots=True)
class World:
    """One row as a particular mistake would see it."""

    recipe: RowRecipe
    request: Request
    semantics: Semantics


_RAISED = 1e-2
"""To which some raise every lower temperature (vLLM's `SamplingParams` does)."""
_LOWERED = (2.0**-6, 2.0**-3)
"""To which some lower every higher temperature; any other one in between gives much the same ids."""
_BARELY_RANDOM = 1e-4
"""Temperatures so low that a wrong threshold takes the row for greedy."""

_Mistake = Callable[[World], World | None]


def mistakes(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield every mistake that would change this row, the simplest first."""
    if 0 < world.request.params.temperature < _BARELY_RANDOM:
        yield ClauseId("greedy.threshold"), changed(world, temperature=0.0)
    if 0 < world.request.params.temperature < _RAISED:
        yield ClauseId("greedy.threshold"), changed(world, temperature=_RAISED)
    for lowered in _LOWERED:
        if world.request.params.temperature > lowered:
            yield ClauseId("greedy.threshold"), changed(world, temperature=lowered)
    greedy = world.request.params.greedy
    for clause, name, neutral in NEUTRAL:
        # a greedy row that is drawn has a clause of its own
        drawn = greedy and name == "temperature"
        if getattr(world.request.params, name) != neutral and not drawn:
            yield ClauseId(clause), changed(world, **{name: neutral})
    yield from _off_misread(case, world)
    for clause, mistake in _MISTAKES:
        mistaken = _made(mistake, world)
        if mistaken is not None and mistaken != world:
            yield ClauseId(clause), mistaken
    yield from _placeholders(case, world)
    yield from _neighbours(case, world)
    yield from _displaced(case, world)
    yield from _rounded(case, world)
    yield from _divided(case, world)
    yield from _placed(world)
    yield from _fallen(case, world)
    for edge in (case.logits.vocab - 1, 0):
        yield ClauseId("relabel.equivariance"), replace(world, recipe=_without(world.recipe, edge))


def _placeholders(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield rows whose placeholders count as the last or the first id."""
    if PLACEHOLDER not in world.request.output:
        return
    for token in (case.logits.vocab - 1, 0):
        known = tuple(token if one == PLACEHOLDER else one for one in world.request.output)
        counted = replace(world.request, output=known)
        yield ClauseId("penalty.history"), replace(world, request=counted)


def _off_misread(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield a row without top-k as one of k = 1, and as one whose search for an id ends at id 0."""
    params = world.request.params
    if not params.greedy and not 0 < params.top_k < case.logits.vocab:
        yield ClauseId("top-k.off"), changed(world, top_k=1)
        first = RowRecipe(base=-np.inf, ids=(0,), values=(0.0,))
        yield ClauseId("top-k.off"), replace(world, recipe=first)


def _rounded(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield a row whose float32 values were rounded to bfloat16."""
    if case.dtype is not DType.FLOAT32 or not world.recipe.values:
        return
    narrow = torch.tensor(world.recipe.values, dtype=torch.bfloat16).double().tolist()
    yield ClauseId("input.dtypes"), replace(world, recipe=replace(world.recipe, values=(*narrow,)))


def _divided(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield a half-precision row that was divided by its temperature in its own dtype.

    Where the quotient overflows there is no law left, and any id may come.
    """
    heat = world.request.params.temperature
    if case.dtype not in (DType.FLOAT16, DType.BFLOAT16) or heat in (0.0, 1.0):
        return
    logits = torch.from_numpy(world.recipe.build(case.logits.vocab)).to(case.dtype.torch)
    quotient = (logits.double() / heat).to(case.dtype.torch).double()
    beyond = bool((quotient.isinf() & ~logits.isinf()).any())
    values = () if beyond else tuple(quotient.tolist())
    recipe = RowRecipe(base=-np.inf, ids=tuple(range(len(values))), values=values)
    yield ClauseId("temperature.scale"), replace(changed(world, temperature=1.0), recipe=recipe)


def _fallen(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield a row whose mass beyond top-p goes to the least likely of the candidates.

    A uniform that is not scaled by the kept mass runs off the end of the list.
    """
    params = world.request.params
    if params.top_p >= 1 or params.greedy or params.min_p > 0:
        return
    logits = torch.from_numpy(world.recipe.build(case.logits.vocab)).to(case.dtype.torch)[None]
    whole = changed(world, top_p=1.0)
    laws = [
        target_law(logits, [one.request], world.semantics, thinking=case.thinking)
        for one in (whole, world)
    ]
    if not all(bool(law.valid[0]) for law in laws):
        return
    probs = laws[0].logprobs[0].exp().double().numpy()
    kept = laws[1].hull[0].numpy()
    if kept.sum() >= (probs > 0).sum():
        return
    fallen = np.where(kept, probs, 0.0)
    fallen[np.where(probs > 0, probs, np.inf).argmin()] += 1 - fallen.sum()
    with np.errstate(divide="ignore"):
        values = tuple(np.log(fallen).tolist())
    recipe = RowRecipe(base=-np.inf, ids=tuple(range(len(values))), values=values)
    yield ClauseId("draw.law"), World(recipe, Request(SamplingParams()), world.semantics)


def _placed(world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield a greedy row that gives its place among sorted candidates, which is the first."""
    if world.request.params.greedy:
        first = RowRecipe(base=-np.inf, ids=(0,), values=(0.0,))
        bare = Request(SamplingParams(temperature=0.0))
        yield ClauseId("output.range"), World(first, bare, world.semantics)


def _displaced(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield rows whose filter cuts in the order of ids, or leaves values in the order of ranks."""
    params = world.request.params
    if not params.top_k > 0 and params.top_p >= 1:
        return
    values = world.recipe.build(case.logits.vocab)
    if not np.isfinite(values).any() or np.isnan(values).any() or params.greedy:
        return
    ranks = tuple(float(value) for value in np.sort(values)[::-1])
    ranked = RowRecipe(ids=tuple(range(len(ranks))), values=ranks)
    yield ClauseId("top-k.keep"), replace(world, recipe=ranked)
    if params.top_p < 1:
        weights = np.exp((values - values.max()) / params.temperature)
        above = (weights.cumsum() - weights) / weights.sum()
        cut = np.where(above < params.top_p, values, -np.inf)
        recipe = RowRecipe(ids=tuple(range(len(cut))), values=tuple(cut.tolist()))
        uncut = changed(world, top_p=1.0)
        yield ClauseId("relabel.equivariance"), replace(uncut, recipe=recipe)


def _neighbours(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield rows into which a neighbour's history, parameters or logits leaked."""
    neighbours = dict.fromkeys(zip(case.logits.rows, case.requests, strict=True))
    for recipe, request in neighbours:
        for theirs in _leaked(world.request, request):
            yield ClauseId("penalty.history"), replace(world, request=theirs)
        for params in _mixed(world.request.params, request.params):
            theirs = replace(world.request, params=params)
            yield ClauseId("batch.isolation"), replace(world, request=theirs)
        if recipe != world.recipe:
            yield ClauseId("batch.isolation"), replace(world, recipe=recipe)


def _leaked(own: Request, other: Request) -> Iterator[Request]:
    """Yield what a penalised row would be with a neighbour's output or prompt as its own."""
    if own.params.penalised and own.output != other.output:
        yield replace(own, output=other.output)
    if own.params.penalised and own.prompt != other.prompt:
        yield replace(own, prompt=other.prompt)


def _mixed(own: SamplingParams, theirs: SamplingParams) -> Iterator[SamplingParams]:
    """Yield what a row would ask that got a neighbour's parameters: all, the filters, or one."""
    if own == theirs or own.greedy or theirs.greedy:
        return
    filters = {name: getattr(theirs, name) for name in ("top_k", "top_p", "min_p")}
    yield theirs
    yield replace(own, **filters)
    for name in ("temperature", *filters):
        yield replace(own, **{name: getattr(theirs, name)})


def _made(mistake: _Mistake, world: World) -> World | None:
    """Return the row as the mistake sees it, None where that is no legal row."""
    try:
        return mistake(world)
    except ParameterError:
        return None


def changed(world: World, **fields: object) -> World:
    """Change parameters of the row's request."""
    params = replace(world.request.params, **fields)  # type: ignore[arg-type]  # named by callers
    return replace(world, request=replace(world.request, params=params))


def _without(recipe: RowRecipe, token: int) -> RowRecipe:
    """Ban one id."""
    named = dict(zip(recipe.ids, recipe.values, strict=True)) | {token: -np.inf}
    return replace(recipe, ids=tuple(named), values=tuple(named.values()))


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


def _next_k(world: World) -> World | None:
    k = world.request.params.top_k
    return changed(world, top_k=k + 1) if k > 0 else None


def _previous_k(world: World) -> World | None:
    k = world.request.params.top_k
    return changed(world, top_k=k - 1) if k > 1 else None


def _less_p(factor: float) -> _Mistake:
    def mistake(world: World) -> World | None:
        p = world.request.params.top_p
        return changed(world, top_p=p * factor) if p < 1 else None

    return mistake


def _more_p(share: float) -> _Mistake:
    def mistake(world: World) -> World | None:
        p = world.request.params.top_p
        return changed(world, top_p=p + (1 - p) * share) if p < 1 else None

    return mistake


def _other_min_p(factor: float) -> _Mistake:
    def mistake(world: World) -> World | None:
        share = world.request.params.min_p
        return changed(world, min_p=min(share * factor, 1.0)) if share > 0 else None

    return mistake


def _moved(first: Step, second: Step) -> _Mistake:
    """`first` acts right before `second`."""

    def mistake(world: World) -> World | None:
        order = world.semantics.order
        if first not in order or second not in order:
            return None
        rest = [step for step in order if step is not first]
        rest.insert(rest.index(second), first)
        return replace(world, semantics=replace(world.semantics, order=tuple(rest)))

    return mistake


def _first(step: Step) -> _Mistake:
    """A step acts before everything else."""

    def mistake(world: World) -> World | None:
        order = world.semantics.order
        if step not in order:
            return None
        rest = (step, *(one for one in order if one is not step))
        return replace(world, semantics=replace(world.semantics, order=rest))

    return mistake


def _temperature_last(world: World) -> World | None:
    order = world.semantics.order
    if Step.TEMPERATURE not in order or world.request.params.temperature in {0.0, 1.0}:
        return None
    rest = tuple(step for step in order if step is not Step.TEMPERATURE)
    return replace(world, semantics=replace(world.semantics, order=(*rest, Step.TEMPERATURE)))


def _declared(**fields: object) -> _Mistake:
    def mistake(world: World) -> World | None:
        semantics = replace(world.semantics, **fields)  # type: ignore[arg-type]  # named below
        return replace(world, semantics=semantics)

    return mistake


def _temperature(change: Callable[[float], float]) -> _Mistake:
    def mistake(world: World) -> World | None:
        t = world.request.params.temperature
        return changed(world, temperature=min(change(t), 2.0)) if t > 0 else None

    return mistake


def _repetition_twice(world: World) -> World | None:
    r = world.request.params.repetition_penalty
    return changed(world, repetition_penalty=r * r) if r != 1 else None


def _repetition_by_count(world: World) -> World | None:
    """The repetition penalty acts once for each occurrence of an id: first on the logits, then once."""
    r = world.request.params.repetition_penalty
    seen = Counter((*world.request.prompt, *world.request.output))
    if r == 1 or max(seen.values(), default=0) < 2:
        return None
    named = dict(zip(world.recipe.ids, world.recipe.values, strict=True))
    for token in named.keys() & seen.keys():
        # beyond this it is 0 or infinite in float32 anyway
        more = float(r) ** min(seen[token] - 1, 100)
        named[token] = named[token] / more if named[token] > 0 else named[token] * more
    recipe = replace(world.recipe, ids=tuple(named), values=tuple(named.values()))
    return replace(world, recipe=recipe)


def _counted_twice(request: Request) -> Request:
    """The frequency penalty acts a second time, which is as if every id had come twice as often."""
    return replace(request, output=2 * request.output)


def _repetition_inverted(world: World) -> World | None:
    r = world.request.params.repetition_penalty
    return changed(world, repetition_penalty=1 / r) if r != 1 else None


def _history(change: Callable[[Request], Request]) -> _Mistake:
    def mistake(world: World) -> World | None:
        return replace(world, request=change(world.request))

    return mistake


def _penalties_see(change: Callable[[Request], Request]) -> _Mistake:
    def mistake(world: World) -> World | None:
        return _history(change)(world) if world.request.params.penalised else None

    return mistake


def _once(request: Request) -> Request:
    return replace(request, output=tuple(dict.fromkeys(request.output)))


def _prompt_counts(request: Request) -> Request:
    return replace(request, output=(*request.prompt, *request.output))


_WINDOW = 20
"""Ids of a history of which the others are forgotten."""


def _window(*, first: bool) -> Callable[[Request], Request]:
    """Only the first or the last ids of prompt and output count."""

    def change(request: Request) -> Request:
        prompt, output = request.prompt, request.output
        if first:
            left = max(0, _WINDOW - len(prompt))
            return replace(request, prompt=prompt[:_WINDOW], output=output[:left])
        left = max(0, _WINDOW - len(output))
        kept = prompt[len(prompt) - min(left, len(prompt)) :]
        return replace(request, prompt=kept, output=output[-_WINDOW:])

    return change


def _without_prompt(request: Request) -> Request:
    return replace(request, prompt=())


def _prefix_in_prompt(world: World) -> World | None:
    worded = world.request.params.bad_words_token_ids and not world.request.params.penalised
    return replace(world, request=_prompt_counts(world.request)) if worded else None


def _minimum(more: int) -> _Mistake:
    def mistake(world: World) -> World | None:
        least = world.request.params.min_tokens
        return changed(world, min_tokens=least + more) if least > 0 else None

    return mistake


def _padding_counts(request: Request) -> Request:
    return replace(request, output=(*request.output, 0))


def _bias_twice(world: World) -> World | None:
    doubled = tuple((token, 2 * bias) for token, bias in world.request.params.logit_bias)
    return changed(world, logit_bias=doubled)


def _taken_greedily(warm: bool) -> _Mistake:
    """A random row gives its argmax: one that asks for a temperature, or one that does not."""

    def mistake(world: World) -> World | None:
        params: SamplingParams = world.request.params
        random = params.temperature > 0 and params.n == 1
        return (
            changed(world, temperature=0.0)
            if random and warm == (params.temperature != 1)
            else None
        )

    return mistake


def _drawn(world: World) -> World | None:
    return changed(world, temperature=1.0) if world.request.params.greedy else None


_MISTAKES: tuple[tuple[str, _Mistake], ...] = (
    ("top-k.keep", _next_k),
    ("top-k.keep", _previous_k),
    *(("top-p.keep", _less_p(factor)) for factor in (0.97, 0.9, 0.8, 0.65, 0.5, 0.3)),
    *(("top-p.keep", _more_p(share)) for share in (0.05, 0.2, 0.4, 0.7)),
    *(("min-p.keep", _other_min_p(factor)) for factor in (0.5, 0.75, 1.25, 1.6, 2.5)),
    ("order.pipeline", _moved(Step.TOP_P, Step.TOP_K)),
    ("order.pipeline", _declared(top_p_mass="joint")),
    ("order.pipeline", _moved(Step.MIN_P, Step.TEMPERATURE)),
    ("order.pipeline", _temperature_last),
    ("order.pipeline", _moved(Step.LOGIT_BIAS, Step.MIN_P)),
    ("order.pipeline", _moved(Step.LOGIT_BIAS, Step.THINKING)),
    ("order.pipeline", _moved(Step.FREQUENCY, Step.REPETITION)),
    ("order.pipeline", _moved(Step.PRESENCE, Step.REPETITION)),
    ("top-p.keep", _declared(top_p_cut="inclusive")),
    ("top-k.ties", _declared(top_k_ties="exactly_k")),
    ("top-k.ties", _declared(top_k_ties="all")),
    ("top-p.ties", _declared(top_p_ties="all")),
    ("min-p.keep", _declared(min_p_space="logit")),
    ("temperature.scale", _temperature(lambda t: t * t)),
    ("temperature.scale", _temperature(lambda t: 1 / t)),
    ("order.pipeline", _repetition_twice),
    ("order.pipeline", _penalties_see(_counted_twice)),
    ("order.pipeline", _first(Step.MIN_P)),
    ("penalty.repetition", _repetition_by_count),
    ("penalty.repetition", _repetition_inverted),
    ("penalty.repetition", _declared(repetition_scope=Scope.OUTPUT)),
    ("penalty.frequency", _history(_once)),
    ("penalty.frequency", _declared(count_scope=Scope.PROMPT_OUTPUT)),
    ("mask.min-tokens", _minimum(1)),
    ("mask.min-tokens", _minimum(-1)),
    ("mask.bad-words", _prefix_in_prompt),
    ("penalty.history", _history(_prompt_counts)),
    ("penalty.history", _history(_padding_counts)),
    ("penalty.history", _penalties_see(_without_prompt)),
    ("penalty.history", _penalties_see(_window(first=True))),
    ("penalty.history", _penalties_see(_window(first=False))),
    ("bias.additive", _bias_twice),
    ("greedy.tie", _declared(greedy_ties="any")),
    ("greedy.argmax", _drawn),
    ("temperature.scale", _taken_greedily(warm=True)),
    ("draw.law", _taken_greedily(warm=False)),
)

"""Missteps: mistakes of one step, whatever else is in the batch, with the clauses that they break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from refsampler.conformance.checks.worlds import Mistake, World, changed
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import Scope, Step

__all__ = ["MISSTEPS"]


def _next_k(world: World) -> World | None:
    k = world.request.params.top_k
    return changed(world, top_k=k + 1) if k > 0 else None


def _previous_k(world: World) -> World | None:
    k = world.request.params.top_k
    return changed(world, top_k=k - 1) if k > 1 else None


def _less_p(factor: float) -> Mistake:
    def mistake(world: World) -> World | None:
        p = world.request.params.top_p
        return changed(world, top_p=p * factor) if p < 1 else None

    return mistake


def _more_p(share: float) -> Mistake:
    def mistake(world: World) -> World | None:
        p = world.request.params.top_p
        return changed(world, top_p=p + (1 - p) * share) if p < 1 else None

    return mistake


def _other_min_p(factor: float) -> Mistake:
    def mistake(world: World) -> World | None:
        share = world.request.params.min_p
        return changed(world, min_p=min(share * factor, 1.0)) if share > 0 else None

    return mistake


def _moved(first: Step, second: Step) -> Mistake:
    """`first` acts right before `second`."""

    def mistake(world: World) -> World | None:
        order = world.semantics.order
        if first not in order or second not in order:
            return None
        rest = [step for step in order if step is not first]
        rest.insert(rest.index(second), first)
        return replace(world, semantics=replace(world.semantics, order=tuple(rest)))

    return mistake


def _first(step: Step) -> Mistake:
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


def _declared(**fields: object) -> Mistake:
    def mistake(world: World) -> World | None:
        semantics = replace(world.semantics, **fields)  # type: ignore[arg-type]  # named below
        return replace(world, semantics=semantics)

    return mistake


def _temperature(change: Callable[[float], float]) -> Mistake:
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


def _history(change: Callable[[Request], Request]) -> Mistake:
    def mistake(world: World) -> World | None:
        return replace(world, request=change(world.request))

    return mistake


def _penalties_see(change: Callable[[Request], Request]) -> Mistake:
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


def _minimum(more: int) -> Mistake:
    def mistake(world: World) -> World | None:
        least = world.request.params.min_tokens
        return changed(world, min_tokens=least + more) if least > 0 else None

    return mistake


def _padding_counts(request: Request) -> Request:
    return replace(request, output=(*request.output, 0))


def _bias_twice(world: World) -> World | None:
    doubled = tuple((token, 2 * bias) for token, bias in world.request.params.logit_bias)
    return changed(world, logit_bias=doubled)


def _taken_greedily(warm: bool) -> Mistake:
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


MISSTEPS: tuple[tuple[str, Mistake], ...] = (
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
"""In the order in which they are tried."""

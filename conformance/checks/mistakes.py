"""Mistakes: each makes of a row what a particular wrong sampler would make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from refsampler.backends.protocol import DType
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.missteps import MISSTEPS
from refsampler.conformance.checks.worlds import NEUTRAL, Mistake, World, changed
from refsampler.conformance.logits import RowRecipe
from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.validation import ParameterError

__all__ = ["mistakes"]


_RAISED = 1e-2
"""To which some raise every lower temperature (vLLM's `SamplingParams` does)."""
_LOWERED = (2.0**-6, 2.0**-3)
"""To which some lower every higher temperature; any other one in between gives much the same ids."""
_BARELY_RANDOM = 1e-4
"""Temperatures so low that a wrong threshold takes the row for greedy."""


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
    for clause, mistake in MISSTEPS:
        mistaken = _made(mistake, world)
        if mistaken is not None and mistaken != world:
            yield ClauseId(clause), mistaken
    yield from _placeholders(case, world)
    yield from _neighbours(case, world)
    yield from _unlisted(case, world)
    yield from _displaced(case, world)
    yield from _rounded(case, world)
    yield from _divided(case, world)
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
    if params.top_p >= 1 or params.greedy:
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


def _unlisted(case: Case, world: World) -> Iterator[tuple[ClauseId, World]]:
    """Yield a row that no list restricts and to which the mask of its batch leaves nothing."""
    listed = any(one.params.allowed_token_ids is not None for one in case.requests)
    own = world.request.params.allowed_token_ids
    if listed and (own is None or len({*own}) == case.logits.vocab):
        yield ClauseId("mask.allowed"), replace(world, recipe=RowRecipe(base=-np.inf))


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


def _made(mistake: Mistake, world: World) -> World | None:
    """Return the row as the mistake sees it, None where that is no legal row."""
    try:
        return mistake(world)
    except ParameterError:
        return None


def _without(recipe: RowRecipe, token: int) -> RowRecipe:
    """Ban one id."""
    named = dict(zip(recipe.ids, recipe.values, strict=True)) | {token: -np.inf}
    return replace(recipe, ids=tuple(named), values=tuple(named.values()))

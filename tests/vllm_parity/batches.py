"""The batches of a run: Hypothesis makes them, the same ones for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import TypeVar

from hypothesis import strategies as st

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.examples import collect
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.strategies import cases
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from tests.vllm_parity.sides import MODES, LogprobsMode

T = TypeVar("T")

__all__ = ["ParityCase", "features", "make", "smaller"]


@dataclass(frozen=True, slots=True)
class ParityCase:
    """A batch, the logprobs mode in which it is sampled, and the strategy that made it."""

    case: Case
    mode: LogprobsMode
    source: str


def make(count: int, run_seed: int) -> tuple[ParityCase, ...]:
    """Return `count` distinct batches: 3 in 8 free, 3 in 8 dyadic, the rest for two purposes.

    Dyadic batches are exact in float32 up to the temperature, so nothing there can be excused as
    rounding. Only in batches whose every row is seeded does vLLM's CPU path use the seeds. Batches
    on a boundary tell a strict cut from an inclusive one.
    """
    dtypes = tuple(DType)
    sources: tuple[tuple[str, int, st.SearchStrategy[Case]], ...] = (
        ("dyadic values", 3, cases(calls=1, dtypes=dtypes, dyadic=True)),
        ("every row seeded", 1, cases(calls=1, dtypes=dtypes).map(_all_seeded)),
        ("on a boundary", 1, _boundaries()),
        ("any values", 3, cases(calls=1, dtypes=dtypes)),
    )
    made: list[ParityCase] = []
    for index, (source, share, strategy) in enumerate(sources):
        last = index == len(sources) - 1
        wanted = count - len(made) if last else count * share // 8
        found = collect(strategy, wanted, run_seed + index)
        made += [ParityCase(one, MODES[i % len(MODES)], source) for i, one in enumerate(found)]
    return tuple(made)


@st.composite
def _boundaries(draw: st.DrawFn) -> Case:
    """Rows of equal logits whose number is a power of two, so that float32 mass is exact."""
    vocab = draw(st.integers(1, 80))
    alive = 2 ** draw(st.integers(0, vocab.bit_length() - 1))
    rows, requests = [], []
    for _ in range(draw(st.integers(1, 4))):
        ids = draw(st.permutations(range(vocab)))[:alive]
        level = draw(st.sampled_from([0.0, 1.0, -3.5]))
        rows.append(RowRecipe(base=-math.inf, ids=tuple(ids), values=(level,) * alive))
        params = SamplingParams(
            temperature=draw(st.sampled_from([1.0, 0.5, 2.0])),
            top_k=draw(st.sampled_from([0, 1, alive, vocab])),
            top_p=draw(st.integers(1, alive)) / alive,
            min_p=draw(st.sampled_from([0.0, 1.0])),
            seed=draw(st.one_of(st.none(), st.integers(0, 99))),
        )
        requests.append(Request(params))
    return Case(LogitsRecipe(vocab, tuple(rows)), tuple(requests))


def _all_seeded(case: Case) -> Case:
    """Give each row without a seed its place as a seed."""
    requests = (
        one if one.params.seed is not None else replace(one, params=replace(one.params, seed=place))
        for place, one in enumerate(case.requests)
    )
    return replace(case, requests=tuple(requests))


FEATURES: Mapping[str, Callable[[SamplingParams], bool]] = {
    "greedy rows": lambda p: p.greedy,
    "random rows": lambda p: not p.greedy,
    "temperature": lambda p: not p.greedy and p.temperature != 1,
    "repetition penalty": lambda p: p.repetition_penalty != 1,
    "frequency penalty": lambda p: p.frequency_penalty != 0,
    "presence penalty": lambda p: p.presence_penalty != 0,
    "logit bias": lambda p: bool(p.logit_bias),
    "bad words": lambda p: bool(p.bad_words_token_ids),
    "allow-list": lambda p: p.allowed_token_ids is not None,
    "min tokens": lambda p: p.min_tokens > 0,
    "min-p": lambda p: p.min_p > 0,
    "top-k": lambda p: p.top_k > 0,
    "top-p": lambda p: p.top_p < 1,
    "top-k and top-p": lambda p: p.top_k > 0 and p.top_p < 1,
    "seeded rows": lambda p: p.seed is not None,
    "top logprobs": lambda p: p.logprobs is not None,
    "listed logprobs": lambda p: bool(p.logprob_token_ids),
}


def features(one: ParityCase) -> frozenset[str]:
    """Return what a batch exercises, for the counts in the report."""
    case = one.case
    params = [request.params for request in case.requests]
    found = {name for name, has in FEATURES.items() if any(has(p) for p in params)}
    found |= {f"mode {one.mode}", f"dtype {case.dtype}", f"source {one.source}"}
    if {"greedy rows", "random rows"} <= found:
        found.add("greedy beside random rows")
    if all(p.seed is not None for p in params):
        found.add("every row seeded")
    if any(PLACEHOLDER in request.output for request in case.requests):
        found.add("placeholders in the output")
    if case.layout is not Layout.CONTIGUOUS:
        found.add("logits not contiguous")
    if case.logits.vocab >= 1000:
        found.add("V >= 1000")
    return frozenset(found)


def smaller(one: ParityCase) -> Iterator[ParityCase]:
    """Yield simpler batches: a row less, then a field at its default, then a shorter history."""
    case = one.case
    for row in range(len(case.requests) if len(case.requests) > 1 else 0):
        recipe = LogitsRecipe(case.logits.vocab, _without(case.logits.rows, row))
        fewer = replace(case, logits=recipe, requests=_without(case.requests, row))
        yield replace(one, case=fewer)
    if case.layout is not Layout.CONTIGUOUS:
        yield replace(one, case=replace(case, layout=Layout.CONTIGUOUS))
    for row, request in enumerate(case.requests):
        for simpler in _simpler(request):
            requests = (*case.requests[:row], simpler, *case.requests[row + 1 :])
            yield replace(one, case=replace(case, requests=requests))


def _simpler(request: Request) -> Iterator[Request]:
    params = request.params
    # the strategies ask for no floor; its default would change the temperature
    for field in fields(params):
        if field.name == "temperature_floor" or field.default is MISSING:
            continue
        if getattr(params, field.name) != field.default:
            yield replace(request, params=replace(params, **{field.name: field.default}))
    if request.prompt:
        yield replace(request, prompt=request.prompt[1:])
    if request.output:
        yield replace(request, output=request.output[1:])


def _without(items: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*items[:index], *items[index + 1 :])

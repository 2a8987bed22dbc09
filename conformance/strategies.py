"""Hypothesis strategies for everything a sampler may legally be asked.

Values are dense where samplers go wrong: id 0 and V-1, block edges, ties, boundaries, -inf
backgrounds.  Nothing is filtered away: every choice is made within the legal range.  With
`dyadic=True` logits, biases and penalties lie on a binary grid and temperatures and repetition
penalties are powers of two, so steps 3 to 6 are exact in float32.

`cases` is what a run of the suite draws; `batches` is what fuzzing draws, denser in pairs of features,
and what tests of your own kernel want.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from hypothesis import strategies as st

from refsampler.backends.protocol import DType, Feature
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.fuzz.batches import batches
from refsampler.conformance.logits import LogitsRecipe, RowRecipe, Shape
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.validation import MAX_LISTED_LOGPROBS

__all__ = [
    "EVERYTHING",
    "batches",
    "cases",
    "params",
    "recipes",
    "requests",
    "vocabularies",
]

EVERYTHING = frozenset(Feature)

_EDGES = (1, 2, 3, 5, 8, 31, 32, 33, 127, 128, 129, 257, 1000, 1024, 1025)
_SPECIALS = (65504.0, -65504.0, 0.0, -0.0, -math.inf)
_BASES = st.sampled_from([0.0, 0.0, 0.0, -4.0, -math.inf])
_SHAPES: st.SearchStrategy[Shape] = st.sampled_from(get_args(Shape))
_BACKGROUNDS = st.integers(0, 2**32)
# the grid of 2^-12 leaves float32 room for what biases and penalties add
_DYADIC_SCALES = st.sampled_from([0.25, 1.0, 2.0, 16.0])
_SCALES = st.sampled_from([0.25, 1.0, 2.0, 16.0, 2.0**-10])
_MIN_TOKENS = st.integers(0, 6)
_CHANCES = {one_in: st.integers(0, one_in - 1) for one_in in (2, 3, 4, 5, 8)}


def vocabularies(largest: int = 3000) -> st.SearchStrategy[int]:
    """Vocabulary sizes, mostly small or beside a block edge."""
    edges = [edge for edge in _EDGES if edge <= largest]
    return st.one_of(
        st.sampled_from(edges), st.integers(1, min(40, largest)), st.integers(1, largest)
    )


# Hypothesis validates every strategy that is new to it: made once, they are drawn from twice as fast.
@cache
def _ids(vocab: int) -> st.SearchStrategy[int]:
    """Ids of the vocabulary, often the first or the last."""
    return st.one_of(st.sampled_from(sorted({0, min(1, vocab - 1), vocab - 1})), _below(vocab))


@cache
def _some(
    vocab: int, fewest: int, most: int, *, unique: bool = True
) -> st.SearchStrategy[tuple[int, ...]]:
    """So many ids, mostly distinct ones."""
    return st.lists(_ids(vocab), min_size=fewest, max_size=most, unique=unique).map(tuple)


@cache
def _below(vocab: int) -> st.SearchStrategy[int]:
    return st.integers(0, vocab - 1)


@cache
def _grid(low: int, high: int, step: float) -> st.SearchStrategy[float]:
    """Multiples of a power of two, from low to high of them."""
    return st.integers(low, high).map(lambda n: n * step)


@cache
def _float32(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of float32, no subnormals: those may be flushed on some devices."""
    return st.floats(low, high, width=32, allow_subnormal=False)


@cache
def _levels(dyadic: bool) -> st.SearchStrategy[list[float]]:
    """A few values, which ids share."""
    values = _grid(-640, 640, 1 / 16) if dyadic else _float32(-40.0, 40.0)
    return st.lists(values, min_size=1, max_size=3)


@st.composite
def recipes(draw: st.DrawFn, vocab: int, *, dyadic: bool = False) -> RowRecipe:
    """One row's logits: a background, and a few ids with values of their own, ties among them."""
    levels = draw(_levels(dyadic))
    special = st.sampled_from(levels) if dyadic else st.sampled_from([*levels, *_SPECIALS])
    chosen = draw(_some(vocab, 0, min(vocab, 10)))
    own = tuple(draw(special) for _ in chosen)
    base = draw(_BASES)
    if base == -math.inf and not any(math.isfinite(value) for value in own):
        base = 0.0
    return RowRecipe(
        shape=draw(_SHAPES),
        seed=draw(_BACKGROUNDS),
        base=base,
        scale=draw(_DYADIC_SCALES if dyadic else _SCALES),
        ids=chosen,
        values=own,
    )


@dataclass(frozen=True, slots=True)
class _Choices:
    """What a parameter may be."""

    temperature: st.SearchStrategy[float]
    top_k: st.SearchStrategy[int]
    top_p: st.SearchStrategy[float]
    min_p: st.SearchStrategy[float]
    seed: st.SearchStrategy[int]
    factor: st.SearchStrategy[float]
    step: st.SearchStrategy[float]
    bias: st.SearchStrategy[float]


@cache
def _choices(vocab: int, dyadic: bool) -> _Choices:
    temperatures = [1.0, 1.0, 0.5, 2.0, 0.25] if dyadic else [1.0, 0.7, 0.5, 2.0, 1e-5]
    masses = st.sampled_from([0.5, 0.9, 1.0, 1e-6, 0.25])
    powers = st.sampled_from([0.5, 1.0, 2.0, 4.0])
    factors = st.sampled_from([0.8, 1.1, 1.3, 2.0, 10.0])
    biases = _grid(-160, 160, 1 / 16) if dyadic else _float32(-100.0, 100.0)
    return _Choices(
        temperature=st.sampled_from([0.0, *temperatures]),
        top_k=st.one_of(st.sampled_from([-1, 0, 1, vocab, vocab + 1]), st.integers(1, vocab)),
        top_p=st.one_of(masses, _grid(1, 64, 1 / 64) if dyadic else _float32(2.0**-20, 1.0)),
        min_p=st.sampled_from([0.0, 0.125, 0.5, 1.0]) if dyadic else _float32(0.0, 1.0),
        seed=st.one_of(st.integers(0, 2**31), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
        factor=powers if dyadic else factors,
        step=_grid(-32, 32, 1 / 16) if dyadic else _float32(-2.0, 2.0),
        bias=st.one_of(biases, st.just(-math.inf)),
    )


@cache
def _words(vocab: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    return st.lists(_some(vocab, 1, 3, unique=False), max_size=3).map(tuple)


@cache
def _history(vocab: int, longest: int) -> st.SearchStrategy[list[int]]:
    alphabet = st.one_of(st.just(0), st.integers(0, min(vocab - 1, 3)), _ids(vocab))
    return st.lists(alphabet, max_size=longest)


@st.composite
def params(
    draw: st.DrawFn,
    vocab: int,
    *,
    dyadic: bool = False,
    features: frozenset[Feature] = EVERYTHING,
) -> SamplingParams:
    """Any legal parameters over a vocabulary, as far as `features` reach; most are neutral."""
    made = _choices(vocab, dyadic)
    fields: dict[str, Any] = {"temperature": draw(made.temperature), "temperature_floor": 0.0}

    def sometimes(name: str, values: st.SearchStrategy[object]) -> None:
        if draw(_CHANCES[3]) == 0:
            fields[name] = draw(values)

    sometimes("top_k", made.top_k)
    sometimes("top_p", made.top_p)
    sometimes("min_p", made.min_p)
    if Feature.SEED in features:
        sometimes("seed", made.seed)
    if Feature.PENALTIES in features:
        sometimes("repetition_penalty", made.factor)
        sometimes("frequency_penalty", made.step)
        sometimes("presence_penalty", made.step)
    if Feature.MASKS in features:
        _draw_masks(draw, vocab, fields, dyadic=dyadic)
    if Feature.LOGPROBS in features:
        _draw_logprobs(draw, vocab, fields)
    return SamplingParams(**fields)


def _draw_masks(draw: st.DrawFn, vocab: int, fields: dict[str, Any], *, dyadic: bool) -> None:
    """Add allow-list, bad words, min tokens and bias, each now and then."""
    some = _some(vocab, 1, min(vocab, 8))
    if draw(_CHANCES[5]) == 0:
        fields["allowed_token_ids"] = draw(some)
    if draw(_CHANCES[4]) == 0:
        fields["bad_words_token_ids"] = draw(_words(vocab))
    if draw(_CHANCES[4]) == 0:
        fields |= {
            "stop_token_ids": draw(some)[: max(1, vocab // 2)],
            "eos_token_id": draw(_ids(vocab)),
            "min_tokens": draw(_MIN_TOKENS),
            "max_tokens": None,
        }
    if draw(_CHANCES[4]) == 0:
        biased, values = draw(_some(vocab, 0, min(vocab, 5))), _choices(vocab, dyadic).bias
        fields["logit_bias"] = tuple((token, draw(values)) for token in biased)


def _draw_logprobs(draw: st.DrawFn, vocab: int, fields: dict[str, Any]) -> None:
    """Ask for logprobs now and then: none, some, all, or a list."""
    wanted = draw(_CHANCES[8])
    if wanted == 0:
        fields["logprobs"] = draw(_below(min(vocab, 20) + 1))
    elif wanted == 1:
        most = min(vocab, 6, MAX_LISTED_LOGPROBS)
        fields["logprob_token_ids"] = draw(_some(vocab, 1, most))


@st.composite
def requests(
    draw: st.DrawFn,
    vocab: int,
    *,
    dyadic: bool = False,
    features: frozenset[Feature] = EVERYTHING,
) -> Request:
    """A request with its history: ragged, repeated ids, id 0, placeholders at the end."""
    chosen = draw(params(vocab, dyadic=dyadic, features=features))
    prompt, output = draw(_history(vocab, 12)), draw(_history(vocab, 8))
    if draw(_CHANCES[8]) == 0:
        output.append(PLACEHOLDER)
    banned = chosen.bad_words_token_ids
    if banned and draw(_CHANCES[2]) == 1:
        # a history that ends in the word's beginning, so that its last id is banned
        output = [*output, *banned[0][:-1]]
    return Request(chosen, tuple(prompt), tuple(output))


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    dyadic: bool = False,
    features: frozenset[Feature] = EVERYTHING,
    dtypes: Sequence[DType] = (DType.FLOAT32,),
    largest_vocab: int = 3000,
    most_rows: int = 6,
    calls: int = 2,
) -> Case:
    """A batch of unlike rows over one vocabulary, greedy beside random ones."""
    vocab = draw(vocabularies(largest_vocab))
    count = draw(st.integers(1, most_rows))
    row = recipes(vocab, dyadic=dyadic)
    request = requests(vocab, dyadic=dyadic, features=features)
    return Case(
        logits=LogitsRecipe(vocab, tuple(draw(row) for _ in range(count))),
        requests=tuple(draw(request) for _ in range(count)),
        dtype=draw(st.sampled_from(sorted(dtypes))),
        layout=draw(st.sampled_from(list(Layout))),
        calls=calls,
    )

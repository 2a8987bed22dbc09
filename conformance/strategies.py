"""Hypothesis strategies for everything a sampler may legally be asked.

Values are dense where samplers go wrong: id 0 and V-1, block edges, ties, boundaries, -inf
backgrounds.  Nothing is filtered away: every choice is made within the legal range.  With
`dyadic=True` logits, biases and penalties lie on a binary grid and temperatures and repetition
penalties are powers of two, so steps 3 to 6 are exact in float32.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import hypothesis.errors
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from refsampler.backends.protocol import DType, Feature
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.validation import MAX_LISTED_LOGPROBS

__all__ = [
    "EVERYTHING",
    "cases",
    "collect",
    "params",
    "recipes",
    "requests",
    "shrink",
    "vocabularies",
]

EVERYTHING = frozenset(Feature)

_EDGES = (1, 2, 3, 5, 8, 31, 32, 33, 127, 128, 129, 257, 1000, 1024, 1025)
_ATTEMPTS = 8
"""Runs of Hypothesis until there are enough cases; it draws a few of them twice."""
_FEWEST = 16
"""Examples of a run; the first ones of every run are the same."""

_SPECIALS = (65504.0, -65504.0, 0.0, -0.0, -math.inf)


def vocabularies(largest: int = 3000) -> st.SearchStrategy[int]:
    """Vocabulary sizes, mostly small or beside a block edge."""
    edges = [edge for edge in _EDGES if edge <= largest]
    return st.one_of(
        st.sampled_from(edges), st.integers(1, min(40, largest)), st.integers(1, largest)
    )


def _ids(vocab: int) -> st.SearchStrategy[int]:
    """Ids of the vocabulary, often the first or the last."""
    return st.one_of(st.sampled_from(sorted({0, min(1, vocab - 1), vocab - 1})), _below(vocab))


def _below(vocab: int) -> st.SearchStrategy[int]:
    return st.integers(0, vocab - 1)


def _grid(low: int, high: int, step: float) -> st.SearchStrategy[float]:
    """Multiples of a power of two, from low to high of them."""
    return st.integers(low, high).map(lambda n: n * step)


def _float32(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of float32, no subnormals: those may be flushed on some devices."""
    return st.floats(low, high, width=32, allow_subnormal=False)


@st.composite
def recipes(draw: st.DrawFn, vocab: int, *, dyadic: bool = False) -> RowRecipe:
    """One row's logits: a background, and a few ids with values of their own, ties among them."""
    values = _grid(-640, 640, 1 / 16) if dyadic else _float32(-40.0, 40.0)
    levels = draw(st.lists(values, min_size=1, max_size=3))
    special = st.sampled_from(levels) if dyadic else st.sampled_from([*levels, *_SPECIALS])
    chosen = draw(st.lists(_ids(vocab), max_size=min(vocab, 10), unique=True))
    own = tuple(draw(special) for _ in chosen)
    base = draw(st.sampled_from([0.0, 0.0, 0.0, -4.0, -math.inf]))
    if base == -math.inf and not any(math.isfinite(value) for value in own):
        base = 0.0
    return RowRecipe(
        shape=draw(st.sampled_from(["constant", "uniform", "bell", "zipf"])),
        seed=draw(st.integers(0, 2**32)),
        base=base,
        # the grid of 2^-12 leaves float32 room for what biases and penalties add
        scale=draw(st.sampled_from([0.25, 1.0, 2.0, 16.0, *([] if dyadic else [2.0**-10])])),
        ids=tuple(chosen),
        values=own,
    )


@st.composite
def params(
    draw: st.DrawFn,
    vocab: int,
    *,
    dyadic: bool = False,
    features: frozenset[Feature] = EVERYTHING,
) -> SamplingParams:
    """Any legal parameters over a vocabulary, as far as `features` reach; most are neutral."""
    fields: dict[str, Any] = {}

    def sometimes(name: str, values: st.SearchStrategy[object]) -> None:
        if draw(st.integers(0, 2)) == 0:
            fields[name] = draw(values)

    temperatures = [1.0, 1.0, 0.5, 2.0, 0.25] if dyadic else [1.0, 0.7, 0.5, 2.0, 1e-5]
    fields["temperature"] = draw(st.sampled_from([0.0, *temperatures]))
    fields["temperature_floor"] = 0.0
    sometimes(
        "top_k", st.one_of(st.sampled_from([-1, 0, 1, vocab, vocab + 1]), st.integers(1, vocab))
    )
    masses = st.sampled_from([0.5, 0.9, 1.0, 1e-6, 0.25])
    sometimes(
        "top_p", st.one_of(masses, _grid(1, 64, 1 / 64) if dyadic else _float32(2.0**-20, 1.0))
    )
    sometimes("min_p", st.sampled_from([0.0, 0.125, 0.5, 1.0]) if dyadic else _float32(0.0, 1.0))
    if Feature.SEED in features:
        sometimes(
            "seed", st.one_of(st.integers(0, 2**31), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
        )
    if Feature.PENALTIES in features:
        powers = st.sampled_from([0.5, 1.0, 2.0, 4.0])
        factors = st.sampled_from([0.8, 1.1, 1.3, 2.0, 10.0])
        steps = _grid(-32, 32, 1 / 16) if dyadic else _float32(-2.0, 2.0)
        sometimes("repetition_penalty", powers if dyadic else factors)
        sometimes("frequency_penalty", steps)
        sometimes("presence_penalty", steps)
    if Feature.MASKS in features:
        _draw_masks(draw, vocab, fields, dyadic=dyadic)
    if Feature.LOGPROBS in features:
        _draw_logprobs(draw, vocab, fields)
    return SamplingParams(**fields)


def _draw_masks(draw: st.DrawFn, vocab: int, fields: dict[str, Any], *, dyadic: bool) -> None:
    """Add allow-list, bad words, min tokens and bias, each now and then."""
    some = st.lists(_ids(vocab), min_size=1, max_size=min(vocab, 8), unique=True).map(tuple)
    word = st.lists(_ids(vocab), min_size=1, max_size=3).map(tuple)
    biases = _grid(-160, 160, 1 / 16) if dyadic else _float32(-100.0, 100.0)
    if draw(st.integers(0, 4)) == 0:
        fields["allowed_token_ids"] = draw(some)
    if draw(st.integers(0, 3)) == 0:
        fields["bad_words_token_ids"] = tuple(draw(st.lists(word, max_size=3)))
    if draw(st.integers(0, 3)) == 0:
        fields |= {
            "stop_token_ids": draw(some)[: max(1, vocab // 2)],
            "eos_token_id": draw(_ids(vocab)),
            "min_tokens": draw(st.integers(0, 6)),
            "max_tokens": None,
        }
    if draw(st.integers(0, 3)) == 0:
        biased = draw(st.lists(_ids(vocab), max_size=min(vocab, 5), unique=True))
        values = st.one_of(biases, st.just(-math.inf))
        fields["logit_bias"] = tuple((token, draw(values)) for token in biased)


def _draw_logprobs(draw: st.DrawFn, vocab: int, fields: dict[str, Any]) -> None:
    """Ask for logprobs now and then: none, some, all, or a list."""
    wanted = draw(st.integers(0, 7))
    if wanted == 0:
        fields["logprobs"] = draw(st.integers(0, min(vocab, 20)))
    elif wanted == 1:
        most = min(vocab, 6, MAX_LISTED_LOGPROBS)
        fields["logprob_token_ids"] = tuple(
            draw(st.lists(_ids(vocab), min_size=1, max_size=most, unique=True))
        )


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
    alphabet = st.one_of(st.just(0), st.integers(0, min(vocab - 1, 3)), _ids(vocab))
    prompt = draw(st.lists(alphabet, max_size=12))
    output = draw(st.lists(alphabet, max_size=8))
    if draw(st.integers(0, 7)) == 0:
        output.append(PLACEHOLDER)
    words = chosen.bad_words_token_ids
    if words and draw(st.sampled_from([False, True])):
        # a history that ends in the word's beginning, so that its last id is banned
        output = [*output, *words[0][:-1]]
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


def collect(strategy: st.SearchStrategy[Case], count: int, run_seed: int) -> tuple[Case, ...]:
    """Return `count` distinct cases, the same for the same seed; judging comes afterwards."""
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        if len(found) < count:
            found.setdefault(case.id, case)

    for attempt in range(_ATTEMPTS):
        if len(found) < count:
            wanted = max(count - len(found), _FEWEST)
            _driver(strategy, keep, run_seed + attempt, wanted + wanted // 8, (Phase.generate,))
    return tuple(found.values())


def _driver(
    strategy: st.SearchStrategy[Case],
    body: Callable[[Case], None],
    run_seed: int,
    examples: int,
    phases: tuple[Phase, ...],
) -> None:
    """Run `body` on examples of a strategy, reproducibly and without a database."""

    @hypothesis.seed(run_seed)
    @hypothesis.settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def run(case: Case) -> None:
        body(case)

    run()


def shrink(
    strategy: st.SearchStrategy[Case],
    fails: Callable[[Case], bool],
    run_seed: int,
    examples: int,
    deadline: float,
    candidates: int = 200,
) -> Case | None:
    """Return a smaller case that `fails`, by exact oracles only; None if none was found again.

    The verdict stands whatever happens here: `fails` is asked once a case, and after `candidates`
    cases, or beyond the deadline of the monotonic clock, everything new passes: the search ends.
    """
    known: dict[str, bool] = {}
    smallest: list[Case] = []

    def body(case: Case) -> None:
        if case.id not in known:
            left = len(known) < examples + candidates and time.monotonic() < deadline
            known[case.id] = left and fails(case)
        if known[case.id]:
            smallest[:] = [case]
            raise AssertionError(case.id)

    with contextlib.suppress(AssertionError, hypothesis.errors.HypothesisException):
        _driver(strategy, body, run_seed, examples, (Phase.generate, Phase.shrink))
    return smallest[0] if smallest else None

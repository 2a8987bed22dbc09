"""Hypothesis strategies of batches: a sketch takes seven draws, whatever it becomes.

    from hypothesis import given
    from refsampler.conformance.strategies import batches

    @given(batches(vocab=32))
    def test_my_kernel(case):
        logits = case.build_logits()         # [rows, 32] in the case's dtype and memory layout
        for request in case.requests:        # validated parameters and history, one a row
            ...

Rows get fewer and vocabularies smaller as Hypothesis shrinks; `encode_case` writes the batch that is
left as a file which `refsampler replay` takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import hypothesis
from hypothesis import strategies as st

from refsampler.backends.protocol import DType, Feature
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.fuzz.asks import asks_of
from refsampler.conformance.fuzz.oracles import CLAUSES
from refsampler.conformance.fuzz.sketch import MODES, Sketch, features_in, pairs_of

__all__ = ["batches", "sketch_of", "sketches"]

_SMALL = (1, 2, 3, 4, 7, 8, 8, 12, 16, 16, 31, 32, 33, 48, 64)
_LARGE = (127, 128, 129, 257, 1024, 1025)
_MANY = 10
_SEEDS = st.integers(0, 2**32 - 1)
_LAYOUTS = (Layout.CONTIGUOUS, Layout.CONTIGUOUS, *Layout)
_ROWS = (1, 2, 2, 3, 3, 4, 5, 6, 8, _MANY)


def sketch_of(
    seed: int, *, features: frozenset[Feature], dtypes: Sequence[DType], modes: Sequence[str]
) -> Sketch:
    """Return the batch that a seed stands for; other arguments as of `batches`.

    For loops that make their findings smaller themselves: seven draws of Hypothesis take longer than
    writing the batch out.
    """
    rng = Random(seed)
    asks = asks_of(features)
    return Sketch(
        mode=rng.choice(modes),
        vocab=rng.choice(_SMALL),
        rows=rng.choice(_ROWS),
        pair=rng.choice(pairs_of(asks)),
        seed=rng.getrandbits(32),
        asks=asks,
        dtype=rng.choice(sorted(dtypes)),
        layout=rng.choice(_LAYOUTS),
    )


@st.composite
def sketches(
    draw: st.DrawFn,
    *,
    features: frozenset[Feature] = frozenset(Feature),
    dtypes: Sequence[DType] = (DType.FLOAT32,),
    vocabularies: Sequence[int] = _SMALL,
    modes: Sequence[str] = MODES,
    most_rows: int = _MANY,
) -> Sketch:
    """Draw a batch in a few words; arguments as of `batches`."""
    asks = asks_of(features)
    return Sketch(
        mode=draw(st.sampled_from(modes)),
        vocab=draw(st.sampled_from(vocabularies)),
        rows=draw(st.integers(1, most_rows)),
        pair=draw(st.sampled_from(pairs_of(asks))),
        seed=draw(_SEEDS),
        asks=asks,
        dtype=draw(st.sampled_from(sorted(dtypes))),
        layout=draw(st.sampled_from(_LAYOUTS)),
    )


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    features: Collection[Feature] = frozenset(Feature),
    dtypes: Sequence[DType] = (DType.FLOAT32,),
    vocab: int | None = None,
    modes: Sequence[str] = MODES,
    most_rows: int = _MANY,
) -> Case:
    """Batches that samplers get wrong: two features meet in a row of a dangerous shape.

    Args:
        draw: of Hypothesis.
        features: what requests may ask for; without `seed`, `masks`, `penalties` or `logprobs` none
            does.  Temperature, min-p, top-k and top-p always come up.
        dtypes: of the logits.
        vocab: V; None draws sizes up to 1025, mostly small or beside a block edge.
        modes: kinds of batches, of `refsampler.conformance.fuzz.sketch.MODES`.
        most_rows: a batch of mode `copies` has 256 equal rows all the same.

    """
    sizes = (*_SMALL, *_LARGE) if vocab is None else (vocab,)
    sketch = draw(
        sketches(
            features=frozenset(features),
            dtypes=dtypes,
            vocabularies=sizes,
            modes=modes,
            most_rows=most_rows,
        )
    )
    case = sketch.case(*CLAUSES)
    hypothesis.event(f"mode {sketch.mode}")
    for name in sorted({one for request in set(case.requests) for one in features_in(request)}):
        hypothesis.event(f"asks {name}")
    return case

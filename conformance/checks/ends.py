"""The ends of the noise: rows of dead ids, drawn until a noise value of odds 2^-24 has come.

An id of probability 0 can be drawn only where the noise is exactly 0, 1 or not a number; so a right
backend never shows one, whatever it draws, and nothing is charged.  Backends that draw from the
generators they are handed are given the ends at once.
"""

from __future__ import annotations

import math

import numpy as np

from refsampler.backends.protocol import Capabilities, DType
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.checks.given import ask_given, takes_given
from refsampler.conformance.designed.build import Row, batch, request, row
from refsampler.conformance.noise import MOST_WORDS
from refsampler.conformance.subject import OpenSubject

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("draw.support")
_WIDE = 2**15
_ELEMENTS = 2**21
"""Logits of one call of a wide row."""
_SECONDS = 2.5
"""What a case took with the native sampler on one core."""


def _wide(capabilities: Capabilities, cases: int) -> tuple[Case, ...]:
    """Return one id among dead ones, 2^25 elements a case: noise for each id."""
    most = capabilities.max_elements or _ELEMENTS
    calls = math.ceil(2**25 / min(_ELEMENTS, max(most, _WIDE)))
    return tuple(
        batch(_WIDE, [(row({(7919 * place + 5) % _WIDE: 0.0}), request())], _CLAUSE, calls=calls)
        for place in range(cases)
    )


def _quick(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    return _wide(capabilities, 2)


def _full(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    """Return more of the same, and half precision where the backend sees it."""
    quick = {one.id for one in _quick(capabilities, run_seed)}
    wide = _wide(capabilities, 8)
    halves = tuple(
        batch(
            _WIDE, list(zip(one.logits.rows, one.requests, strict=True)), _CLAUSE,
            calls=one.calls, dtype=dtype,
        )
        for dtype in _halves(capabilities)
        for one in wide
    )  # fmt: skip
    return tuple(one for one in (*wide, *halves) if one.id not in quick)


def _halves(capabilities: Capabilities) -> list[DType]:
    """Return the narrow dtypes that the backend sees; a kernel gets float32 from the pipeline."""
    narrow = {DType.FLOAT16, DType.BFLOAT16} & capabilities.dtypes
    return sorted(narrow, reverse=True) if capabilities.level > 1 else []


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Draw call by call, and look for any other id than the live one."""
    vocab = case.logits.vocab
    rows = max(1, 2**25 // vocab // case.calls)
    live = int(case.logits.rows[0].ids[0])
    for call in range(case.calls):
        ids = subject.sample_many(case, rows, call)
        wrong = np.flatnonzero(ids != live)
        if len(wrong):
            seen = f"id {ids[wrong[0]]} in {len(wrong)} of {rows} draws"
            found = Finding(_CLAUSE, f"id {live}, the only one of the support", seen, call=call)
            return Asked((found,), (call + 1) * rows)
    return Asked((), case.calls * rows)


_USUAL = 0x5A5A5A5A
_LAST = 2**32 - 1
_NEAR = 2**21
_ENDS = (
    (0, _USUAL),
    (_USUAL, 0),
    (_LAST, _USUAL),
    (_USUAL, _LAST),
    (0, _NEAR),
    (_LAST, _LAST + 1 - _NEAR),
)
"""Words of 32 bits that take turns in the noise of a row.

Uniforms of 24 or 32 bits are 0, or the largest below 1, at every other id.  Those of 53 bits take 21
bits of one word and the next one: the last two pairs bring them within 2^-32 of their ends, which
they reach with odds below e^-35.
"""


def _set(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return seeded rows with dead ids first, last and around the live ones, by two and by many.

    A sampler is asked in every dtype: its noise may follow that of the logits.
    """
    if not takes_given(capabilities):
        return ()
    two: list[Row] = [(row({place: 0.0}), request(seed=3)) for place in (0, 1)]
    many: list[Row] = [
        (row({place: -0.5 * rank for rank, place in enumerate(ids)}), request(seed=3, **asked))
        for ids in ((17,), (20, 39), (0, 20), (5, 30, 11))
        for asked in ({}, {"top_k": 1}, {"top_p": 0.3})
    ]
    half: list[Row] = [*many[1:2], (row(dict.fromkeys(range(1000, 2000), 0.0)), request(seed=3))]
    shapes = ((2, two), (40, many), (2000, half))
    return tuple(
        batch(vocab, rows * len(_ENDS), _CLAUSE, dtype=dtype)
        for dtype in (DType.FLOAT32, *_halves(capabilities))
        for vocab, rows in shapes
    )


def _ask_set(subject: OpenSubject, case: Case) -> Asked:
    """Hand every row a generator that gives the ends of its noise, and look for dead ids."""
    rows = len(case.requests)
    pairs = (_ENDS[place * len(_ENDS) // rows] for place in range(rows))
    words = [np.resize(np.array(pair, np.uint32), MOST_WORDS) for pair in pairs]
    return ask_given(subject, case, words, "noise at the ends of its range")


CHECKS: tuple[Check, ...] = (
    Check("noise-ends-given", (_CLAUSE,), Kind.EXACT, _set, ask=_ask_set),
    Check("noise-ends", (_CLAUSE,), Kind.EXACT, _quick, ask=_ask, seconds=_SECONDS),
    Check(
        "noise-ends-long",
        (_CLAUSE,),
        Kind.EXACT,
        _full,
        ask=_ask,
        profiles=("full",),
        seconds=_SECONDS,
    ),
)

"""The ends of the noise: rows of dead ids, drawn until a noise value of odds 2^-24 has come.

An id of probability 0 can be drawn only where the noise is exactly 0, 1 or not a number; so a right
backend never shows one, whatever it draws, and nothing is charged.
"""

from __future__ import annotations

import math

import numpy as np

from refsampler.backends.protocol import Capabilities, DType
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.subject import OpenSubject

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("draw.support")
_WIDE = 2**15
_ELEMENTS = 2**21
"""Logits of one call of a wide row."""
_ROWS = 2**16
"""Rows of one call of two ids."""


def _wide(capabilities: Capabilities, cases: int) -> tuple[Case, ...]:
    """Return one id among dead ones, 2^25 elements a case: noise for each id."""
    most = capabilities.max_elements or _ELEMENTS
    calls = math.ceil(2**25 / min(_ELEMENTS, max(most, _WIDE)))
    return tuple(
        batch(_WIDE, [(row({(7919 * place + 5) % _WIDE: 0.0}), request())], _CLAUSE, calls=calls)
        for place in range(cases)
    )


def _narrow(cases: int) -> tuple[Case, ...]:
    """Return two ids of which one is dead, 2^22 draws a case: one uniform a row."""
    return tuple(
        batch(2, [(row({place % 2: float(place // 2)}), request())], _CLAUSE, calls=2**22 // _ROWS)
        for place in range(cases)
    )


def _quick(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    return _wide(capabilities, 2)


def _full(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    """Return more of the same, rows of two ids, and half precision where the backend sees it."""
    quick = {one.id for one in _quick(capabilities, run_seed)}
    narrow = _narrow(48) if capabilities.level < 3 else ()
    # a kernel gets float32 from the pipeline
    half = (
        {DType.FLOAT16, DType.BFLOAT16} & capabilities.dtypes if capabilities.level > 1 else set()
    )
    wide = _wide(capabilities, 8)
    halves = tuple(
        batch(
            _WIDE, list(zip(one.logits.rows, one.requests, strict=True)), _CLAUSE,
            calls=one.calls, dtype=dtype,
        )
        for dtype in sorted(half)
        for one in wide
    )  # fmt: skip
    return tuple(one for one in (*wide, *narrow, *halves) if one.id not in quick)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Draw call by call, and look for any other id than the live one."""
    vocab = case.logits.vocab
    rows = _ROWS if vocab == 2 else max(1, 2**25 // vocab // case.calls)
    live = int(case.logits.rows[0].ids[0])
    for call in range(case.calls):
        ids = subject.sample_many(case, rows, call)
        wrong = np.flatnonzero(ids != live)
        if len(wrong):
            seen = f"id {ids[wrong[0]]} in {len(wrong)} of {rows} draws"
            found = Finding(_CLAUSE, f"id {live}, the only one of the support", seen, call=call)
            return Asked((found,), (call + 1) * rows)
    return Asked((), case.calls * rows)


CHECKS: tuple[Check, ...] = (
    Check("noise-ends", (_CLAUSE,), Kind.EXACT, _quick, ask=_ask),
    Check("noise-ends-long", (_CLAUSE,), Kind.EXACT, _full, ask=_ask, profiles=("full",)),
)

"""Running sums against one uniform a row: ids without mass, drawn until a rare uniform has come.

Where sums of a row are added up block by block, an id without mass may end above the sum before it,
and a uniform between the two draws it; so may a uniform of exactly 0 or 1.  A right backend never
shows such an id, so nothing is charged.  Backends that draw from the generators they are handed are
given those uniforms at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.checks.given import ask_given, takes_given
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.logits import RowRecipe, hashed
from refsampler.conformance.noise import MOST_WORDS
from refsampler.conformance.subject import OpenSubject

__all__ = ["CHECKS"]

_CLAUSE = ClauseId("draw.support")
_UNEVEN: Final = 2**11
_PATTERNS: Final = 8
_PAIRS: Final = 30
_DRAWS: Final = {_UNEVEN: 80 * 2**10, 2: 2**22}
"""Vocabulary -> draws of a case.  Uneven rows take 1.3e9 logits in all: sums that are rounded to 24
bits leak 4e-9 of a draw for each, so that five wrong ids are expected, and none comes with
probability 0.5 %.  Rows of two take 1.3e8 uniforms, of which 7.5 are the rarest of 24 bits."""
_ELEMENTS: Final = 2**21
"""Logits of one call of an uneven row, if the backend takes so many."""
_ROWS: Final = 2**16
"""Rows of one call of two ids."""
_GIVEN: Final = 2**10
"""Vocabulary of rows that are given their uniforms: ten additions of a sum by halves."""
_PLACES: Final = 24
"""Ids without mass of a row at whose sums it is asked."""
_BESIDE: Final = (-1, 0, 1)
"""Steps of 2^-24 beside a sum; sums of different order differ by about one."""
_UNEVEN_S: Final = 4.0
_PAIR_S: Final = 2.5
"""What a case took with the native sampler on one core."""


def _uneven(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return rows of which a third of the ids, by hash, are live, and hardly two of them equal."""
    elements = min(capabilities.max_elements or _ELEMENTS, _ELEMENTS)
    calls = math.ceil(_DRAWS[_UNEVEN] / max(1, elements // _UNEVEN))
    rows = [_uneven_row(seed, _UNEVEN) for seed in range(_PATTERNS)]
    return tuple(batch(_UNEVEN, [(one, request())], _CLAUSE, calls=calls) for one in rows)


def _uneven_row(seed: int, vocab: int) -> RowRecipe:
    hashes = hashed(seed, vocab)
    live = np.flatnonzero(hashes % np.uint64(3) == 0).tolist()
    values = ((hashes >> np.uint64(40)) / np.float64(2**22))[live].tolist()
    return row(dict(zip(live, values, strict=True)))


def _pairs(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return rows of two ids of which one is dead."""
    cases = range(_PAIRS if capabilities.level < 3 else 0)
    rows = [row({place % 2: float(place // 2)}) for place in cases]
    elements = capabilities.max_elements or 2 * _ROWS
    calls = math.ceil(_DRAWS[2] / max(1, min(_ROWS, elements // 2)))
    return tuple(batch(2, [(one, request())], _CLAUSE, calls=calls) for one in rows)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Draw call by call, and look for an id that has no mass."""
    vocab = case.logits.vocab
    dead = np.isneginf(case.logits.build()[0].numpy())
    rows = math.ceil(_DRAWS[vocab] / case.calls)
    for call in range(case.calls):
        ids = subject.sample_many(case, rows, call)
        # what is out of range is another clause's
        ids = ids[(ids >= 0) & (ids < vocab)]
        wrong = ids[dead[ids]]
        if len(wrong):
            seen = f"id {wrong[0]}, which has none, in {len(wrong)} of {rows} draws"
            found = Finding(_CLAUSE, "an id that has mass", seen, call=call)
            return Asked((found,), (call + 1) * rows)
    return Asked((), case.calls * rows)


def _given(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return such rows with a seed, one for each uniform that they are asked at."""
    if not takes_given(capabilities):
        return ()
    count = _PLACES * len(_BESIDE) * len(_FORMS)
    rows = [_uneven_row(seed, _GIVEN) for seed in (0, 1)]
    return tuple(batch(_GIVEN, [(one, request(seed=3))] * count, _CLAUSE) for one in rows)


def _float(grid: int) -> tuple[int, ...]:
    return (grid,)


def _double(grid: int) -> tuple[int, ...]:
    """Return the words of grid 2^-24: 21 bits in one, the other three lead the next."""
    return (grid >> 3, (grid & 7) << 29)


_FORMS: Final[tuple[Callable[[int], tuple[int, ...]], ...]] = (
    _float,
    _double,
    lambda grid: _float(2**24 - grid),
    lambda grid: _double(2**24 - grid),
)
"""Words of a uniform of 24 or of 53 bits, and of one that is taken from 1."""


def _ask_given(subject: OpenSubject, case: Case) -> Asked:
    """Give each row a uniform at or beside the sum where one of its ids without mass begins."""
    mass = torch.softmax(case.logits.build()[0].double(), dim=-1)
    grid = (mass.cumsum(dim=-1) * 2**24).round().long().numpy()
    empty = np.flatnonzero((mass.numpy() == 0) & (grid > 1) & (grid < 2**24 - 1))
    places = empty[np.linspace(0, len(empty) - 1, _PLACES).astype(int)]
    words = [
        np.resize(np.array(form(int(grid[place]) + beside), np.uint32), MOST_WORDS)
        for form in _FORMS
        for beside in _BESIDE
        for place in places
    ]
    return ask_given(subject, case, words, "a uniform where the running sum stands still")


CHECKS: tuple[Check, ...] = (
    Check("running-sums-given", (_CLAUSE,), Kind.EXACT, _given, ask=_ask_given),
    Check(
        "running-sums",
        (_CLAUSE,),
        Kind.EXACT,
        _uneven,
        ask=_ask,
        profiles=("full",),
        seconds=_UNEVEN_S,
    ),
    Check(
        "ends-of-two",
        (_CLAUSE,),
        Kind.EXACT,
        _pairs,
        ask=_ask,
        profiles=("full",),
        seconds=_PAIR_S,
    ),
)

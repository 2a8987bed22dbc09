"""Expected: the exact laws of a batch, computed once for rows that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float64, Int64

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case, CaseId
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.law import target_law
from refsampler.request import Request, ThinkingMarkers
from refsampler.semantics import Semantics

_LARGEST = float(np.finfo(np.float32).max)
_REMEMBERED = 4096
"""Logits of rows whose laws are kept: a hundred kilobytes at most."""

__all__ = ["Expected", "RowExpected", "expect_rows"]


@dataclass(frozen=True, slots=True)
class RowExpected:
    """What a right backend may give for one row.

    Attributes:
        greedy: the row takes an argmax.
        valid: the row has a law; without one any id in range is right.
        allowed: ids that may be given: the hull, or the admissible argmaxes of a greedy row.
        core: ids that every right backend keeps.
        least: [vocab] log-probability that an id has at least, whatever else is kept.
        most: [vocab] log-probability that it has at most.
        tied: equals of which a known number is kept, nobody knows which.
        count: that number.
        magnitude: M, the law is known to a total variation of 2^-23 M.
        together: probability that one of the tied comes, at least.

    """

    greedy: bool
    valid: bool
    allowed: Bool[np.ndarray, " vocab"]
    core: Bool[np.ndarray, " vocab"]
    least: Float64[np.ndarray, " vocab"]
    most: Float64[np.ndarray, " vocab"]
    tied: Bool[np.ndarray, " vocab"]
    count: int
    magnitude: float = 0.0
    together: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The laws of a batch.

    Attributes:
        distinct: one for each kind of row.
        kind_of: row -> its place in `distinct`.

    """

    distinct: tuple[RowExpected, ...]
    kind_of: Int64[np.ndarray, " num_tokens"]

    @staticmethod
    def of(case: Case, semantics: Semantics) -> Expected:
        """Compute the laws of a case; seeds and logprobs asked for do not matter."""
        if len(case.requests) * case.logits.vocab <= _REMEMBERED:
            return _expected_again(_Named(case.id, semantics, case))
        return _expected(case, semantics)

    def row(self, row: int) -> RowExpected:
        """Return what is expected of a row of the batch."""
        return self.distinct[int(self.kind_of[row])]


@dataclass(frozen=True, slots=True)
class _Named:
    """A case by its id, which is cheaper to compare than the case."""

    case_id: CaseId
    semantics: Semantics
    case: Case = field(compare=False)


# a batch is asked about twice: when it is judged, and when its draws go to the law
@lru_cache(maxsize=4)
def _expected_again(named: _Named) -> Expected:
    return _expected(named.case, named.semantics)


def _expected(case: Case, semantics: Semantics) -> Expected:
    kinds: dict[tuple[RowRecipe, Request], int] = {}
    rows = list(zip(case.logits.rows, case.requests, strict=True))
    # copies of a row share its objects
    shared = {(id(recipe), id(request)): (recipe, request) for recipe, request in rows}
    places = {
        key: kinds.setdefault((recipe, _lawful(request)), len(kinds))
        for key, (recipe, request) in shared.items()
    }
    kind_of = [places[id(recipe), id(request)] for recipe, request in rows]
    distinct = _laws(case, tuple(kinds), semantics) if kinds else ()
    return Expected(distinct, np.array(kind_of, dtype=np.int64))


def expect_rows(
    case: Case, rows: Sequence[tuple[RowRecipe, Request]], semantics: Semantics
) -> tuple[RowExpected, ...]:
    """Return what is expected of rows under the case's dtype and thinking markers."""
    return _laws(case, [(recipe, _lawful(request)) for recipe, request in rows], semantics)


def _lawful(request: Request) -> Request:
    """Return the request without what cannot change its law."""
    asked = request.params
    if (asked.seed, asked.logprobs, asked.logprob_token_ids) == (None, None, None):
        return request
    params = replace(asked, seed=None, logprobs=None, logprob_token_ids=None)
    return replace(request, params=params)


def _laws(
    case: Case, rows: Sequence[tuple[RowRecipe, Request]], semantics: Semantics
) -> tuple[RowExpected, ...]:
    vocab, dtype, thinking = case.logits.vocab, case.dtype, case.thinking
    made = _laws_again if len(rows) * vocab <= _REMEMBERED else _laws_of
    return made(vocab, dtype, thinking, tuple(rows), semantics)


def _laws_of(
    vocab: int,
    dtype: DType,
    thinking: ThinkingMarkers | None,
    rows: tuple[tuple[RowRecipe, Request], ...],
    semantics: Semantics,
) -> tuple[RowExpected, ...]:
    logits = LogitsRecipe(vocab, tuple(row for row, _ in rows)).build(dtype.torch)
    law = target_law(logits, [request for _, request in rows], semantics, thinking=thinking)
    core_ids, admissible = (law.core & ~law.lumped).numpy(), law.admissible.numpy()
    lumped, logprobs = law.lumped.numpy(), law.logprobs.numpy()
    certain, processed = law.core.numpy(), law.processed.numpy()
    found = []
    for place in range(len(rows)):
        greedy, magnitude = bool(law.greedy[place]), float(law.magnitude[place])
        # beyond the largest float32 there is no number left to compare
        valid = bool(law.valid[place]) and magnitude <= _LARGEST
        core, allowed, tied = core_ids[place], admissible[place], lumped[place]
        least = most = logprobs[place]
        if greedy:
            core = allowed
            most = np.where(allowed, 0.0, -np.inf)
            least = most if allowed.sum() == 1 else np.full_like(most, -np.inf)
        elif valid and not bool(law.exact[place]):
            least, most = _bounds(processed[place], certain[place], magnitude)
        if tied.any():
            # a tied id is kept by some right backends only
            most = np.where(tied, 0.0, most)
        count, together = int(law.lump_count[place]), 0.0
        if count and not greedy and bool(law.exact[place]):
            together = max(0.0, float(law.lump_logprob[place].exp()) - 2.0**-22 * magnitude)
        made = (greedy, valid, allowed, core, least, most, tied, count, magnitude, together)
        found.append(RowExpected(*made))
    return tuple(found)


# the same rows are asked of many subjects in an audit, and with the same mistakes in mind
_laws_again = lru_cache(maxsize=2048)(_laws_of)


def _bounds(
    x: Float64[np.ndarray, " vocab"], core: Bool[np.ndarray, " vocab"], magnitude: float
) -> tuple[Float64[np.ndarray, " vocab"], Float64[np.ndarray, " vocab"]]:
    """Return log-probabilities against the largest and the smallest kept set.

    Float32 may move two logits against each other by 2^-21 of the larger one, or of what came before.
    """
    finite = np.isfinite(x)
    top = x[finite].max()
    slack = np.where(finite, 2.0**-21 * np.maximum(np.abs(x), max(abs(top), magnitude)), 0.0)
    smallest = x[core & finite] if (core & finite).any() else x[finite].max(keepdims=True)
    largest_sum, smallest_sum = np.logaddexp.reduce(x[finite]), np.logaddexp.reduce(smallest)
    least = np.where(core, x - largest_sum - slack, -np.inf)
    most = np.where(finite, np.minimum(x - smallest_sum + slack, 0.0), -np.inf)
    return least, most

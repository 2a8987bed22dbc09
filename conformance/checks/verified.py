"""What one verified step may emit: a walk over the positions, each with its exact target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64
from torch import Tensor

from refsampler.conformance.case import Case
from refsampler.conformance.verifying import Step
from refsampler.law import target_law
from refsampler.request import PLACEHOLDER
from refsampler.semantics import Semantics

__all__ = ["Place", "places_of", "wrong_walk"]

_MARGIN = 1e-5
"""Target and draft probabilities nearer than this, relatively, may compare either way."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One position of one request.

    Attributes:
        greedy: the argmax is taken.
        allowed: ids that a right backend may give there.
        probs: exact target law of a random request.
        draft: the draft, None at the bonus position.
        draft_law: that it came from.
        known: no rounding and no ties leave open what the filters keep, so that `probs` is what
            every right backend compares.

    """

    greedy: bool
    allowed: Bool[np.ndarray, " vocab"]
    probs: Float64[np.ndarray, " vocab"]
    draft: int | None
    draft_law: Float64[np.ndarray, " vocab"]
    known: bool = True

    def may_accept(self) -> bool:
        """Whether some noise accepts the draft."""
        if self.draft is None or self.draft == PLACEHOLDER:
            return False
        drafted = self.greedy or bool(self.draft_law[self.draft] > 0)
        return bool(drafted and self.allowed[self.draft])

    def must_accept(self) -> bool:
        """Whether every noise accepts the draft."""
        if not self.may_accept():
            return False
        if self.greedy:
            return int(self.allowed.sum()) == 1
        p, q = self.probs[self.draft], self.draft_law[self.draft]
        return self.known and bool(p >= q * (1 + _MARGIN))

    def others(self) -> Bool[np.ndarray, " vocab"]:
        """Return the ids that may be emitted where the draft is not accepted."""
        if self.draft is None or self.draft == PLACEHOLDER:
            return self.allowed
        if self.must_accept():
            return np.zeros_like(self.allowed)
        if self.greedy:
            return np.asarray(self.allowed & (np.arange(self.allowed.size) != self.draft))
        if not self.known:
            return self.allowed
        surely = self.allowed & (self.probs > self.draft_law * (1 + _MARGIN))
        maybe = self.allowed & (self.probs > self.draft_law * (1 - _MARGIN))
        return maybe if surely.any() else self.allowed


def places_of(case: Case, step: Step, semantics: Semantics) -> tuple[tuple[Place, ...], ...]:
    """Return the positions of every request of a case whose rows are positions."""
    plain = tuple(replace(one, drafts=()) for one in case.requests)
    law = target_law(case.build_logits(), plain, semantics, thinking=case.thinking)
    vocab = case.logits.vocab
    laws = None if step.draft_probs is None else step.draft_probs.cpu()
    known = law.greedy | (law.exact & (law.lump_count == 0))
    found, row, draft = [], 0, 0
    for one in step.requests:
        places = []
        for place in range(len(one.drafts) + 1):
            token = one.drafts[place] if place < len(one.drafts) else None
            places.append(
                Place(
                    bool(law.greedy[row]),
                    law.admissible[row].numpy(),
                    law.logprobs[row].exp().numpy(),
                    token,
                    _law_of(token, laws, draft, vocab),
                    bool(known[row]),
                )
            )
            row, draft = row + 1, draft + (token is not None)
        found.append(tuple(places))
    return tuple(found)


def _law_of(
    token: int | None, laws: Tensor | None, draft: int, vocab: int
) -> Float64[np.ndarray, " vocab"]:
    """Return the law that a draft came from; certain of it if none is given."""
    if laws is not None and token is not None:
        law: Float64[np.ndarray, " vocab"] = laws[draft].double().numpy()
        return law
    certain: Float64[np.ndarray, " vocab"] = (np.arange(vocab) == token).astype(np.float64)
    return certain


def wrong_walk(places: tuple[Place, ...], ids: tuple[int, ...]) -> str:
    """Say where what a request emitted cannot be; empty if a right verifier may emit it."""
    return next(_wrong(places, ids), "")


def _wrong(places: tuple[Place, ...], ids: tuple[int, ...]) -> Iterator[str]:
    for at, token in enumerate(ids):
        place = places[at]
        goes_on = at + 1 < len(ids)
        where = (
            f"position {at + 1}, draft {place.draft}" if place.draft is not None else "the bonus"
        )
        if goes_on and not (token == place.draft and place.may_accept()):
            yield f"id {token} at {where} is followed by another"
        accepted = goes_on and token == place.draft
        if not accepted and not place.others()[token]:
            if place.must_accept() and token == place.draft:
                yield f"nothing follows the draft accepted at {where}"
            yield f"id {token} at {where}, where {_several(place)}"


def _several(place: Place) -> str:
    ids = np.flatnonzero(place.others()).tolist()
    if not ids:
        return "the draft is accepted for sure"
    some = ", ".join(map(str, ids[:4]))
    return f"only {some}{' ..' if len(ids) > 4 else ''} may be emitted in its place"

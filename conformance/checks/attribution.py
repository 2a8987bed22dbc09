"""Which clause a wrong id speaks about: the one step that, taken off or replaced, explains it.

A sampler that draws a wrong id has broken some clause; the case alone does not say which.  Each
alternative below is a law that a particular mistake would have.  The first one that allows what was
seen and demands what it demands names the clause; the case's own clauses are asked first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int64

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import CERTAIN
from refsampler.conformance.checks.expected import RowExpected, expect_rows
from refsampler.conformance.checks.mistakes import mistakes
from refsampler.conformance.checks.worlds import NEUTRAL, World, changed
from refsampler.semantics import Semantics

__all__ = ["CERTAIN", "Attribution", "Evidence", "Kept", "Seen", "attribute"]


class Evidence(Protocol):
    """Something seen of a row, which a law allows or not."""

    def fits(self, law: RowExpected) -> bool:
        """Whether a right backend of that law could have shown it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How often each id was drawn for equal rows.

    Attributes:
        counts: of ids in range.
        fresh: the draws are independent, so that an id that never comes says something.
        near_certain: what is improbable beyond e^-certain counts as impossible.
        certain: nats.

    """

    counts: Int64[np.ndarray, " vocab"]
    fresh: bool = True
    near_certain: bool = True
    certain: float = CERTAIN

    @property
    def draws(self) -> int:
        """How many draws there were."""
        return int(self.counts.sum())

    def impossible(self, law: RowExpected) -> Int64[np.ndarray, " ids"]:
        """Return drawn ids that the law excludes."""
        return np.flatnonzero((self.counts > 0) & ~law.allowed)

    def improbable(self, law: RowExpected) -> Int64[np.ndarray, " ids"]:
        """Return drawn ids whose summed mass is below e^-certain."""
        if not self.near_certain:
            return np.empty(0, np.int64)
        tiny = law.allowed & (law.most < -self.certain - np.log(max(1, law.allowed.sum())))
        return np.flatnonzero((self.counts > 0) & tiny)

    def missing(self, law: RowExpected) -> Int64[np.ndarray, " ids"]:
        """Return ids that never came although that has a probability below e^-certain."""
        if not (self.near_certain and self.fresh):
            return np.empty(0, np.int64)
        mass = np.minimum(np.exp(law.least), 1 - 1e-16)
        expected = law.core & (-self.draws * np.log1p(-mass) > self.certain)
        # of equals of which some are kept one has to come, whichever it is
        one_of = -self.draws * np.log1p(-min(law.together, 1 - 1e-16)) > self.certain
        if one_of and not self.counts[law.tied].any():
            expected = expected | law.tied
        return np.flatnonzero(expected & (self.counts == 0))

    def fits(self, law: RowExpected) -> bool:
        """Whether the law could have given this: nothing impossible, nothing certain missing."""
        if not law.valid:
            return False
        wrong = (self.impossible(law), self.improbable(law), self.missing(law))
        return not any(len(ids) for ids in wrong)


@dataclass(frozen=True, slots=True)
class Kept:
    """The ids that a backend says it kept of one row or of several alike, from its processed logits."""

    ids: Bool[np.ndarray, "*rows vocab"]

    def fits(self, law: RowExpected) -> bool:
        """Whether a right backend of that law may keep these ids; a greedy row keeps any."""
        return not self.misfits(law).any()

    def misfits(self, law: RowExpected) -> Bool[np.ndarray, "*rows"]:
        """Return the rows that no right backend of that law gives."""
        if law.greedy:
            return np.zeros(self.ids.shape[:-1], dtype=bool)
        wrong = (self.ids & ~law.allowed) | (law.core & ~self.ids)
        return np.asarray(wrong.any(-1) | self.miscounted(law))

    def miscounted(self, law: RowExpected) -> Bool[np.ndarray, "*rows"]:
        """Return the rows with more or fewer of equals, of which some are kept."""
        if not law.tied.any():
            return np.zeros(self.ids.shape[:-1], dtype=bool)
        return np.asarray((self.ids & law.tied).sum(-1) != law.count)


@dataclass(frozen=True, slots=True)
class Attribution:
    """What would explain something seen.

    Attributes:
        clauses: whose breach explains it, the case's own first, then the simplest first.
        ignored: a parameter without which the row would look like this, with its clause; None if
            there is none.

    """

    clauses: tuple[ClauseId, ...]
    ignored: tuple[ClauseId, str] | None


def attribute(
    case: Case, row: int, seen: Evidence, semantics: Semantics, owned: Collection[ClauseId]
) -> Attribution:
    """Return the mistakes that explain what was seen.

    Args:
        case: the batch.
        row: of the batch; rows alike were counted with it.
        seen: what was drawn.
        semantics: declared.
        owned: clauses that can be broken at this level.

    """
    world = World(case.logits.rows[row], case.requests[row], semantics)
    worlds = dict.fromkeys(one for one in mistakes(case, world) if one[0] in owned)
    fitting = _fitting(case, tuple(worlds), seen)
    clauses = [clause for clause, _ in fitting]
    own = [clause for clause in case.clauses if clause in clauses]
    made = {mistaken for _, mistaken in fitting}
    ignored = (
        (ClauseId(clause), name)
        for clause, name, neutral in NEUTRAL
        if getattr(world.request.params, name) != neutral
        and changed(world, **{name: neutral}) in made
    )
    return Attribution(tuple(dict.fromkeys([*own, *clauses])), next(ignored, None))


def _fitting(
    case: Case, worlds: tuple[tuple[ClauseId, World], ...], seen: Evidence
) -> tuple[tuple[ClauseId, World], ...]:
    """Return the worlds whose law allows what was seen, and last those that leave no id at all.

    A sampler that takes the last id away gives any id.  Laws of equal semantics come in one go.
    """
    fits: set[World] = set()
    empty: set[World] = set()
    for semantics in dict.fromkeys(world.semantics for _, world in worlds):
        alike = list(dict.fromkeys(one for _, one in worlds if one.semantics == semantics))
        laws = expect_rows(case, [(one.recipe, one.request) for one in alike], semantics)
        fits |= {one for one, law in zip(alike, laws, strict=True) if seen.fits(law)}
        empty |= {one for one, law in zip(alike, laws, strict=True) if not law.valid}
    return (
        *(one for one in worlds if one[1] in fits),
        *(one for one in worlds if one[1] in empty - fits),
    )

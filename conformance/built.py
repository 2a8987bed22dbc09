"""BuiltLogits: the logits of the case at hand, from which its other arrangements are taken too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from jaxtyping import Float
from torch import Tensor

from refsampler.conformance.case import Case
from refsampler.conformance.logits import LogitsRecipe

__all__ = ["BuiltLogits"]


@dataclass(frozen=True, slots=True)
class BuiltLogits:
    """The logits of a case, whose rows may be asked for again in other arrangements.

    Attributes:
        case: keeps the recipes alive that `places` names by identity.
        logits: of the case, one row a distinct recipe.
        places: identity of a recipe -> its row.

    """

    case: Case
    logits: Float[Tensor, "recipes vocab"]
    places: Mapping[int, int]

    @classmethod
    def of(cls, case: Case) -> Self:
        """Build each distinct recipe of a case once."""
        distinct = {id(recipe): recipe for recipe in case.logits.rows}
        recipe = LogitsRecipe(case.logits.vocab, tuple(distinct.values()))
        places = {key: place for place, key in enumerate(distinct)}
        return cls(case, recipe.build(case.dtype.torch), places)

    def holds(self, case: Case) -> bool:
        """Whether every row of the case is there, in the same dtype and width."""
        before = self.case
        alike = before.dtype is case.dtype and before.logits.vocab == case.logits.vocab
        return alike and all(id(recipe) in self.places for recipe in case.logits.rows)

    def rows(self, case: Case) -> Float[Tensor, "num_tokens vocab"]:
        """Return a copy, one row a request."""
        places = [self.places[id(recipe)] for recipe in case.logits.rows]
        return self.logits[places]

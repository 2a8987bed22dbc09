"""The row that shows a tail of one grade with the fewest draws: one likely id and a flat sea.

Draws times vocabulary, hence seconds, hardly depend on how wide the sea is while its mass is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Sea", "sea"]

_MOST_MASS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sea:
    """One likely id and a flat sea.

    Attributes:
        grade: probability of each id of the sea.
        ids: how many; further ids of the vocabulary are masked.
        gap: logit of the likely id minus that of a sea id.

    """

    grade: float
    ids: int
    gap: float

    @property
    def mass(self) -> float:
        """Return the summed probability of the sea."""
        return self.ids * self.grade


def sea(vocab: int, grade: float) -> Sea:
    """Return the widest sea of a vocabulary whose mass is at most 1/2.

    Raises:
        ValueError: there is no room for a sea, or the grade is no probability <= 1/2.

    """
    if vocab < 2:
        raise ValueError(f"vocab = {vocab} is refused: allowed is at least 2")
    if not 0 < grade <= _MOST_MASS:
        raise ValueError(f"grade = {grade} is refused: allowed is 0 < grade <= {_MOST_MASS}")
    ids = min(vocab - 1, round(_MOST_MASS / grade))
    return Sea(grade, ids, math.log1p(-ids * grade) - math.log(grade))

"""Shards: the parts of one plan that several runs take, declared before any of them starts.

Every case belongs to one shard, so no two shards use the same (case, seed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, Self

__all__ = ["EVERYTHING", "NONE", "Part", "Share"]


class Part(Protocol):
    """Which cases of a plan are asked here."""

    def has_case(self, number: int) -> bool:
        """Whether the exact or near-certain case of this number is asked."""

    def has_law(self, number: int) -> bool:
        """Whether the law of this number is asked; mixed batches are numbered after the laws."""

    @property
    def first(self) -> bool:
        """Whether the pairs of calls are asked: they are not split."""

    @property
    def last(self) -> bool:
        """Whether the tails are asked: they are not split."""

    @property
    def judges(self) -> bool:
        """Whether all evidence about the laws comes together here; elsewhere it ends no law."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which cases a run asks.

    Attributes:
        shard: from 1 to `count`; 0 asks nothing.
        count: of shards in the plan.

    """

    shard: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `i/n`.

        Raises:
            ValueError: it is not that.

        """
        shard, slash, count = text.partition("/")
        if not (slash and shard.isdecimal() and count.isdecimal() and 0 < int(shard) <= int(count)):
            raise ValueError(f"shard = {text!r} is refused: allowed is i/n with i from 1 to n")
        return cls(int(shard), int(count))

    def has_case(self, number: int) -> bool:
        """Whether the case of this number is asked."""
        return number % self.count == self.shard - 1

    def has_law(self, number: int) -> bool:
        """Whether the law of this number is asked."""
        return self.has_case(number)

    @property
    def first(self) -> bool:
        """Whether the pairs of calls are asked: they are not split."""
        return self.shard == 1

    @property
    def last(self) -> bool:
        """Whether the tails are asked: they are not split."""
        return self.shard == self.count

    @property
    def judges(self) -> bool:
        """Whether all evidence comes together: in a whole run, and where shards are merged."""
        return self.count == 1 or self.shard == 0


EVERYTHING: Final = Share(1, 1)
NONE: Final = Share(0, 2)

"""Kept sets under rounding: what every right backend keeps, and what a right backend may keep.

A filter cannot be decided to the last bit in float32.  So the law carries two sets through the
filters: the *core*, kept whatever the rounding, and the *hull*, kept under some rounding.  Of equal
values cut by count nobody knows which stay, only how many: they form the *tie class*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

__all__ = ["Kept", "Ranking"]


@dataclass(frozen=True, slots=True)
class Kept:
    """The survivors of a batch of rows.

    Every right backend's survivors lie between `core` and `hull`.  Where `tied` is not empty they
    are known up to ties: all of `core`, and `count` of the equal ids in `tied`, all of which are
    the lowest survivors.

    Attributes:
        core: ids that are kept whatever the rounding.
        hull: ids that may be kept; contains `core` and `tied`.
        tied: equal ids of which exactly `count` are kept.
        count: how many of `tied` are kept, less than their number; 0 without a tie class.

    """

    core: Bool[Tensor, "rows vocab"]
    hull: Bool[Tensor, "rows vocab"]
    tied: Bool[Tensor, "rows vocab"]
    count: Int64[Tensor, " rows"]

    @classmethod
    def everything(cls, alive: Bool[Tensor, "rows vocab"]) -> Self:
        """Return the survivors before any filter."""
        return cls.between(alive, alive)

    @classmethod
    def between(cls, core: Bool[Tensor, "rows vocab"], hull: Bool[Tensor, "rows vocab"]) -> Self:
        """Return survivors without a tie class."""
        nothing = torch.zeros_like(hull)
        return cls(core, hull, nothing, hull.new_zeros(hull.shape[:-1], dtype=torch.int64))

    @property
    def known(self) -> Bool[Tensor, " rows"]:
        """Rows whose survivors do not depend on rounding."""
        return (self.hull == (self.core | self.tied)).all(-1)

    def least(self) -> Float64[Tensor, "rows vocab"]:
        """Return how often each id surely survives; a tied id with its share of the count."""
        return torch.where(self.tied, self._share(), self.core.double())

    def most(self) -> Float64[Tensor, "rows vocab"]:
        """Return how often each id may survive; a tied id with its share of the count."""
        return torch.where(self.tied, self._share(), self.hull.double())

    def cut(self, surely: Bool[Tensor, "rows vocab"], maybe: Bool[Tensor, "rows vocab"]) -> Self:
        """Return what a filter leaves that treats equal ids alike.

        Args:
            surely: ids that pass if they are there, whatever the rounding.
            maybe: ids that pass under some rounding; contains `surely`.

        """
        stays = (surely | ~self.tied).all(-1)
        return type(self)(
            core=self.core & surely,
            hull=self.hull & maybe,
            tied=self.tied & stays[:, None],
            count=torch.where(stays, self.count, 0),
        )

    def cut_by_count(
        self,
        surely: Bool[Tensor, "rows vocab"],
        maybe: Bool[Tensor, "rows vocab"],
        count: Int64[Tensor, " rows"],
    ) -> Self:
        """Return what a filter leaves that keeps the right number of equal ids.

        Args:
            surely: ids that pass if they are there, whichever of their equals come first.
            maybe: ids that pass if they are there and come first.
            count: how many of the undecided ids pass, where they are one class of equal ids and
                their number is known; else 0.

        """
        core, hull = self.core & surely, self.hull & maybe
        undecided = hull & ~core & (count > 0)[:, None]
        return type(self)(core=core, hull=hull, tied=undecided, count=count)

    def dissolved(self) -> Self:
        """Return the same bounds without a tie class: its ids may survive, each on its own."""
        return type(self).between(self.core, self.hull)

    def replaced(self, rows: Bool[Tensor, " rows"], other: Self) -> Self:
        """Return the survivors with some rows taken from `other`."""
        chosen = rows[:, None]
        return type(self)(
            core=torch.where(chosen, other.core, self.core),
            hull=torch.where(chosen, other.hull, self.hull),
            tied=torch.where(chosen, other.tied, self.tied),
            count=torch.where(rows, other.count, self.count),
        )

    def _share(self) -> Float64[Tensor, "rows 1"]:
        size = self.tied.sum(-1).clamp(min=1)
        return (self.count / size.double())[:, None]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Each row's candidates by ascending value, with sums over those that rank high enough.

    Values closer than a band count as tied; equal values of *sound* ids are tied exactly, because
    they went through the same arithmetic.  Every sum is a suffix of the row, and each attribute
    that holds places says for every candidate where such a suffix begins.

    Attributes:
        order: the ids by ascending value.
        values: their values; -inf at ids that are no candidates.
        candidate: False at ids that only fill up the width.
        sound: whether equal values mean an exact tie.
        near: the first place within the band, hence of all that may rank at or above.
        beyond: the first place that surely ranks above.
        first, last: where the exactly equal values begin, and the first place behind them.

    """

    order: Int64[Tensor, "rows width"]
    values: Float64[Tensor, "rows width"]
    candidate: Bool[Tensor, "rows width"]
    sound: Bool[Tensor, "rows width"]
    near: Int64[Tensor, "rows width"]
    beyond: Int64[Tensor, "rows width"]
    first: Int64[Tensor, "rows width"]
    last: Int64[Tensor, "rows width"]

    @classmethod
    def of(
        cls,
        x: Float64[Tensor, "rows vocab"],
        candidates: Bool[Tensor, "rows vocab"],
        sound: Bool[Tensor, "rows vocab"],
        band: Float64[Tensor, " rows"],
    ) -> Self:
        """Rank the candidates of each row; `band` is in units of x."""
        width = max(1, int(candidates.sum(-1).max()))
        values, order = _largest(torch.where(candidates, x, -torch.inf), width)
        below, above = values - band[:, None], values + band[:, None]
        return cls(
            order=order,
            values=values,
            candidate=candidates.gather(-1, order),
            sound=sound.gather(-1, order),
            near=torch.searchsorted(values, below),
            beyond=torch.searchsorted(values, above, right=True),
            first=torch.searchsorted(values, values),
            last=torch.searchsorted(values, values, right=True),
        )

    def at(self, amounts: Float64[Tensor, "rows vocab"]) -> Float64[Tensor, "rows width"]:
        """Return the amounts in the order of the ranking, 0 where there is no candidate."""
        return torch.where(self.candidate, amounts.gather(-1, self.order), 0.0)

    def may_reach(self, amounts: Float64[Tensor, "rows width"]) -> Float64[Tensor, "rows width"]:
        """Sum what may rank at or above each candidate, itself included."""
        return _suffix_sums(amounts).gather(-1, self.near)

    def surely_above(self, amounts: Float64[Tensor, "rows width"]) -> Float64[Tensor, "rows width"]:
        """Sum what ranks above each candidate whatever the rounding."""
        return _suffix_sums(amounts).gather(-1, self.beyond)

    def exactly_tied(self, amounts: Float64[Tensor, "rows width"]) -> Float64[Tensor, "rows width"]:
        """Sum what is exactly tied with each candidate, itself included."""
        sums = _suffix_sums(torch.where(self.sound, amounts, 0.0))
        together = sums.gather(-1, self.first) - sums.gather(-1, self.last)
        return torch.where(self.sound, together, amounts)

    def back(
        self, ranked: Bool[Tensor, "rows width"], like: Bool[Tensor, "rows vocab"]
    ) -> Bool[Tensor, "rows vocab"]:
        """Return a mask over the ids from one over the ranking; False at all others."""
        return torch.zeros_like(like).scatter(-1, self.order, ranked & self.candidate)

    def count_of_class(
        self,
        kept: Kept,
        surely: Bool[Tensor, "rows vocab"],
        maybe: Bool[Tensor, "rows vocab"],
        fewest: Float64[Tensor, "rows width"],
        most: Float64[Tensor, "rows width"],
    ) -> Int64[Tensor, " rows"]:
        """Return how many undecided ids pass, 0 where that is not known.

        It is known where rounding had no say so far, the undecided ids are exactly equal with no
        other candidate in their band, and the fewest and the most of them that pass are the same.

        Args:
            kept: survivors before the filter.
            surely: ids that pass whatever the rounding.
            maybe: ids that pass under some rounding.
            fewest: how many of each candidate's equals pass at least.
            most: how many of them pass at most.

        """
        undecided = kept.hull & maybe & ~(kept.core & surely)
        members = undecided.gather(-1, self.order) & self.candidate
        others = (self.candidate & ~members).double()
        crowd = (self.may_reach(others) - self.surely_above(others)).round()
        lowest = torch.where(members, self.values, torch.inf).amin(-1)
        highest = torch.where(members, self.values, -torch.inf).amax(-1)
        certain = ~members | (self.sound & (crowd == 0) & (fewest == most))
        known = kept.known & (lowest == highest) & certain.all(-1)
        count = torch.where(members, fewest, 0.0).amax(-1)
        return torch.where(known, count, 0.0).clamp(min=0).long()


def _largest(
    values: Float64[Tensor, "rows vocab"], width: int
) -> tuple[Float64[Tensor, "rows width"], Int64[Tensor, "rows width"]]:
    """Return the `width` largest values of each row, ascending, and their ids."""
    vocab = values.shape[-1]
    # a short list is found without sorting the row
    if width * 8 > vocab:
        ordered, order = values.sort(dim=-1)
        start = vocab - width
        return ordered[:, start:].contiguous(), order[:, start:].contiguous()
    ordered, order = values.topk(width, dim=-1)
    return ordered.flip(-1), order.flip(-1)


def _suffix_sums(
    amounts: Float64[Tensor, "rows width"],
) -> Float64[Tensor, "rows places"]:
    """Return for each place the sum from there to the end; one place more than amounts."""
    sums = amounts.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([sums, torch.zeros_like(sums[:, :1])], dim=-1)

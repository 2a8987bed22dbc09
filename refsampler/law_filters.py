"""The three filters as bounds: which ids pass whatever the rounding, and which may pass.

Each takes the survivors of the filter before, core and hull, and returns its own.  Fewer or more
survivors give a smaller or larger normaliser, hence a shorter or longer prefix; the bounds hold for
every survivor set between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from refsampler.kept import Kept, Ranking
from refsampler.law_row import Row
from refsampler.semantics import Semantics

__all__ = ["MASS_ERROR", "min_p", "top_k", "top_p"]

MASS_ERROR = 1e-5
"""Error of a float32 running sum of probabilities, in mass; good kernels measure 1.4e-6."""

_FLUSHED = -125 * math.log(2)
_FLOAT32_STEP = 2.0**-24


def min_p(row: Row, kept: Kept, least: Float64[Tensor, " rows"], semantics: Semantics) -> Kept:
    """Keep an id iff its probability is at least `least` times the maximum (clause `min-p.keep`).

    In nats that is x - max x >= log(least).  Ids that are exactly the maximum always pass.

    Args:
        row: the logits at this point of the order.
        kept: survivors so far.
        least: min_p of each row, 0 is off.
        semantics: `min_p_space` decides whether a threshold can underflow.

    """
    if bool((least == 0).all()):
        return kept
    behind = row.x - row.top(kept.hull)[:, None]
    slack = (row.band + row.softmax_error(kept.hull))[:, None]
    threshold = least.log()[:, None]

    leading = kept.hull & (behind >= -slack)
    sole = (leading.sum(-1) == 1) | (~leading | (row.sound & (behind == 0))).all(-1)
    surely = (behind >= threshold + slack) | (leading & sole[:, None])
    maybe = behind >= threshold - slack
    if semantics.min_p_space == "probability":
        largest = -(kept.most() * behind.exp()).sum(-1, keepdim=True).log()
        # a threshold below the normal numbers may be flushed to 0, and then nothing is below it
        maybe = maybe | (threshold + largest < _FLUSHED)
    return kept.cut(surely, maybe)


def top_k(row: Row, kept: Kept, k: Int64[Tensor, " rows"], semantics: Semantics) -> Kept:
    """Keep the k largest (clauses `top-k.keep`, `top-k.ties`, `top-k.off`).

    `all`: an id stays iff fewer than k are strictly above it.  `exactly_k`: iff fewer than k come
    before it, where its equals may come before or after.

    Args:
        row: the logits at this point of the order.
        kept: survivors so far.
        k: how many each row keeps; V is off.
        semantics: `top_k_ties`; where `filter_space` says so or masses are `joint`, the ranks are
            those of float32 probabilities.

    """
    if bool((k >= row.x.shape[-1]).all()):
        return kept
    probabilities = semantics.filter_space == "probability" or semantics.top_p_mass == "joint"
    band = row.band + (row.softmax_error(kept.hull) if probabilities else 0.0)
    ranking = Ranking.of(row.x, _contenders(row, kept, k, band), row.sound, band)
    least, most = ranking.at(kept.least()), ranking.at(kept.most())
    exactly = semantics.top_k_ties == "exactly_k"

    ties = ranking.exactly_tied(most)
    before = ranking.may_reach(most) - (1.0 if exactly else ties)
    above = ranking.surely_above(least).round()
    surely = ranking.back(before.round() < k[:, None], kept.hull)
    maybe = ranking.back(above < k[:, None], kept.hull)
    faint = _faint(row, kept, k) if probabilities else torch.zeros_like(maybe)
    surely, maybe = surely & ~faint, maybe | faint
    if not exactly:
        return kept.cut(surely, maybe)
    room = torch.minimum(ties.round(), k[:, None] - above)
    count = ranking.count_of_class(kept, surely, maybe, room, room)
    return kept.cut_by_count(surely, maybe, torch.where(faint.any(-1), 0, count))


def _faint(row: Row, kept: Kept, k: Int64[Tensor, " rows"]) -> Bool[Tensor, "rows vocab"]:
    """Return the ids whose probabilities may all be 0 in float32, where top-k needs some of them.

    Equal as probabilities, all of them may pass, and where only k do any of them may be left out.
    """
    behind = row.x - row.top(kept.hull)[:, None]
    total = (kept.most() * behind.exp()).sum(-1, keepdim=True).log()
    faint = kept.hull & (behind - total < _FLUSHED)
    others = torch.where(faint, 0.0, kept.least()).sum(-1, keepdim=True).round()
    return faint & (others < k[:, None]) & (k < row.x.shape[-1])[:, None]


def _contenders(
    row: Row, kept: Kept, k: Int64[Tensor, " rows"], band: Float64[Tensor, " rows"]
) -> Bool[Tensor, "rows vocab"]:
    """Return the ids that matter to top-k: others need not be ranked.

    An id more than a band below the k-th of the core cannot pass, and an id more than two bands
    below it cannot come before one that passes.
    """
    deepest = int(k.max())
    if deepest * 8 > row.x.shape[-1]:
        return kept.hull
    certain = torch.where(kept.core, row.x, -torch.inf).topk(deepest, dim=-1).values
    kth = certain.gather(-1, k[:, None] - 1)
    return kept.hull & (row.x >= kth - 2 * band[:, None])


@dataclass(frozen=True, slots=True)
class _Mass:
    """Shares of mass above each candidate, over all survivor sets between core and hull.

    Attributes:
        ranking: the candidates.
        weight: probability of each, in units of the most likely one.
        least, most: how often each candidate survives.
        error: of a float32 share of mass, 0 where shares are exact.
        uniform: rows in which float32 shares are exact in any order of summation: all survivors
            are equal and their number is a power of two.

    """

    ranking: Ranking
    weight: Float64[Tensor, "rows width"]
    least: Float64[Tensor, "rows width"]
    most: Float64[Tensor, "rows width"]
    error: Float64[Tensor, "rows 1"]
    uniform: Bool[Tensor, "rows 1"]

    @classmethod
    def of(cls, row: Row, base: Kept, semantics: Semantics) -> Self:
        """Measure the mass of the survivors `base`; exponentials of logprobs sum to 1 nearly."""
        band = row.band + row.softmax_error(base.hull)
        ranking = Ranking.of(row.x, base.hull, row.sound, band)
        behind = ranking.values - row.top(base.hull)[:, None]
        most = ranking.at(base.most())
        size = most.sum(-1).round()
        equal = (~ranking.candidate | (ranking.sound & (behind == 0))).all(-1)
        halves = torch.frexp(size).mantissa == 0.5
        rounded = semantics.filter_space == "logprob"
        return cls(
            ranking=ranking,
            weight=torch.where(ranking.candidate, behind.exp(), 0.0),
            least=ranking.at(base.least()),
            most=most,
            error=(MASS_ERROR + _FLOAT32_STEP * row.magnitude(base.hull))[:, None],
            uniform=(equal & base.known & halves & (not rounded))[:, None],
        )

    def total(self) -> Float64[Tensor, "rows 1"]:
        """Return the largest normaliser."""
        return (self.most * self.weight).sum(-1, keepdim=True)

    def surely_above(self) -> Float64[Tensor, "rows width"]:
        """Return the weight that is above whatever the rounding."""
        return self.ranking.surely_above(self.least * self.weight)

    def smallest_share(self) -> Float64[Tensor, "rows width"]:
        """Return the share above if only what must be above survives, and all else does."""
        above = self.surely_above()
        rest = self.total() - self.ranking.surely_above(self.most * self.weight)
        return _share(above, rest)

    def largest_share(self, *, counted: bool) -> Float64[Tensor, "rows width"]:
        """Return the share above if all that may be above survives, and else only what must.

        Args:
            counted: whether equals may be above too, all but the id itself.

        """
        ranking, most, least = self.ranking, self.most * self.weight, self.least * self.weight
        tied = ranking.exactly_tied(most)
        above = ranking.may_reach(most) - (self.weight if counted else tied)
        rest = least.sum(-1, keepdim=True) - ranking.may_reach(least)
        own = self.weight if counted else ranking.exactly_tied(least)
        return _share(above, rest + own)

    def may_be_above(self, *, counted: bool) -> Float64[Tensor, "rows width"]:
        """Return how many candidates may be above each."""
        own = torch.ones_like(self.most) if counted else self.ranking.exactly_tied(self.most)
        return (self.ranking.may_reach(self.most) - own).round()

    def must_be_above(self) -> Float64[Tensor, "rows width"]:
        """Return how many candidates are above each whatever the rounding."""
        return self.ranking.surely_above(self.least).round()

    def slack(
        self, share: Float64[Tensor, "rows width"], p: Float64[Tensor, "rows 1"]
    ) -> Float64[Tensor, "rows width"]:
        """Return the error of comparing a share with p.

        Exact shares compare exactly with an equal p.  With another they compare within a float32
        step, because some backends compare with 1 - p, which is rounded.
        """
        exact = torch.where(share == p, 0.0, _FLOAT32_STEP)
        return torch.where(self.uniform, exact, self.error)


def top_p(
    row: Row, kept: Kept, base: Kept, p: Float64[Tensor, " rows"], semantics: Semantics
) -> Kept:
    """Keep the ids with less than p mass above them (clauses `top-p.keep`, `top-p.ties`).

    `all`: the mass strictly above.  `count`: the mass of what comes before, where equals may come
    before or after.  At least one id stays.  p >= 1 removes nothing that float32 can tell from
    nothing (clause `top-p.off`).

    Args:
        row: the logits at this point of the order.
        kept: survivors so far.
        base: survivors on which the mass is measured; contains `kept`.
        p: mass of each row in (0, 1], at least 1 is off.
        semantics: `top_p_ties` and `top_p_cut`.

    """
    untouched = kept.cut(_visible(row, base), torch.ones_like(kept.hull))
    off = p >= 1
    if bool(off.all()):
        return untouched
    return _within_mass(row, kept, base, p, semantics).replaced(off, untouched)


def _visible(row: Row, base: Kept) -> Bool[Tensor, "rows vocab"]:
    """Return the ids with a relative mass of at least 2^-126 (clause `top-p.off`)."""
    weight = (row.x - row.top(base.hull)[:, None]).exp()
    return weight >= 2.0**-126 * (base.most() * weight).sum(-1, keepdim=True)


def _within_mass(
    row: Row, kept: Kept, base: Kept, p: Float64[Tensor, " rows"], semantics: Semantics
) -> Kept:
    """Apply top-p as if no row had it off."""
    mass = _Mass.of(row, base, semantics)
    limit = p[:, None]
    counted = semantics.top_p_ties == "count"
    largest, smallest = mass.largest_share(counted=counted), mass.smallest_share()
    high, low = largest + mass.slack(largest, limit), smallest - mass.slack(smallest, limit)
    if semantics.top_p_cut == "strict":
        passes, may_pass = high < limit, low < limit
    else:
        passes, may_pass = high <= limit, low <= limit
    passes = passes | (mass.may_be_above(counted=counted) <= 0)
    surely, maybe = (mass.ranking.back(one, kept.hull) for one in (passes, may_pass))
    if not counted:
        return kept.cut(surely, maybe)
    fewest, most = _room(mass, kept, limit, semantics)
    count = mass.ranking.count_of_class(kept, surely, maybe, fewest, most)
    return kept.cut_by_count(surely, maybe, torch.where(base.known, count, 0))


def _room(
    mass: _Mass, kept: Kept, p: Float64[Tensor, "rows 1"], semantics: Semantics
) -> tuple[Float64[Tensor, "rows width"], Float64[Tensor, "rows width"]]:
    """Return the fewest and the most of each candidate's equals that pass.

    The j-th of them has above it what is above the class, and j times its own weight.
    """
    above, total = mass.surely_above(), mass.total()
    fits = (p * total - above) / mass.weight
    slack = torch.where(fits == fits.round(), 0.0, _FLOAT32_STEP)
    error = torch.where(mass.uniform, slack, mass.error) * total / mass.weight
    present = mass.ranking.exactly_tied(mass.ranking.at(kept.most())).round()
    at_least = (mass.must_be_above() <= 0).double()

    def count(places: Float64[Tensor, "rows width"]) -> Float64[Tensor, "rows width"]:
        passing = places.ceil() if semantics.top_p_cut == "strict" else places.floor() + 1
        return torch.minimum(torch.maximum(passing, at_least), present)

    return count(fits - error), count(fits + error)


def _share(
    above: Float64[Tensor, "rows width"], rest: Float64[Tensor, "rows width"]
) -> Float64[Tensor, "rows width"]:
    """Return above / (above + rest); differences of sums may have gone below 0."""
    positive = above.clamp(min=0)
    return positive / (positive + rest.clamp(min=0))

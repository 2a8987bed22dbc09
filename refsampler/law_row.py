"""Rows of logits in float64, with a record of what float32 arithmetic may have rounded.

A row is *inexact* once float32 arithmetic touched it that may round.  Exact is what every float32
backend computes without rounding, whatever its formula: a sum, difference or product that float32
can represent, and a factor or divisor that is a power of two.  Any other division counts as
rounding even where float32 can represent the result, since a backend may multiply by the rounded
reciprocal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

__all__ = ["ROUNDING", "Row", "power_of_two", "representable"]

ROUNDING = 2.0**-22
"""Error of float32 arithmetic on a row, relative to its largest intermediate."""

_WINDOW_NATS = 40.0
_FLUSHED = 2.0**-104
"""Smaller numbers count as this one, so that the band is at least 2^-126: below it float32 rounds in
steps of one size, and some devices read and write 0."""


@dataclass(frozen=True, slots=True)
class Row:
    """A batch of rows of logits in float64, and how far float32 may be from them.

    Attributes:
        x: the logits so far; -inf is a ban.
        peak: each id's largest |intermediate|, in the units of x.
        largest: the row's largest |intermediate| among ids that were not banned, once arithmetic
            has touched the row; 0 before.
        exact: ids that no arithmetic of their own has rounded.
        inexact: rows in which arithmetic may have rounded.

    """

    x: Float64[Tensor, "rows vocab"]
    peak: Float64[Tensor, "rows vocab"]
    largest: Float64[Tensor, " rows"]
    exact: Bool[Tensor, "rows vocab"]
    inexact: Bool[Tensor, " rows"]

    @classmethod
    def of(cls, logits: Float[Tensor, "rows vocab"]) -> Self:
        """Take logits as they are given."""
        x = logits.double()
        rows = torch.zeros_like(x[:, 0])
        everywhere = torch.ones_like(x, dtype=torch.bool)
        return cls(x, _magnitude_of(x), rows, everywhere, rows.bool())

    @property
    def band(self) -> Float64[Tensor, " rows"]:
        """Values closer than this may compare either way in float32; 0 in exact rows."""
        return torch.where(self.inexact, ROUNDING * self.largest, 0.0)

    @property
    def sound(self) -> Bool[Tensor, "rows vocab"]:
        """Ids whose equal values are equal in float32 too.

        They had only the arithmetic of the whole row, so equal ids had equal arithmetic.  Two ids
        that a penalty led to the same float64 value by other ways may differ by a rounding.
        """
        return self.exact | ~self.inexact[:, None]

    def top(self, among: Bool[Tensor, "rows vocab"]) -> Float64[Tensor, " rows"]:
        """Return the largest value among some ids; 0 where there is none."""
        top = torch.where(among, self.x, -torch.inf).amax(-1)
        return torch.where(top > -torch.inf, top, 0.0)

    def magnitude(self, among: Bool[Tensor, "rows vocab"]) -> Float64[Tensor, " rows"]:
        """Return M: the largest |intermediate| over ids within 40 nats of the top."""
        live = among & (self.x >= self.top(among)[:, None] - _WINDOW_NATS)
        return torch.where(live, self.peak, 0.0).amax(-1)

    def softmax_error(self, among: Bool[Tensor, "rows vocab"]) -> Float64[Tensor, " rows"]:
        """Return the relative error of float32 probabilities: of the exponent, and a few ulp."""
        return ROUNDING * (4 + self.magnitude(among))

    def masked(self, banned: Bool[Tensor, "rows vocab"]) -> Self:
        """Return the row with some ids banned."""
        return replace(self, x=torch.where(banned, -torch.inf, self.x))

    def changed(
        self,
        where: Bool[Tensor, "rows vocab"],
        value: Float64[Tensor, "rows vocab"],
        term: Float64[Tensor, "rows vocab"],
        exact: Bool[Tensor, "rows vocab"],
    ) -> Self:
        """Return the row after arithmetic of some ids' own.

        Args:
            where: the ids that it touches.
            value: their new values.
            term: what was added or subtracted, an intermediate too.
            exact: whether every float32 backend gets `value` without rounding.

        """
        touched = where & (self.x > -torch.inf)
        normal = _normal(self.x) & _normal(term) & _normal(value)
        rounded = touched & ~(exact & normal & ~self.inexact[:, None])
        x = torch.where(touched, value, self.x)
        new = torch.maximum(_magnitude_of(value), _magnitude_of(term))
        peak = torch.where(touched, torch.maximum(self.peak, new), self.peak)
        largest = torch.where(touched.any(-1), _largest(x, peak), 0.0)
        return replace(
            self,
            x=x,
            peak=peak,
            largest=torch.maximum(self.largest, largest),
            exact=self.exact & ~rounded,
            inexact=self.inexact | rounded.any(-1),
        )

    def divided(self, temperature: Float64[Tensor, " rows"]) -> Self:
        """Return x / T (clause `temperature.scale`); intermediates are in the new unit too."""
        divisor = temperature[:, None]
        x, peak = self.x / divisor, self.peak / divisor
        before, after = _largest(self.x, self.peak), _largest(x, peak)
        touched = temperature != 1
        largest = torch.where(touched, torch.maximum(before, after), 0.0)
        exact = power_of_two(temperature) & (_normal(self.x) & _normal(x)).all(-1)
        return replace(
            self,
            x=x,
            peak=peak,
            largest=torch.maximum(self.largest, largest),
            inexact=self.inexact | (touched & ~exact),
        )

    def as_logprobs(self) -> Self:
        """Return the row of a backend that goes on with x less its log-sum-exp.

        The values stay, as no law depends on a shift that all ids share; and equal ids stay equal.
        What is new are the intermediates x - lse and lse, and that subtracting rounds.
        """
        lse = self.x.logsumexp(dim=-1, keepdim=True)
        new = torch.maximum(_magnitude_of(self.x - lse), _magnitude_of(lse))
        peak = torch.maximum(self.peak, new)
        return replace(
            self,
            peak=peak,
            largest=torch.maximum(self.largest, _largest(self.x, peak)),
            inexact=torch.ones_like(self.inexact),
        )

    def forced(self, ids: Int64[Tensor, " rows"]) -> Self:
        """Return a point mass in every row with an id >= 0: it beats masks and rounding."""
        is_forced = (ids >= 0)[:, None]
        chosen = ids[:, None] == torch.arange(self.x.shape[-1], device=ids.device)
        point = torch.where(chosen, 0.0, -torch.inf).double()
        return replace(
            self,
            x=torch.where(is_forced, point, self.x),
            peak=torch.where(is_forced, 0.0, self.peak),
        )


def representable(x: Float64[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Say where float32 holds the value without rounding."""
    return x.float().double() == x


def power_of_two(x: Float64[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Say where the value is a power of two, whose reciprocal is exact as well."""
    return torch.frexp(x).mantissa.abs() == 0.5


def _normal(x: Float64[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Say where arithmetic does not meet a subnormal number, which may be rounded, or read as 0."""
    return (x == 0) | (x.abs() >= 2.0**-126)


def _magnitude_of(x: Float64[Tensor, "rows vocab"]) -> Float64[Tensor, "rows vocab"]:
    """Return |x| or the least that counts, 0 at bans."""
    return torch.where(x > -torch.inf, x.abs().clamp(min=_FLUSHED), 0.0)


def _largest(
    x: Float64[Tensor, "rows vocab"], peak: Float64[Tensor, "rows vocab"]
) -> Float64[Tensor, " rows"]:
    """Return the largest intermediate among ids that are not banned."""
    return torch.where(x > -torch.inf, peak, 0.0).amax(-1)

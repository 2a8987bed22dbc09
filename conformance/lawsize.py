"""Sizes of laws: how often each row is drawn, chosen by seconds before the first draw.

Every row gets its least draws, which its one look at a distance needs.  A declared alternative that
these do not show is *carried* by one row, the one that shows it for the fewest seconds: that row is
drawn on, up to its most draws, and ends as soon as everything that it carries is refuted
(`acceptance`).  Alternatives are taken in the order of their price until the seconds are spent.

Power: alternative q is missed if it is refuted early, with probability beta/2 at most, or if the draws
that are sure to be made, the least of every row and the most of the one that carries q, do not reach
the threshold (Chernoff, the other beta/2).  With s <= 1 more draws of other rows never raise the
bound: E_q[e^-s] <= E_q[1/e]^s = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.evidence.acceptance import BETA_AT_MAX, BETA_EARLY
from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.guarantees import draws_needed_tv
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.sequential import L1_ALPHA, coarse
from refsampler.conformance.verdict import Power, Unplanned

__all__ = ["LAW_SHARE", "LEAST_SECONDS", "SECONDS", "LawSize", "Sizes", "draw_seconds", "size_laws"]

SECONDS: Final = {"quick": 24.0, "full": 450.0}
"""What all laws of a profile may take together, if nothing is accepted early."""

LEAST_SECONDS: Final = {"quick": 0.5, "full": 8.0}
"""What the least draws of one row may take."""

LAW_SHARE: Final = 0.4
"""Of a time budget, for which the laws are sized."""

_DISTANCES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Total variation that the least draws show, whatever its direction: the first that can be paid."""

_DRAW_S: Final = 1e-6
_LOGIT_S: Final = 21e-9
_SORTED_LOGIT_S: Final = 70e-9
"""Nominal seconds of the native sampler and of counting: a plan depends on no clock."""

_S_GRID: Final = np.geomspace(0.02, 1.0, 24)
_ROUNDING: Final = 1.001


@dataclass(frozen=True, slots=True)
class LawSize:
    """How often one row is drawn.

    Attributes:
        least: draws that are made in any case.
        most: draws after which the row ends.
        carried: names of the alternatives that must be refuted for it to end between them.

    """

    least: int
    most: int
    carried: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How often every row is drawn, and what that shows.

    Attributes:
        rows: sizes, in the order of the rows.
        powers: per alternative the least probability that it is shown.
        unplanned: alternatives that the seconds did not allow, with their price.

    """

    rows: tuple[LawSize, ...]
    powers: tuple[Power, ...]
    unplanned: tuple[Unplanned, ...]


def draw_seconds(case: Case) -> float:
    """Return the nominal seconds of one draw from a row."""
    params = case.requests[0].params
    ranked = params.top_k > 0 or params.top_p < 1
    return _DRAW_S + case.logits.vocab * (_SORTED_LOGIT_S if ranked else _LOGIT_S)


def size_laws(
    rows: Sequence[tuple[Case, LawCase]],
    clause: ClauseId,
    log_threshold: float,
    seconds: float,
    least_seconds: float,
) -> Sizes:
    """Choose the draws of every row.

    Args:
        rows: cases and their laws, with one bank.
        clause: that pools them.
        log_threshold: of the clause, ln(1/alpha).
        seconds: that all rows may take; their least draws are made whatever it is.
        least_seconds: that the least draws of one row may take.

    """
    each = np.array([draw_seconds(case) for case, _ in rows])
    alpha = L1_ALPHA / len(rows)
    least = np.array(
        [_least(law, cost, alpha, least_seconds) for (_, law), cost in zip(rows, each, strict=True)]
    )
    most, carried = least.copy(), [list[str]() for _ in rows]
    left = max(seconds - float(least @ each), 0.0)
    rates = np.stack([_rates(law) for _, law in rows], axis=1)
    misses, wanted = [], []
    for one, exponents in zip(rows[0][1].alternatives, rates, strict=True):
        limit = log_threshold - math.log(one.weight / 2)
        base = _S_GRID * limit + least @ exponents
        misses.append(math.exp(min(float(base.min()), 0.0)))
        if misses[-1] > BETA_AT_MAX:
            needed = _needed(base, exponents, least)
            wanted.append((float((needed * each).min()), len(misses) - 1, needed))
    unplanned = []
    for price, at, needed in sorted(wanted, key=lambda entry: entry[:2]):
        name = rows[0][1].alternatives[at].name
        more = np.maximum(needed - most, 0) * each
        row = int(more.argmin())
        if more[row] > left:
            words = "inside the tolerance" if math.isinf(price) else f"{price:.3g} s"
            unplanned.append(Unplanned(clause, f"{name}: {words}"))
            continue
        left -= float(more[row])
        most[row] = max(most[row], int(needed[row]))
        carried[row].append(name)
        misses[at] = BETA_AT_MAX + BETA_EARLY
    sizes = zip(least.tolist(), most.tolist(), carried, strict=True)
    powers = zip(rows[0][1].alternatives, misses, strict=True)
    return Sizes(
        tuple(LawSize(low, high, tuple(names)) for low, high, names in sizes),
        tuple(Power(one.name, 1 - miss) for one, miss in powers),
        tuple(unplanned),
    )


def _least(law: LawCase, cost: float, alpha: float, seconds: float) -> int:
    """Return the draws of the smallest distance that the seconds can show."""
    probs = coarse(law).probs
    needed = [draws_needed_tv(probs, eps, alpha, delta=law.delta) for eps in _DISTANCES]
    paid = [draws for draws in needed if draws * cost <= seconds]
    return int(paid[0] if paid else max(1, seconds // cost))


def _rates(law: LawCase) -> FloatArray:
    """Return ln E_q[e^-s] of one draw [alternatives, s]; none of the terms exceeds 1 by much."""
    with np.errstate(divide="ignore"):
        log_law = np.log(law.laws)
    sums = [np.exp(log_law - s * law.log_ratios).sum(axis=1) for s in _S_GRID]
    rates: FloatArray = np.minimum(np.log(np.stack(sums, axis=1)), 0.0)
    return rates


def _needed(base: FloatArray, exponents: FloatArray, least: IntArray) -> FloatArray:
    """Return per row the draws after which it shows the alternative beside the others' least."""
    short = -math.log(BETA_AT_MAX) + base
    with np.errstate(divide="ignore"):
        more = np.where(exponents < 0, short / -exponents, np.inf).min(axis=1)
    # a thousandth more than the bound, which the rounding of probabilities does not eat up
    needed: FloatArray = np.ceil((least + more) * _ROUNDING)
    return needed

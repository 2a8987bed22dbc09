"""What a planned number of pairs is sure to see of copied randomness.

Within a call (and for trusted streams) pairs are multiplied: the unit is the pair.  Between calls the
rows are averaged and pairs of calls multiplied: the unit is a pair of calls of so many rows.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.couplings import Copy, capped
from refsampler.conformance.evidence.guarantees import (
    BETA,
    Direction,
    PowerError,
    draws_needed_directional,
)
from refsampler.conformance.evidence.independence import RATES

__all__ = [
    "assert_pairs",
    "call_pairs_needed",
    "draws_needed_pairs",
    "smallest_detectable_pairs",
]


def draws_needed_pairs(
    law: FloatArray,
    rate: float,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> float:
    """Return the pairs of one lag after which copying at the rate is seen but for beta.

    Args:
        law: [ids] exact law of every row.
        rate: probability with which a row copies its partner.
        bets: number of bets in the mixture, `len(process.table)`.
        log_threshold: that the mixture must reach.
        delta: tolerance in total variation.
        beta: probability of missing it.

    """
    probs, times = np.unique(law[law > 0], return_counts=True)
    cap = capped(Copy(law), delta)
    same = times * (rate * probs + (1 - rate) * probs**2)
    outcomes = np.append(same, max(1 - same.sum(), 0.0))
    score = np.append(np.minimum(1 / probs, cap), 0.0)
    return _needed(outcomes, score, cap, bets, log_threshold, delta, beta)


def smallest_detectable_pairs(
    law: FloatArray,
    pairs: int,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> float:
    """Return the smallest rate of copying (within 1 %) that the pairs show; inf if none."""

    def seen(rate: float) -> bool:
        needed = draws_needed_pairs(law, rate, bets, log_threshold, delta=delta, beta=beta)
        return needed <= pairs

    if not seen(1.0):
        return math.inf
    low, high = 1e-6, 1.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def assert_pairs(
    law: FloatArray,
    rate: float,
    pairs: int,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> None:
    """Raise PowerError unless the pairs show copying at the rate."""
    needed = draws_needed_pairs(law, rate, bets, log_threshold, delta=delta, beta=beta)
    if pairs < needed:
        msg = f"{pairs} pairs are refused: copying with probability {rate:g} needs {needed:.4g}"
        raise PowerError(msg)


def call_pairs_needed(
    ids: int,
    rows: int,
    rate: float,
    bets: int,
    log_threshold: float,
    *,
    delta: float = 0.0,
    beta: float = BETA,
) -> float:
    """Return the pairs of calls of flat rows after which copying is seen but for beta.

    Args:
        ids: of the flat law.
        rows: of each call.
        rate: probability with which a row copies the row that it is paired with.
        bets: number of bets in the mixture, `len(process.table)`.
        log_threshold: that the mixture must reach.
        delta: tolerance in total variation.
        beta: probability of missing it.

    """
    cap = capped(Copy(np.full(ids, 1 / ids)), delta)
    same = np.arange(rows + 1)
    law = _binomial(rows, rate + (1 - rate) / ids)
    return _needed(law, same / rows * cap, cap, bets, log_threshold, delta, beta)


def _needed(
    outcomes: FloatArray,
    score: FloatArray,
    cap: float,
    bets: int,
    log_threshold: float,
    delta: float,
    beta: float,
) -> float:
    """Return how many scores of this law the best of the bets needs.

    Args:
        outcomes: [scores] probability of each score.
        score: [scores] s of (1) in `couplings`, at most `cap`.
        cap: largest score.
        bets: number of bets in the mixture.
        log_threshold: that the mixture must reach.
        delta: tolerance in total variation.
        beta: probability of missing it.

    """
    found = math.inf
    for bet in RATES:
        worst = math.log1p(bet * (2 * delta + cap * delta**2))
        direction = Direction(outcomes, np.log1p(bet * (score - 1)) - worst)
        needed = draws_needed_directional(direction, log_threshold + math.log(bets), beta)
        found = min(found, needed)
    return found


def _binomial(draws: int, rate: float) -> FloatArray:
    """Return the probabilities [draws + 1] of the number of hits.

    `scipy.stats` has them too, but takes half a second to import, in every process of a run.
    """
    hits = np.arange(draws + 1)
    ways = gammaln(draws + 1) - gammaln(hits + 1) - gammaln(draws - hits + 1)
    law: FloatArray = np.exp(ways + xlogy(hits, rate) + xlog1py(draws - hits, -rate))
    return law

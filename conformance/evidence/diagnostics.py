"""Textbook tests beside each law, to read and never to judge by.

Their p-values are asymptotic or blind to ties and discreteness: at 1e-9 they are wrong by factors of
10 to 400 on small cells.  Each comes with the range in which it means what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from refsampler.conformance.evidence.arrays import FloatArray, IntArray

__all__ = ["Diagnostic", "binomials", "diagnostics", "g_test", "ks_pit"]

_SMALLEST_CELL = 50.0
_KS_DRAWS = 200_000


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One textbook test.

    Attributes:
        name: of the test.
        statistic: its value.
        p_value: nominal.
        valid: whether the counts lie in the range of validity.
        validity: that range, in words.

    """

    name: str
    statistic: float
    p_value: float
    valid: bool
    validity: str


def diagnostics(probs: FloatArray, counts: IntArray, seed: int) -> tuple[Diagnostic, ...]:
    """Return all of them for counts [cells] against probs [cells]; empty without draws."""
    if counts.sum() == 0 or probs.size < 2:
        return ()
    return (
        g_test(probs, counts),
        ks_pit(probs, counts, seed),
        *binomials(probs, counts),
    )


def g_test(probs: FloatArray, counts: IntArray) -> Diagnostic:
    """Likelihood-ratio test; cells of small expectation are pooled into one."""
    draws = int(counts.sum())
    small = probs * draws < _SMALLEST_CELL
    expected = np.append(probs[~small] * draws, probs[small].sum() * draws)
    seen = np.append(counts[~small], counts[small].sum())
    if not small.any():
        expected, seen = expected[:-1], seen[:-1]
    fair = expected.size >= 2 and float(expected.min()) >= _SMALLEST_CELL
    words = f"expectation >= {_SMALLEST_CELL:g} in every pooled cell, p >= 1e-6"
    if expected.size < 2:
        return Diagnostic("G", 0.0, 1.0, valid=False, validity=words)
    expected *= draws / expected.sum()
    result = stats.power_divergence(seen, expected, lambda_="log-likelihood")
    p_value = float(result.pvalue)
    return Diagnostic(
        "G", float(result.statistic), p_value, valid=fair and p_value >= 1e-6, validity=words
    )


def ks_pit(probs: FloatArray, counts: IntArray, seed: int) -> Diagnostic:
    """Kolmogorov-Smirnov test of the randomised probability integral transform, by rank."""
    rng = np.random.default_rng(seed)
    if counts.sum() > _KS_DRAWS:  # a random part of the draws, so that memory stays bounded
        counts = rng.multivariate_hypergeometric(counts, _KS_DRAWS, method="marginals")
    order = np.argsort(-probs, kind="stable")
    above = np.cumsum(probs[order]) - probs[order]
    start, width = (np.repeat(one, counts[order]) for one in (above, probs[order]))
    noise = rng.random(start.size)
    result = stats.ks_1samp(np.clip(start + width * noise, 0, 1), _uniform)
    return Diagnostic(
        "KS on randomised PIT by rank",
        float(result.statistic),
        float(result.pvalue),
        valid=start.size >= 50,
        validity="at least 50 draws; blind to shifts between ids of like rank",
    )


def _uniform(points: FloatArray) -> FloatArray:
    """Return the distribution function of uniform points in [0, 1]."""
    return points


def binomials(probs: FloatArray, counts: IntArray) -> Iterator[Diagnostic]:
    """Exact binomial tests of the most probable cell and of the most deviant one."""
    draws = int(counts.sum())
    spread = np.sqrt(np.maximum(probs * (1 - probs), 1e-300) * draws)
    far = int(np.argmax(np.abs(counts - probs * draws) / spread))
    for name, at, tests in (
        ("binomial, most probable cell", int(probs.argmax()), 1),
        ("binomial, most deviant cell (Bonferroni)", far, probs.size),
    ):
        result = stats.binomtest(int(counts[at]), draws, float(min(probs[at], 1.0)))
        yield Diagnostic(
            name,
            float(counts[at]),
            min(1.0, float(result.pvalue) * tests),
            valid=True,
            validity="exact for delta = 0 and one look",
        )

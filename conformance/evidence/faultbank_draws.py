"""Faults of the draw itself: arithmetic, noise, and draws from the wrong place.

Rounded logits and probabilities, coarse uniforms, float sums, noise that starves or favours rare
ids; a share of draws that is greedy, or from a neighbour's row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from refsampler.conformance.evidence.alternatives import (
    bfloat16_probs,
    greedy_mixture,
    id_tilt,
    narrow_cumsum,
    noise_floor,
    uniform_grid,
    zero_noise,
)
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.cells import RowLaw
from refsampler.conformance.evidence.faultlaws import (
    TEMPERATURE,
    VOCAB,
    FaultCase,
    LawPair,
    keep,
    law_of_fault,
    llm_logits,
    most_probable,
    sea_law,
    softmax,
)

__all__ = ["arithmetic_faults", "mixture_faults", "noise_faults"]


def arithmetic_faults(logits: FloatArray) -> list[FaultCase]:
    """Numbers kept too narrow."""
    full, hot = softmax(logits / TEMPERATURE), softmax(logits)
    k50 = keep(full, most_probable(full, 50))
    half, single = sea_law(1001, 2.2e-4), sea_law(VOCAB, 2.9e-8)
    close = np.array([200.49, 200.51])
    fine, coarse = sea_law(VOCAB, 0.4 * 2.0**-24), sea_law(40001, 0.4 * 2.0**-16)

    def both(
        name: str,
        typical: FloatArray,
        designed: FloatArray,
        fault: Callable[[RowLaw], FloatArray],
        design: str,
    ) -> FaultCase:
        pairs = (LawPair.of(law, law_of_fault(law, fault)) for law in (typical, designed))
        return FaultCase(name, next(pairs), next(pairs), design)

    return [
        both("running sum in float16", k50, half, lambda row: narrow_cumsum(row, np.float16),
             "likely id first, then 1000 below half an ulp"),
        both("running sum in float32", hot, single, lambda row: narrow_cumsum(row, np.float32),
             "likely id first, then a sea below half an ulp"),
        FaultCase(
            "logits rounded to bfloat16",
            LawPair.of(full, softmax(_rounded(logits) / TEMPERATURE)),
            LawPair.of(softmax(close), softmax(_rounded(close))),
            "200.49 against 200.51",
        ),
        FaultCase(
            "probabilities rounded to bfloat16",
            LawPair.of(k50, law_of_fault(k50, bfloat16_probs)), None, "",
        ),
        both("24-bit uniform", hot, fine, lambda row: uniform_grid(row, 24),
             "one id and a sea at 0.4 steps"),
        both("16-bit uniform", hot, coarse, lambda row: uniform_grid(row, 16),
             "one id and a sea at 0.4 steps"),
    ]  # fmt: skip


def _rounded(values: FloatArray) -> FloatArray:
    """Return float32 values rounded to bfloat16, to nearest even."""
    # The helper rounds numbers >= 0; the sign is put back.
    sign = np.where(values < 0, -1.0, 1.0)
    size: FloatArray = bfloat16_probs(RowLaw(np.arange(values.size), np.abs(values), values.size))
    return sign * size


def noise_faults(logits: FloatArray) -> list[FaultCase]:
    """Noise whose smallest value matters."""
    hot = softmax(logits)
    rare, sea = sea_law(VOCAB, 1e-12), sea_law(VOCAB, 2.0**-24)
    return [
        FaultCase(
            "exponential noise that can be 0",
            LawPair.of(hot, law_of_fault(hot, lambda row: zero_noise(row, 24))),
            LawPair.of(rare, law_of_fault(rare, lambda row: zero_noise(row, 24))),
            "one id, all others 1e-12",
        ),
        FaultCase(
            "noise floor 2^-24",
            LawPair.of(hot, law_of_fault(hot, lambda row: noise_floor(row, 24))),
            LawPair.of(sea, law_of_fault(sea, lambda row: noise_floor(row, 24))),
            "one id and a sea at 2^-24",
        ),
    ]


def mixture_faults(logits: FloatArray) -> list[FaultCase]:
    """Draws that come from somewhere else, or never come."""
    full, hot = softmax(logits / TEMPERATURE), softmax(logits)
    other = softmax(llm_logits(1) / TEMPERATURE)
    flat = np.full(VOCAB, 1 / VOCAB)
    one_hot = np.array([1 - 1e-9, 1e-9])
    lost = np.append(hot[:-1], 0.0)

    def greedy(rate: float) -> FaultCase:
        pairs = (
            LawPair.of(law, law_of_fault(law, lambda row: greedy_mixture(row, rate)))
            for law in (full, flat)
        )
        return FaultCase(f"{100 * rate:g} % greedy", next(pairs), next(pairs), "flat, tiny lead")

    return [
        FaultCase(
            "low ids 1 % too frequent",
            LawPair.of(hot, law_of_fault(hot, lambda row: id_tilt(row, 0.01))),
            LawPair.of(np.array([0.5, 0.5]), np.array([0.505, 0.495])),
            "two ids at the ends",
        ),
        FaultCase(
            "1 % from the neighbour's row",
            LawPair.of(full, 0.99 * full + 0.01 * other),
            LawPair.of(one_hot, 0.99 * one_hot + 0.01 * one_hot[::-1]),
            "disjoint one-hot rows",
        ),
        greedy(0.01),
        greedy(0.001),
        FaultCase(
            "last id never drawn",
            LawPair.of(hot, lost),
            LawPair.of(np.array([1e-9, 1 - 1e-9]), np.array([1.0, 0.0])),
            "all mass on the last id",
        ),
        FaultCase(
            "padding id at 1e-5",
            LawPair.of(np.append(hot, 0.0), np.append(hot * (1 - 1e-5), 1e-5)),
            None,
            "",
        ),
    ]

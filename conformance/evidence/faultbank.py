"""Real faults on realistic rows and on rows designed to show them: what power is measured on.

Every fault is a pair of exact laws, right and faulty, on an LLM-like row (V = 128256, Zipf body,
permuted ids) and, where a design exists, on the row that shows it with the fewest draws.  Here are
the faults of processing: cut-offs one id off, steps in the wrong order, penalties applied wrongly;
those of the draw are in `faultbank_draws`.
"""

from __future__ import annotations

import math

import numpy as np

from refsampler.conformance.evidence.arrays import BoolArray, FloatArray
from refsampler.conformance.evidence.faultbank_draws import (
    arithmetic_faults,
    mixture_faults,
    noise_faults,
)
from refsampler.conformance.evidence.faultlaws import (
    TEMPERATURE,
    VOCAB,
    FaultCase,
    LawPair,
    keep,
    llm_logits,
    min_p,
    most_probable,
    nucleus,
    prefix_length,
    softmax,
)

__all__ = ["fault_cases"]


def fault_cases() -> tuple[FaultCase, ...]:
    """Return all of them."""
    logits = llm_logits(0)
    return (
        *_temperature(logits),
        *_cutoffs(logits),
        *_penalties(logits),
        *arithmetic_faults(logits),
        *noise_faults(logits),
        *mixture_faults(logits),
    )


def _temperature(logits: FloatArray) -> list[FaultCase]:
    gap = math.log(VOCAB - 1) + 0.33  # where the variance of log p is largest
    sea = np.append(0.0, np.full(VOCAB - 1, -gap))
    words = "one id against a flat sea"
    typical, designed = softmax(logits / TEMPERATURE), softmax(sea)

    def hot(name: str, factor: float) -> FaultCase:
        faulty = softmax(logits / (TEMPERATURE * factor))
        return FaultCase(
            name,
            LawPair.of(typical, faulty),
            LawPair.of(designed, softmax(sea / factor)),
            words,
        )

    return [
        hot("temperature +1 %", 1.01),
        hot("temperature +0.1 %", 1.001),
        hot("temperature 0.8 raised to 0.85", 0.85 / TEMPERATURE),
    ]


def _cutoffs(logits: FloatArray) -> list[FaultCase]:
    full = softmax(logits / TEMPERATURE)
    k50, p90, m02 = keep(full, most_probable(full, 50)), nucleus(full, 0.9), min_p(full, 0.02)
    steps = softmax(np.linspace(0.0, -63e-3, 64))
    two = keep(steps, most_probable(steps, 2))
    three, four = np.array([0.48, 0.32, 0.2]), np.array([0.4, 0.3, 0.2, 0.1])
    pair = np.array([0.605, 0.395])
    half = np.array([0.4, 0.3, 0.3])
    root = softmax(np.log([0.5, 0.25, 0.25]) / 2)
    hot = softmax(logits)
    lump = np.where(p90 > 0, full, 0.0)
    lump[np.flatnonzero(lump)[-1]] += 1 - lump.sum()
    both = keep(k50, most_probable(k50, prefix_length(k50, 0.9)))
    swapped = keep(full, most_probable(full, min(50, prefix_length(full, 0.9))))
    pair_both = nucleus(keep(four, most_probable(four, 2)), 0.55)
    return [
        FaultCase(
            "top-k keeps one more",
            LawPair.of(k50, keep(full, most_probable(full, 51))),
            LawPair.of(two, keep(steps, most_probable(steps, 3))),
            "k = 2, small steps",
        ),
        FaultCase(
            "top-k keeps one less",
            LawPair.of(k50, keep(full, most_probable(full, 49))),
            LawPair.of(two, keep(steps, most_probable(steps, 1))),
            "k = 2, small steps",
        ),
        FaultCase(
            "top-p drops the crossing id",
            LawPair.of(p90, nucleus(full, 0.9, -1)),
            LawPair.of(nucleus(three, 0.6), nucleus(three, 0.6, -1)),
            ".48 .32 .2, p = .6",
        ),
        FaultCase(
            "top-p keeps one id more",
            LawPair.of(p90, nucleus(full, 0.9, 1)),
            LawPair.of(nucleus(three, 0.6), three),
            ".48 .32 .2, p = .6",
        ),
        FaultCase(
            "top-p 0.91 for 0.90",
            LawPair.of(p90, nucleus(full, 0.91)),
            LawPair.of(nucleus(pair, 0.60), nucleus(pair, 0.61)),
            ".605 .395, p = .60",
        ),
        FaultCase(
            "top-p before top-k",
            LawPair.of(both, swapped),
            LawPair.of(pair_both, keep(four, most_probable(four, 2))),
            "4 ids, k = 2, p = .55",
        ),
        FaultCase(
            "min-p not scaled by the maximum",
            LawPair.of(m02, keep(full, full >= 0.02)),
            LawPair.of(min_p(half, 0.5), np.array([1.0, 0.0, 0.0])),
            ".4 .3 .3, min-p = .5",
        ),
        FaultCase(
            "min-p before temperature",
            LawPair.of(m02, keep(full, hot >= 0.02 * hot.max())),
            LawPair.of(min_p(root, 0.6), np.array([1.0, 0.0, 0.0])),
            "3 ids, T = 2",
        ),
        FaultCase(
            "top-p without renormalisation",
            LawPair.of(p90, lump),
            LawPair.of(nucleus(three, 0.6), np.array([0.48, 0.52, 0.0])),
            ".48 .32 .2, p = .6",
        ),
    ]


def _penalised(logits: FloatArray, seen: BoolArray, penalty: float) -> FloatArray:
    """Repetition penalty: positive logits are divided, negative ones multiplied."""
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def _penalties(logits: FloatArray) -> list[FaultCase]:
    rng = np.random.default_rng(7)
    order = np.argsort(-logits)
    count = np.zeros(VOCAB)
    count[order[rng.choice(400, 60, replace=False)]] = rng.integers(1, 5, 60)
    seen = count > 0
    one = np.array([True, False])
    once = _penalised(logits, seen, 1.1)
    low = logits - 16.0
    wrong_sign = np.where(seen, low / 1.1, low)
    high_pair, low_pair = np.array([660.0, 570.0]), np.array([-600.0, -610.0])
    with_prompt = seen.copy()
    with_prompt[order[0]] = True
    bias = np.zeros(VOCAB)
    bias[order[3]] = 1.0
    pair_once = _penalised(high_pair, one, 1.1)
    return [
        FaultCase(
            "repetition penalty applied twice",
            LawPair.of(
                softmax(once / TEMPERATURE), softmax(_penalised(once, seen, 1.1) / TEMPERATURE)
            ),
            LawPair.of(softmax(pair_once), softmax(_penalised(pair_once, one, 1.1))),
            "660 against 570: the order flips",
        ),
        FaultCase(
            "repetition penalty divides negative logits",
            LawPair.of(
                softmax(_penalised(low, seen, 1.1) / TEMPERATURE), softmax(wrong_sign / TEMPERATURE)
            ),
            LawPair.of(
                softmax(_penalised(low_pair, one, 1.1)), softmax(low_pair / np.array([1.1, 1]))
            ),
            "-600 against -610: the order flips",
        ),
        FaultCase(
            "frequency penalty ignores counts",
            LawPair.of(
                softmax((logits - 0.3 * count) / TEMPERATURE),
                softmax((logits - 0.3 * seen) / TEMPERATURE),
            ),
            LawPair.of(softmax(np.array([-80.0, -40.0])), softmax(np.array([-1.0, -40.0]))),
            "count 80, gap 40",
        ),
        FaultCase(
            "presence penalty hits a prompt id",
            LawPair.of(
                softmax((logits - 0.3 * seen) / TEMPERATURE),
                softmax((logits - 0.3 * with_prompt) / TEMPERATURE),
            ),
            LawPair.of(softmax(np.array([0.0, -1.0])), softmax(np.array([-2.0, -1.0]))),
            "penalty 2, gap 1",
        ),
        FaultCase(
            "logit bias after temperature",
            LawPair.of(
                softmax((logits + bias) / TEMPERATURE), softmax(logits / TEMPERATURE + bias)
            ),
            LawPair.of(softmax(np.array([120.0, 150.0])), softmax(np.array([240.0, 150.0]))),
            "T = 2, bias 240: the order flips",
        ),
    ]

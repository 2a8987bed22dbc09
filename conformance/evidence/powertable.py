"""Draws to rejection, measured, over the least that any test needs: ln(1/alpha) / KL.

One simulated row per fault, drawn from the faulty law and looked at in growing batches.  The same
draws are judged four ways:

* *declared*: the fault is one of 64 equally weighted alternatives, single case at 1e-9;
* *left out*: without it, and without any alternative that is nearly the same law;
* *generic*: without any alternative;
* *in the run*: declared, at the run's own clause weights, as one of `RUN_CASES` cases.

A fault that leaves the support is found by its first draw outside, by whatever test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import BANK, Alternative
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.budget import RUN_CLAUSES, TOTAL, Budget
from refsampler.conformance.evidence.faultlaws import FaultCase, LawPair
from refsampler.conformance.evidence.law import BANK_SHARE, LawCase, LawProcess
from refsampler.conformance.evidence.pool import case_log_threshold

__all__ = [
    "ALTERNATIVES",
    "RUN_CASES",
    "DesignLine",
    "PowerLine",
    "design_line",
    "geometric_mean",
    "power_line",
    "simulate",
]

ALTERNATIVES: Final = 64
"""Size of the bank that is paid for: every alternative has weight 1/64."""

RUN_CASES: Final = 12
"""Law cases of a run."""

_SAME: Final = 1e-3  # of the fault's divergence: so near, an alternative is the fault itself
_FIRST_LOOK: Final = 0.04  # of the least number of draws
_GROWTH: Final = 1.05
_MOST: Final = 600.0  # times the least number of draws; beyond it a fault counts as not found


@dataclass(frozen=True, slots=True)
class PowerLine:
    """One fault on its LLM-like row.

    Attributes:
        fault: its name.
        total_variation: TV of the two laws.
        least: ln(1/alpha) / KL draws.
        declared: median draws over `least`, with the fault in the bank.
        left_out: with it left out; inf if not found.
        generic: without a bank; inf if not found.
        in_run: declared, at the run's weights.

    """

    fault: str
    total_variation: float
    least: float
    declared: float
    left_out: float
    generic: float
    in_run: float


@dataclass(frozen=True, slots=True)
class DesignLine:
    """One fault on its designed row.

    Attributes:
        fault: its name.
        design: the row, in words.
        typical: draws by the declared alternative on the LLM-like row.
        designed: draws on the designed row.

    """

    fault: str
    design: str
    typical: float
    designed: float

    @property
    def gain(self) -> float:
        """Return how many times fewer draws the design needs."""
        return self.typical / self.designed


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(math.log(one) for one in values) / len(values))


def design_line(case: FaultCase) -> DesignLine | None:
    """Return the gain of the design; None without one.  Closed form, as a median."""
    if case.designed is None:
        return None
    typical, designed = _declared_draws(case.typical), _declared_draws(case.designed)
    return DesignLine(case.name, case.design, typical, designed)


def _declared_draws(pair: LawPair) -> float:
    if pair.outside > 0:
        return max(1.0, math.log(2) / pair.outside)
    return max(1.0, math.log(ALTERNATIVES / TOTAL) / pair.divergence)


def power_line(case: FaultCase, repeats: int, seed: int) -> PowerLine | None:
    """Simulate one fault; None if it leaves the support.

    Args:
        case: the fault.
        repeats: runs, of which the median is taken; odd.
        seed: of the draws.

    """
    pair = case.typical
    if pair.outside > 0:
        return None
    least = -math.log(TOTAL) / pair.divergence
    law = _law_case(pair)
    siblings = _siblings(law, pair)
    rng = np.random.default_rng(seed)
    runs = [_one_run(law, siblings, pair.faulty, least, rng) for _ in range(repeats)]
    medians = np.median(np.array(runs), axis=0) / least
    return PowerLine(case.name, pair.total_variation, least, *(float(one) for one in medians))


def _law_case(pair: LawPair) -> LawCase:
    """Return the row with the fault declared, first, beside the bank; without tolerance."""
    weight = 1 / ALTERNATIVES
    declared = Alternative("the fault itself", 1.0, weight, lambda _row: pair.faulty)
    bank = (declared, *(replace(one, weight=weight) for one in BANK))
    mask = np.ones(pair.right.size, dtype=bool)
    return LawCase.build(
        "row", np.log(pair.right), core=mask, hull=mask, delta=0.0, floor=0.0, alternatives=bank
    )


def _siblings(law: LawCase, pair: LawPair) -> FloatArray:
    """Return log weights of the alternatives that are another fault; -inf for the others."""
    live = pair.faulty > 0
    with np.errstate(divide="ignore"):  # exactly -inf: any floor would let the fault back in
        logs = np.log(pair.faulty[live]) - np.log(law.laws[:, live])
        apart = logs @ pair.faulty[live]
        weights = np.array([one.weight for one in law.alternatives])
        return np.log(np.where(apart > _SAME * pair.divergence, weights, 0.0))


def _one_run(
    case: LawCase, siblings: FloatArray, faulty: FloatArray, least: float, rng: np.random.Generator
) -> list[float]:
    """Return the draws after which each of the four ways rejects; inf if it did not."""
    process = LawProcess(case)
    bank = len(case.alternatives)
    log_threshold = -math.log(TOTAL)
    run_threshold = Budget(RUN_CLAUSES).log_threshold("draw.law")
    found = [math.inf] * 4
    drawn, target = 0, max(1.0, _FIRST_LOOK * least)
    while any(math.isinf(one) for one in found) and drawn < _MOST * least:
        batch = max(1, math.ceil(target) - drawn)
        process.update(rng.multinomial(batch, faulty))
        drawn, target = drawn + batch, target * _GROWTH
        weighted = np.array([one.log_weighted for one in process.components])
        generic = np.logaddexp.reduce(weighted[bank:])
        kept = math.log(BANK_SHARE) + np.logaddexp.reduce(process.log_components + siblings)
        whole = np.logaddexp.reduce(weighted)
        shared = process.log_components[0] - math.log(ALTERNATIVES) - math.log(2)
        excess = (
            whole - log_threshold,
            np.logaddexp(kept, generic) - log_threshold,
            generic - log_threshold,
            max(shared - run_threshold, whole - case_log_threshold(run_threshold, 1 / RUN_CASES)),
        )
        found = [
            drawn if math.isinf(one) and beyond >= 0 else one
            for one, beyond in zip(found, excess, strict=True)
        ]
    return found


def simulate(
    cases: tuple[FaultCase, ...],
    repeats: int,
    seed: int,
    tell: Callable[[FaultCase], None] = lambda _case: None,
) -> list[PowerLine]:
    """Return the lines of the faults that stay in the support."""
    lines = []
    for at, case in enumerate(cases):
        tell(case)
        line = power_line(case, repeats, seed + at)
        if line is not None:
            lines.append(line)
    return lines

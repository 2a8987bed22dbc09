"""The e-process of one clause over all of its cases.

    E_c = 1/2 sum_j w_j prod_k LR_jk + 1/2 sum_k v_k E_k

The product finds a fault that all cases share; the sum finds one that a single case shows.  Both are
averages with weights fixed by the plan, over the *planned* cases: one that has not started counts 1,
and so does what the weights leave below 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import Weighted
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.law import CaseEvidence, Component

__all__ = [
    "NO_BET",
    "ClausePool",
    "PlannedCase",
    "case_log_threshold",
    "equal_weights",
    "fuzz_weight",
]


NO_BET: Final = Component("nothing", 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case of the plan and its weight v_k."""

    case: str
    weight: float


def equal_weights(cases: Iterable[str]) -> tuple[PlannedCase, ...]:
    """Return the cases with equal weights."""
    names = tuple(cases)
    return tuple(PlannedCase(name, 1 / len(names)) for name in names)


def fuzz_weight(k: int) -> float:
    """Return the weight 1/(k(k+1)) of the k-th fuzzed case, k >= 1; all of them sum to 1."""
    return 1 / (k * (k + 1))


def case_log_threshold(log_threshold: float, weight: float) -> float:
    """Return the log e at which one case of weight v_k fails the clause all by itself."""
    return log_threshold + math.log(2) - math.log(weight)


class ClausePool:
    """The evidence of one clause.  FAIL latches when it ever reaches 1/alpha.

    Args:
        planned: the cases; empty for a fuzzing run, where the k-th case to arrive gets weight
            1/(k(k+1)).
        alternatives: the bank that all cases share; without one half of E_c stays at 1.
        log_threshold: ln(1/alpha) of the clause.

    Attributes:
        log_threshold: ln(1/alpha) of the clause.
        log_e_max: largest log E_c at any look.
        failed: True once log E_c reached the threshold.
        best: the bet that carried most at that largest look, an alternative over all cases or one
            case; NO_BET while E_c never exceeded 1.

    """

    def __init__(
        self,
        planned: tuple[PlannedCase, ...],
        alternatives: Sequence[Weighted],
        log_threshold: float,
    ) -> None:
        weights = {one.case: one.weight for one in planned}
        total = math.fsum(weights.values())
        if len(weights) != len(planned):
            raise ValueError("planned cases are refused: allowed is each case once")
        if any(weight <= 0 for weight in weights.values()) or total > 1 + 1e-12:
            msg = f"case weights of sum {total} are refused: allowed are positive ones of sum <= 1"
            raise ValueError(msg)
        self.log_threshold = log_threshold
        self.log_e_max = 0.0
        self.failed = False
        self.best = NO_BET
        self._open = not planned
        self._weights = weights
        self._alternatives = tuple(alternatives)
        self._latest: dict[str, CaseEvidence] = {}
        self._components: dict[str, FloatArray] = {}

    def update(self, evidence: CaseEvidence) -> float:
        """Replace what one case says, look, and return log E_c.

        Raises:
            ValueError: the case was not planned, or has another bank.

        """
        if len(evidence.log_components) != len(self._alternatives):
            msg = f"{evidence.case} has {len(evidence.log_components)} alternatives, the pool "
            raise ValueError(msg + f"{len(self._alternatives)}")
        if self._open and evidence.case not in self._weights:
            self._weights[evidence.case] = fuzz_weight(len(self._weights) + 1)
        if evidence.case not in self._weights:
            raise ValueError(f"case {evidence.case} is refused: allowed are the planned ones")
        self._latest[evidence.case] = evidence
        self._components[evidence.case] = np.array(evidence.log_components)
        log_e = self.log_e
        if log_e > self.log_e_max:
            self.log_e_max = log_e
            self.best = max([*self._shared(), *self._single()], key=lambda one: one.log_weighted)
        self.failed = self.failed or log_e >= self.log_threshold
        return log_e

    @property
    def log_e(self) -> float:
        """Return log E_c now."""
        shared = [one.log_weighted for one in self._shared()]
        single = [one.log_weighted for one in self._single()]
        started = math.fsum(self._weights[case] for case in self._latest)
        silent = max(1 - started, 0.0)
        unbet = max(1 - math.fsum(one.weight for one in self._alternatives), 0.0)
        constant = (silent + unbet) / 2
        terms = np.array([*shared, *single, math.log(constant) if constant > 0 else -math.inf])
        return float(np.logaddexp.reduce(terms))

    def _shared(self) -> list[Component]:
        """Return the pooled product of every alternative, with its weight in E_c."""
        products = np.zeros(len(self._alternatives))
        for one in self._components.values():
            products = products + one
        return [
            Component(
                f"all cases: {one.name}",
                float(log_e),
                float(log_e) + math.log(one.weight) + math.log(0.5),
            )
            for one, log_e in zip(self._alternatives, products, strict=True)
        ]

    def _single(self) -> list[Component]:
        """Return what every started case says, with its weight in E_c."""
        return [
            Component(
                f"{one.case}: {one.best.name}",
                one.log_e,
                one.log_e + math.log(self._weights[one.case]) + math.log(0.5),
            )
            for one in self._latest.values()
        ]

"""Whole runs of the evidence on simulated samplers: how often is an obeyed clause reported?

A small run: four law cases (one of them the tail's row, rare ids lumped), a batch of rows with
different laws, tails of three grades, flat rows for independence, and speculative steps, each looked
at five times and judged with the clause weights of a real run.  The sampler is right, or as wrong as its tolerance
allows in the way that one bet likes best (the least favourable law), or breaks one clause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.budget import RUN_CLAUSES, Budget
from refsampler.conformance.evidence.couplings import inverse_cdf
from refsampler.conformance.evidence.hetero import HeteroBatch, HeteroProcess, neighbours
from refsampler.conformance.evidence.independence import PairProcess
from refsampler.conformance.evidence.law import LawCase, LawProcess
from refsampler.conformance.evidence.pairings import call_lags, row_lags, stream_lags
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.evidence.tail import BAND, TAIL_BETS, TailCase, TailProcess
from refsampler.conformance.evidence.tolerance import least_favourable_law

__all__ = ["BREAKS", "DELTA", "Break", "Kind", "RunResult", "Simulator"]

DELTA: Final = 1e-3
"""Tolerance of the simulated subject."""

Kind = Literal["exact", "least favourable"]
Break = Literal[
    "draw.law",
    "draw.tail",
    "independence.rows",
    "independence.calls",
    "independence.streams",
    "spec.law",
    "spec.draft-law",
]

BREAKS: Final[Mapping[Break, str]] = {
    "draw.law": "temperature 25 % high on every law row",
    "draw.tail": "the tail is never drawn (its mass is below delta: the law stays true)",
    "independence.rows": "every row of the flat calls copies the row before it with rate 1/2",
    "independence.calls": "every call after the first repeats the call before it",
    "independence.streams": "the later stream takes 1 - u of the draws",
    "spec.law": "a rejected draft is replaced by an id of the whole target law",
    "spec.draft-law": "drafts come 25 % hotter than they are told",
}

_LOOKS: Final = (200, 800, 3000, 12000, 50000)
_TAIL_DRAWS: Final = 20  # times as many on tails
_GRADES: Final = (1e-5, 1e-6, 1e-7)
_SEA: Final = 4095
_FLAT: Final = 4096
_ROWS: Final = 128
_CALLS: Final = 8
_TARGET: Final = np.array([0.1, 0.45, 0.45])
_DRAFT: Final = np.array([0.7, 0.25, 0.05])
_FURTHEST: Final = 8


@dataclass(frozen=True, slots=True)
class RunResult:
    """One simulated run.

    Attributes:
        highest: clause -> largest log E_c at any look.
        failed: clauses reported FAIL.

    """

    highest: Mapping[str, float]
    failed: frozenset[str]


class Simulator:
    """Simulates runs; everything that does not depend on draws is made once."""

    def __init__(self) -> None:
        self._laws = (
            _law_case("two ids", np.array([0.7, 0.3])),
            _law_case("16 ids", _zipf(16, 1)),
            _law_case("200 ids", _zipf(200, 2)),
            _law_case("tail's row", _sea_law(_GRADES[2]), floor=1e-5),
        )
        self._worst = [_least_favourable(case) for case in self._laws]
        self._rows = np.stack([_zipf(48, 10 + row) for row in range(24)])
        self._tails = tuple(_tail_case(grade) for grade in _GRADES)
        self._flat = np.full(_FLAT, 1 / _FLAT)
        self._steps = {
            "spec.law": _law_case("two emitted ids", np.outer(_TARGET, _TARGET).ravel()),
            "spec.draft-law": _law_case("drafts", _DRAFT),
        }
        self._worst_steps = {name: _least_favourable(one) for name, one in self._steps.items()}
        self._budget = Budget(RUN_CLAUSES)

    def run(self, number: int, kind: Kind = "exact", broken: Break | None = None) -> RunResult:
        """Simulate run `number`, which also seeds it."""
        case = 0 if broken is None else 1 + list(BREAKS).index(broken)
        rng = np.random.default_rng([number, kind == "exact", case])
        pools = {
            "draw.law": self._law(rng, number, kind, broken),
            "draw.tail": self._tail(rng, number, kind, broken),
            **self._independence(rng, kind, broken),
            **self._speculative(rng, number, kind, broken),
        }
        return RunResult(
            {clause: pool.log_e_max for clause, pool in pools.items()},
            frozenset(clause for clause, pool in pools.items() if pool.failed),
        )

    # ---- draw.law

    def _law(
        self, rng: np.random.Generator, number: int, kind: Kind, broken: Break | None
    ) -> ClausePool:
        processes = [LawProcess(case) for case in self._laws]
        different = HeteroProcess("different rows", ("the neighbour's law",))
        names = [*(one.case.name for one in processes), different.name]
        bank = self._laws[0].alternatives
        pool = ClausePool(equal_weights(names), bank, self._budget.log_threshold("draw.law"))
        laws = [self._true_law(at, number, kind, broken) for at in range(len(processes))]
        for look in _LOOKS:
            for process, law in zip(processes, laws, strict=True):
                process.update(_counts(rng, process.case, law, look))
                pool.update(process.evidence())
            different.update(self._different_rows(rng, kind, broken))
            pool.update(different.evidence(bank))
        return pool

    def _true_law(self, at: int, number: int, kind: Kind, broken: Break | None) -> FloatArray:
        """Return what the simulated sampler draws cells from."""
        case = self._laws[at]
        if case.cells.labels:  # the tail's row: one likely id, and the rare ones as one cell
            rare = 0.0 if broken == "draw.tail" else case.probs[1]
            return np.array([1 - rare, rare])
        if broken == "draw.law":
            return _hot(case.probs)
        worst: FloatArray = self._worst[at][number % len(case.alternatives)]
        return case.probs if kind == "exact" else worst

    def _different_rows(
        self, rng: np.random.Generator, kind: Kind, broken: Break | None
    ) -> HeteroBatch:
        laws = self._rows
        if broken == "draw.law":
            laws = np.stack([_hot(one) for one in laws])
        elif kind != "exact":
            top = laws == laws.max(axis=1, keepdims=True)
            laws = (1 - DELTA) * laws + DELTA * top
        ends = np.cumsum(laws, axis=1)
        draws = (rng.random((laws.shape[0], 1)) * ends[:, -1:] > ends).sum(axis=1)
        mask = np.ones(laws.shape, dtype=bool)
        wrong = (neighbours(self._rows),)
        return HeteroBatch(np.log(self._rows), mask, mask, draws, DELTA, wrong)

    # ---- draw.tail

    def _tail(
        self, rng: np.random.Generator, number: int, kind: Kind, broken: Break | None
    ) -> ClausePool:
        processes = [TailProcess(case) for case in self._tails]
        names = equal_weights(one.case.name for one in processes)
        pool = ClausePool(names, TAIL_BETS, self._budget.log_threshold("draw.tail"))
        factor = 1.0 if kind == "exact" else 1 + BAND * (-1) ** number
        for look in _LOOKS:
            for process in processes:
                mass = 0.0 if broken == "draw.tail" else factor * process.case.mass
                draws = _TAIL_DRAWS * look
                process.add(int(rng.binomial(draws, mass)), draws)
                pool.update(process.evidence())
        return pool

    # ---- independence

    def _independence(
        self, rng: np.random.Generator, kind: Kind, broken: Break | None
    ) -> dict[str, ClausePool]:
        processes = {
            "independence.rows": PairProcess(
                self._flat, row_lags(_ROWS, _FLAT), DELTA, calls=_CALLS
            ),
            "independence.calls": PairProcess(self._flat, call_lags(), DELTA),
            "independence.streams": PairProcess(
                self._flat, stream_lags(_FURTHEST), DELTA, trusted=True
            ),
        }
        pools = {
            clause: ClausePool(
                equal_weights([one.name]), one.bets, self._budget.log_threshold(clause)
            )
            for clause, one in processes.items()
        }
        for ids, later in self._flat_calls(rng, kind, broken):
            processes["independence.rows"].update(ids)
            processes["independence.calls"].update(ids)
            processes["independence.streams"].update_streams(ids, later)
            for clause, one in processes.items():
                pools[clause].update(one.evidence())
        return pools

    def _flat_calls(
        self, rng: np.random.Generator, kind: Kind, broken: Break | None
    ) -> list[tuple[IntArray, IntArray]]:
        """Return calls of equal flat rows, each with the ids that later uniforms stand for."""
        law = self._flat
        if kind != "exact":  # an id that takes as much as the tolerance allows meets itself most
            law = (1 - DELTA) * law
            law[int(rng.integers(_FLAT))] += DELTA
        uniforms = rng.random((_CALLS, _ROWS))
        if broken == "independence.rows":
            copied = rng.random((_CALLS, _ROWS)) < 0.5
            for row in range(1, _ROWS):
                before, own = uniforms[:, row - 1], uniforms[:, row]
                uniforms[:, row] = np.where(copied[:, row], before, own)
        if broken == "independence.calls":
            uniforms = np.broadcast_to(uniforms[0], uniforms.shape)
        fresh = rng.random((_CALLS, _ROWS))
        later = 1 - uniforms if broken == "independence.streams" else fresh
        ids = inverse_cdf(law, uniforms.reshape(-1)).reshape(_CALLS, _ROWS)
        late = inverse_cdf(self._flat, later.reshape(-1)).reshape(_CALLS, _ROWS)
        return list(zip(ids, late, strict=True))

    # ---- spec

    def _speculative(
        self, rng: np.random.Generator, number: int, kind: Kind, broken: Break | None
    ) -> dict[str, ClausePool]:
        pools = {}
        for clause, case in self._steps.items():
            process = LawProcess(case)
            pool = ClausePool(
                equal_weights([case.name]), case.alternatives, self._budget.log_threshold(clause)
            )
            worst = self._worst_steps[clause]
            law = case.probs if kind == "exact" else worst[number % len(worst)]
            if broken == clause:
                law = _recovered_from_target() if clause == "spec.law" else _hot(_DRAFT)
            for look in _LOOKS:
                process.update(_counts(rng, case, law, look))
                pool.update(process.evidence())
            pools[clause] = pool
        return pools


# ---- inputs


def _zipf(ids: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    weight = np.exp(-1.15 * np.log(np.arange(ids) + 1.5) + 0.4 * rng.standard_normal(ids))
    law: FloatArray = rng.permutation(weight / weight.sum())
    return law


def _hot(law: FloatArray) -> FloatArray:
    hot = law ** (1 / 1.25)
    warmer: FloatArray = hot / hot.sum()
    return warmer


def _recovered_from_target() -> FloatArray:
    """Return the law of two emitted ids, of which a rejected first one is drawn from the target."""
    accepted = np.minimum(_TARGET, _DRAFT)
    law: FloatArray = np.outer(accepted + (1 - accepted.sum()) * _TARGET, _TARGET).ravel()
    return law


def _sea_law(grade: float) -> FloatArray:
    return np.append(1 - _SEA * grade, np.full(_SEA, grade))


def _law_case(name: str, probs: FloatArray, floor: float = 0.0) -> LawCase:
    mask = np.ones(probs.size, dtype=bool)
    return LawCase.build(name, np.log(probs), core=mask, hull=mask, delta=DELTA, floor=floor)


def _tail_case(grade: float) -> TailCase:
    probs = _sea_law(grade)
    mask = np.ones(probs.size, dtype=bool)
    tail = np.arange(probs.size) > 0
    return TailCase.build(f"tail {grade:g}", np.log(probs), tail, core=mask, hull=mask)


def _least_favourable(case: LawCase) -> FloatArray:
    """Return per alternative the law of the ball that its bet likes best."""
    scores = np.exp(case.log_ratios)
    return np.stack([least_favourable_law(case.probs, one, DELTA) for one in scores])


def _counts(rng: np.random.Generator, case: LawCase, law: FloatArray, draws: int) -> IntArray:
    """Return counts [vocab] of draws from a law on cells; a lump's draws all take one of its ids."""
    cells = case.cells
    first = np.unique(cells.cell_of_id, return_index=True)[1]
    counts = np.zeros(cells.cell_of_id.size, dtype=np.int64)
    counts[first] = rng.multinomial(draws, law)
    return counts

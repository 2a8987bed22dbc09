"""The e-process of `draw.law` on one planned row.

Per draw x of a cell, alternative j multiplies its e-value by the clipped likelihood ratio
q_j(x)/p(x) (`tolerance`); generic bets (`generic`) run beside them.  The mixture over all of them is
a non-negative supermartingale under every law within TV delta of the exact one, so
P(it ever reaches 1/alpha) <= alpha (Ville), at any number of looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import BANK, Alternative
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray, frozen
from refsampler.conformance.evidence.cells import Cells
from refsampler.conformance.evidence.generic import (
    EventBets,
    LearntBet,
    event_sets,
    log_mean,
    loudest,
)
from refsampler.conformance.evidence.partitions import Partition, partitions
from refsampler.conformance.evidence.tolerance import clipped_log_ratio

__all__ = ["BANK_SHARE", "CaseEvidence", "Component", "LawCase", "LawProcess"]

BANK_SHARE: Final = 0.5
_CELL_EVENTS_SHARE: Final = 0.125
_BUCKET_EVENTS_SHARE: Final = 0.125
_LEARNT_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Component:
    """One bet.

    Attributes:
        name: what it says is wrong, in words.
        log_e: of the bet alone.
        log_weighted: with its weight in the case's mixture.

    """

    name: str
    log_e: float
    log_weighted: float


@dataclass(frozen=True, slots=True)
class CaseEvidence:
    """What one case says at a look.

    Attributes:
        case: id of the case.
        log_e: of the case's mixture.
        log_components: per alternative of the bank, in its order.
        best: the bet that carries most.
        draws: that went into cells.
        skipped: draws in the hull about which the law says nothing.
        outside: draws that no right backend gives; one is a failure.

    """

    case: str
    log_e: float
    log_components: tuple[float, ...]
    best: Component
    draws: int
    skipped: int
    outside: int


@dataclass(frozen=True, slots=True, eq=False)
class LawCase:
    """The law of one planned row, on cells, with everything that bets on it.

    Attributes:
        name: id of the case.
        cells: ids sorted into cells, with the exact law.
        delta: radius of the null in total variation.
        alternatives: the bank.
        laws: [alternatives, cells] faulty laws.
        log_ratios: [alternatives, cells] log e of one draw.
        partitions: coarse views.

    """

    name: str
    cells: Cells
    delta: float
    alternatives: tuple[Alternative, ...]
    laws: FloatArray
    log_ratios: FloatArray
    partitions: tuple[Partition, ...]

    @classmethod
    def build(
        cls,
        name: str,
        logprobs: FloatArray,
        *,
        core: BoolArray,
        hull: BoolArray,
        delta: float,
        floor: float,
        lumped: BoolArray | None = None,
        lump_logprob: float = -np.inf,
        alternatives: tuple[Alternative, ...] = BANK,
    ) -> LawCase:
        """Prepare the row's law.

        Args:
            name: id of the case.
            logprobs: [vocab] exact log probabilities, read on core ids that are not lumped, up to
                a constant shared with lump_logprob.
            core: [vocab] ids that every right backend keeps; the law is conditional on these and
                the lump.
            hull: [vocab] ids that a right backend may keep; draws of other ids are `outside`.
            delta: radius in total variation, rounding (2^-23 M) included.
            floor: ids of smaller probability are one cell.
            lumped: [vocab] tied ids of which only the summed mass is determined.
            lump_logprob: log of that mass.
            alternatives: the bank; names are unique and weights sum to at most 1.

        Raises:
            ValueError: an argument is out of its range, in words.

        """
        if not 0 <= delta < 1:
            raise ValueError(f"delta = {delta} is refused: allowed is 0 <= delta < 1")
        _check_bank(alternatives)
        tied = np.zeros_like(core) if lumped is None else lumped
        cells = Cells.build(logprobs, core, hull, tied, lump_logprob, floor)
        shape = (len(alternatives), cells.probs.size)
        laws, ratios = np.empty(shape), np.empty(shape)
        for at, alternative in enumerate(alternatives):
            laws[at] = cells.fold(alternative.fault(cells.live))
            ratios[at] = clipped_log_ratio(cells.probs, laws[at], delta)
        return cls(
            name, cells, delta, alternatives, frozen(laws), frozen(ratios), partitions(cells)
        )

    @property
    def probs(self) -> FloatArray:
        """Return the exact law [cells]."""
        return self.cells.probs


def _check_bank(alternatives: tuple[Alternative, ...]) -> None:
    names = [one.name for one in alternatives]
    if len(set(names)) != len(names):
        raise ValueError(f"alternatives {names} are refused: allowed is each name once")
    total = sum(one.weight for one in alternatives)
    if any(one.weight <= 0 for one in alternatives) or total > 1 + 1e-12:
        msg = f"weights that sum to {total} are refused: allowed are positive ones of sum <= 1"
        raise ValueError(msg)


class LawProcess:
    """The evidence of one case, batch by batch.

    Args:
        case: the planned row.

    Attributes:
        case: the planned row.
        counts: [cells] draws so far.
        skipped: draws in the hull about which the law says nothing.
        outside: draws that no right backend gives; one is a failure.
        log_components: [alternatives] log e of each declared alternative, for pooling over cases.

    """

    def __init__(self, case: LawCase) -> None:
        self.case = case
        self.counts: IntArray = np.zeros(case.probs.size, dtype=np.int64)
        self.skipped = 0
        self.outside = 0
        self.log_components: FloatArray = np.zeros(len(case.alternatives))
        self._weights = np.log([one.weight for one in case.alternatives])
        self._cell_events = EventBets.build(case.probs, case.delta)
        self._bucket_events = [
            EventBets.build(event_sets(view, view.probs), case.delta) for view in case.partitions
        ]
        self._learnt = [LearntBet(case.probs, case.delta)]
        self._learnt += [LearntBet(view.probs, case.delta) for view in case.partitions]

    @property
    def draws(self) -> int:
        """Return the number of draws in cells."""
        return int(self.counts.sum())

    def update(self, counts: IntArray) -> None:
        """Take one batch of new draws, as counts [vocab].

        Raises:
            ValueError: the counts have another length or are negative.

        """
        tally = self.case.cells.tally(counts)
        self.skipped += tally.skipped
        self.outside += tally.outside
        seen = np.flatnonzero(tally.counts)
        self.log_components = (
            self.log_components + self.case.log_ratios[:, seen] @ tally.counts[seen]
        )
        self.counts = self.counts + tally.counts
        self._learnt[0].update(tally.counts)
        for view, learnt in zip(self.case.partitions, self._learnt[1:], strict=True):
            learnt.update(view.fold(tally.counts))

    @property
    def components(self) -> tuple[Component, ...]:
        """Return every bet with its weight: the bank's, then the generic ones."""
        bank = np.log(BANK_SHARE) + self._weights
        named = [
            Component(one.name, float(log_e), float(log_e + weight))
            for one, log_e, weight in zip(
                self.case.alternatives, self.log_components, bank, strict=True
            )
        ]
        return (*named, *self._generic())

    def _generic(self) -> list[Component]:
        draws, views = self.draws, self.case.partitions
        each = self._cell_events.log_each(self.counts, draws)
        name = loudest(each, self.case.cells.describe)
        found = [_component(name, log_mean(each), _CELL_EVENTS_SHARE)]
        for view, events in zip(views, self._bucket_events, strict=True):
            each = events.log_each(event_sets(view, view.fold(self.counts)), draws)
            name = loudest(each, view.describe)
            found.append(_component(name, log_mean(each), _BUCKET_EVENTS_SHARE / len(views)))
        names = ["learnt law", *(f"learnt law by {view.name}" for view in views)]
        for name, learnt in zip(names, self._learnt, strict=True):
            found.append(_component(name, learnt.log_e, _LEARNT_SHARE / len(names)))
        return found

    @property
    def log_e(self) -> float:
        """Return log e of the case's mixture."""
        return float(np.logaddexp.reduce([one.log_weighted for one in self.components]))

    @property
    def best(self) -> Component:
        """Return the bet that carries most of the mixture."""
        return max(self.components, key=lambda one: one.log_weighted)

    def evidence(self) -> CaseEvidence:
        """Return what the case says now."""
        components = self.components
        return CaseEvidence(
            case=self.case.name,
            log_e=float(np.logaddexp.reduce([one.log_weighted for one in components])),
            log_components=tuple(self.log_components.tolist()),
            best=max(components, key=lambda one: one.log_weighted),
            draws=self.draws,
            skipped=self.skipped,
            outside=self.outside,
        )


def _component(name: str, log_e: float, weight: float) -> Component:
    return Component(name, log_e, log_e + float(np.log(weight)))

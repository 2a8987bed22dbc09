"""The law of a fuzzed backend: one e-process over unlike rows, drawn once each.

Every batch is fixed before its draws, so the product over batches is an e-process however the next
batch was chosen: valid at any time, for ever.  It is charged the share of `draw.law` in a run, and
nothing else of a fuzzing run is sequential.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.expected import Expected, RowExpected
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.hetero import HeteroBatch, HeteroProcess
from refsampler.conformance.plan import LAW
from refsampler.conformance.sequential import SPLIT

__all__ = ["LOG_THRESHOLD", "LawEvidence", "merged_log_e"]

LOG_THRESHOLD: Final = SPLIT.log_threshold(LAW)
"""Where the law is reported broken, ln(1/alpha)."""

_BLOCK: Final = 512
"""Rows that are looked at together, which is ten times cheaper than batch by batch."""
_ALIKE: Final = 32
"""Rows of one law that one batch brings; more would only be slow."""
_WIDEST: Final = 64
_LARGEST: Final = 64.0
"""M of a row whose law is judged; beyond it float32 alone moves the law."""


@dataclass(frozen=True, slots=True)
class _Row:
    law: RowExpected
    drawn: int
    delta: float


class LawEvidence:
    """What the draws of unseeded rows say about `draw.law`.

    Args:
        capabilities: of the backend; its delta is the radius of the null.

    Attributes:
        draws: rows taken.
        largest: log e at its largest.

    """

    def __init__(self, capabilities: Capabilities) -> None:
        self._delta = capabilities.delta
        self._process = HeteroProcess("fuzz")
        self._waiting: list[_Row] = []
        self.draws = 0
        self.largest = 0.0

    @property
    def failed(self) -> bool:
        """Whether the law was reported broken; that stays."""
        return self.largest >= LOG_THRESHOLD

    @property
    def components(self) -> FloatArray:
        """Log e of every bet, to be added up over declared shards."""
        return self._process.log_components

    @property
    def best(self) -> str:
        """The bet that says most, in words."""
        return self._process.evidence().best.name

    def take(self, case: Case, expected: Expected, ids: np.ndarray) -> None:
        """Take the draws of a batch, one id a row."""
        if case.logits.vocab > _WIDEST or len(ids) != len(case.requests):
            return
        unseeded = np.array([request.params.seed is None for request in case.requests])
        for kind, law in enumerate(expected.distinct):
            if not _telling(law):
                continue
            delta = self._delta + 2.0**-23 * law.magnitude
            alike = ids[unseeded & (expected.kind_of == kind)][:_ALIKE]
            self._waiting += [_Row(law, drawn, delta) for drawn in alike.tolist()]
        if len(self._waiting) >= _BLOCK:
            self.look()

    def look(self) -> float:
        """Judge what waits, and return log e."""
        rows, self._waiting = self._waiting, []
        if rows:
            self.draws += len(rows)
            self._process.update(_batch(rows))
            self.largest = max(self.largest, self._process.log_e)
        return self._process.log_e


def _telling(law: RowExpected) -> bool:
    """Whether a draw says anything, and the law is known."""
    open_ids = (law.allowed & ~law.core & ~law.tied).any()
    known = law.valid and not law.greedy and not open_ids and law.magnitude <= _LARGEST
    return bool(known) and int(law.core.sum()) > 1


def _batch(rows: list[_Row]) -> HeteroBatch:
    """Return rows of several widths as one batch; what is beyond a row's vocabulary is dead."""
    shape = (len(rows), max(len(one.law.core) for one in rows))
    least, core, support = np.full(shape, -np.inf), np.zeros(shape, bool), np.zeros(shape, bool)
    for place, one in enumerate(rows):
        width = len(one.law.core)
        least[place, :width] = one.law.least
        core[place, :width] = one.law.core
        support[place, :width] = one.law.allowed | one.law.tied
    drawn, delta = np.array([one.drawn for one in rows]), np.array([one.delta for one in rows])
    return HeteroBatch(least, core, support, drawn, delta)


def merged_log_e(shards: list[FloatArray]) -> float:
    """Return log e of shards that were declared before the start: their products, bet by bet."""
    weights = np.log([one.weight for one in HeteroProcess("fuzz").bets])
    total = np.sum(shards, axis=0)
    return float(np.logaddexp.reduce(total + weights))

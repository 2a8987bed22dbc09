"""The e-process of batches in which every row has another law and is drawn once.

Rows are independent given the past, so log e adds up over rows and calls, bet by bet; every bet is
also placed on each stratum of rows alone (`strata`).  A row whose draw lies in the hull but not in
its core says nothing; which rows those are is decided by draws, but given that a draw lies in the
core its law is the one tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.conformance.evidence.alternatives import Bet, Weighted
from refsampler.conformance.evidence.arrays import BoolArray, FloatArray, IntArray
from refsampler.conformance.evidence.features import (
    FEATURE_BETS,
    WRONG_RATES,
    Entries,
    feature_log_e,
    wrong_log_e,
)
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.strata import STRATA, row_masks

__all__ = ["HeteroBatch", "HeteroProcess", "neighbours"]

_ALL_ROWS: Final = "all rows"
_ALL_SHARE: Final = 0.5
_WRONG_SHARE: Final = 0.5
_IN_CACHE: Final = 2**15  # entries that are looked at together


@dataclass(frozen=True, slots=True, eq=False)
class HeteroBatch:
    """One call.

    Attributes:
        logprobs: [rows, vocab] exact log probabilities up to a constant per row, read on the core.
        core: [rows, vocab] ids that every right backend keeps.
        hull: [rows, vocab] ids that a right backend may keep.
        draws: [rows] ids.
        delta: radius of the null, of the batch or [rows].
        wrong: per declared wrong law its probabilities [rows, vocab], up to a constant per row.

    """

    logprobs: FloatArray
    core: BoolArray
    hull: BoolArray
    draws: IntArray
    delta: float | FloatArray
    wrong: tuple[FloatArray, ...] = ()


def neighbours(rows: FloatArray, step: int = 1) -> FloatArray:
    """Return to every row what belongs to the row before it (step 1) or after it (-1)."""
    return np.roll(rows, step, axis=0)


class HeteroProcess:
    """The evidence of heterogeneous calls.

    Args:
        name: id of the case.
        wrong: names of the declared wrong laws, in the order of every batch.

    Attributes:
        bets: every bet on every stratum with its weight, for a `ClausePool`.
        draws: that counted.
        skipped: draws in the hull about which the law says nothing.
        outside: draws that no right backend gives; one is a failure.

    """

    def __init__(self, name: str, wrong: tuple[str, ...] = ()) -> None:
        self.name = name
        self.draws = 0
        self.skipped = 0
        self.outside = 0
        self._wrong = len(wrong)
        mixed = [f"{one} in {100 * rate:g} %" for one in wrong for rate in WRONG_RATES]
        share = _WRONG_SHARE if mixed else 0.0
        each = [(one, (1 - share) / len(FEATURE_BETS)) for one in FEATURE_BETS]
        each += [(one, share / len(mixed)) for one in mixed]
        strata = [(_ALL_ROWS, _ALL_SHARE)]
        strata += [(one, (1 - _ALL_SHARE) / len(STRATA)) for one in STRATA]
        self.bets: tuple[Bet, ...] = tuple(
            Bet(f"{bet}, {rows}" if rows != _ALL_ROWS else bet, weight * part)
            for bet, weight in each
            for rows, part in strata
        )
        self._log_weights = np.log([one.weight for one in self.bets])
        self._log: FloatArray = np.zeros((len(each), len(strata)))

    def update(self, batch: HeteroBatch) -> None:
        """Take one call.

        Raises:
            ValueError: shapes differ, or the wrong laws are not the declared ones.

        """
        _check(batch, self._wrong)
        rows, vocab = batch.core.shape
        at = np.arange(rows)
        inside = (batch.draws >= 0) & (batch.draws < vocab)
        draws = np.where(inside, batch.draws, 0)
        kept = inside & batch.core[at, draws]
        allowed = inside & batch.hull[at, draws]
        self.draws += int(kept.sum())
        self.skipped += int((allowed & ~kept).sum())
        self.outside += int((~allowed & ~kept).sum())
        if not kept.any():
            return
        masks = np.concatenate([np.ones((1, rows), dtype=bool), row_masks(rows)])
        live = np.flatnonzero(kept)
        parts = max(1, int(batch.core.sum()) // _IN_CACHE)
        for part in np.array_split(live, min(parts, live.size)):
            log_e = _log_e(batch, part, draws[part])
            self._log = self._log + log_e @ masks[:, part].T.astype(np.float64)

    @property
    def log_components(self) -> FloatArray:
        """Return log e of every bet of `bets`."""
        return self._log.reshape(-1)

    @property
    def log_e(self) -> float:
        """Return log e of the mixture."""
        return float(np.logaddexp.reduce(self.log_components + self._log_weights))

    def evidence(self, bank: Sequence[Weighted] | None = None) -> CaseEvidence:
        """Return what the case says now.

        Args:
            bank: of a pool of cases with another bank: a bet on all rows takes part under the
                alternative of its name, and the other alternatives count 1.  None: `bets`.

        """
        each = self.log_components
        shared = each
        if bank is not None:
            mine = {one.name: log_e for one, log_e in zip(self.bets, each, strict=True)}
            shared = np.array([mine.get(one.name, 0.0) for one in bank])
        weighted = each + self._log_weights
        at = int(weighted.argmax())
        return CaseEvidence(
            case=self.name,
            log_e=float(np.logaddexp.reduce(weighted)),
            log_components=tuple(shared.tolist()),
            best=Component(self.bets[at].name, float(each[at]), float(weighted[at])),
            draws=self.draws,
            skipped=self.skipped,
            outside=self.outside,
        )


def _log_e(batch: HeteroBatch, rows: IntArray, draws: IntArray) -> FloatArray:
    """Return log e [bets, rows] of some rows."""
    entries = Entries.build(batch.logprobs[rows], batch.core[rows], draws)
    delta = np.broadcast_to(np.asarray(batch.delta, dtype=np.float64), batch.draws.shape)[rows]
    each = [feature_log_e(entries, delta)]
    each += [wrong_log_e(entries, one[rows], delta) for one in batch.wrong]
    return np.concatenate(each)


def _check(batch: HeteroBatch, wrong: int) -> None:
    shape = batch.core.shape
    for name, one in (("logprobs", batch.logprobs), ("hull", batch.hull), *_named(batch.wrong)):
        if one.shape != shape:
            raise ValueError(f"{name} of shape {one.shape} is refused: the core has shape {shape}")
    if batch.draws.shape != shape[:1]:
        raise ValueError(f"draws of shape {batch.draws.shape} are refused: allowed is {shape[:1]}")
    if len(batch.wrong) != wrong:
        raise ValueError(f"{len(batch.wrong)} wrong laws are refused: {wrong} were declared")
    if math.isnan(float(np.sum(batch.delta))) or np.min(batch.delta) < 0:
        raise ValueError(f"delta = {batch.delta} is refused: allowed is >= 0")


def _named(wrong: tuple[FloatArray, ...]) -> list[tuple[str, FloatArray]]:
    return [("a wrong law", one) for one in wrong]

"""Several streams, each pair of them an e-process: their average, since pairs share streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.generic import log_mean
from refsampler.conformance.evidence.independence import PairProcess
from refsampler.conformance.evidence.law import CaseEvidence
from refsampler.conformance.evidence.pairings import Lag

__all__ = ["StreamPairs"]


class StreamPairs:
    """The evidence of streams that draw at a time, all of one law.

    Args:
        streams: how many, at least two.
        law: [ids] exact law of every row.
        lags: pairings of two streams (`stream_lags`).
        delta: tolerance of the law in total variation.
        name: id of the case.
        calls: planned, of each stream.
        without: patterns of couplings that are not bet on.

    """

    def __init__(
        self,
        streams: int,
        law: FloatArray,
        lags: Sequence[Lag],
        delta: float,
        name: str,
        *,
        calls: int,
        without: Sequence[str] = (),
    ) -> None:
        if streams < 2:
            raise ValueError(f"streams = {streams} is refused: allowed is at least 2")
        self._places = tuple(combinations(range(streams), 2))
        self._pairs = tuple(
            PairProcess(
                law,
                lags,
                delta,
                f"streams {one + 1} and {two + 1}",
                calls=2 * calls,
                without=without,
            )
            for one, two in self._places
        )
        self._name, self._streams = name, streams
        self._waiting: list[IntArray] = []

    def update(self, draws: IntArray) -> None:
        """Take one call [rows] of the stream whose turn it is."""
        self._waiting.append(draws)
        if len(self._waiting) < self._streams:
            return
        for (one, two), pair in zip(self._places, self._pairs, strict=True):
            pair.update_streams(self._waiting[one], self._waiting[two])
        self._waiting = []

    def evidence(self) -> CaseEvidence:
        """Return what the case says now; nothing in it may be multiplied over cases."""
        each = [pair.evidence() for pair in self._pairs]
        best = max(each, key=lambda one: one.log_e)
        shown = replace(
            best.best,
            name=f"{best.best.name}, {best.case}",
            log_weighted=best.best.log_weighted - math.log(len(each)),
        )
        return replace(
            best,
            case=self._name,
            log_e=log_mean(np.array([one.log_e for one in each])),
            log_components=(),
            best=shown,
            draws=sum(one.draws for one in each),
            skipped=sum(one.skipped for one in each),
        )

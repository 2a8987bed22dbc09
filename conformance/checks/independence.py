"""Independence of rows, calls and streams: copied, mirrored or shifted noise in equal flat rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Kind, SideBySide
from refsampler.conformance.checks.pairs import INDEPENDENCE, SIZES, Pairing, Size
from refsampler.conformance.checks.processes import unpacked
from refsampler.conformance.evidence.alternatives import Alternative
from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.budget import Budget
from refsampler.conformance.evidence.guarantees import BETA
from refsampler.conformance.evidence.independence import RATES, PairProcess
from refsampler.conformance.evidence.pair_guarantees import (
    call_pairs_needed,
    smallest_detectable_pairs,
)
from refsampler.conformance.evidence.pairings import Lag
from refsampler.conformance.evidence.pool import case_log_threshold
from refsampler.conformance.evidence.shifts import PAIR_SHARE, ShiftedPairs
from refsampler.conformance.evidence.stream_pairs import StreamPairs
from refsampler.conformance.verdict import Power, Unplanned
from refsampler.law import target_law

__all__ = ["CHECKS", "INDEPENDENCE", "Pairing", "PlannedPairs", "plan_pairs", "unplanned_pairs"]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPairs:
    """One case of an independence clause.

    Attributes:
        check: that it belongs to.
        case: of one flat row.
        clause: that is judged.
        pairing: what is paired with what.
        rows: of each call.
        calls: of the subject, in each of its streams.
        streams: of the subject: threads or processes.
        lags: declared pairings.
        law: [ids] exact law of every row.
        delta: declared tolerance.
        seen: what is sure to be seen.
        without: patterns of couplings that are not bet on; none in a run.

    """

    check: Check
    case: Case
    clause: ClauseId
    pairing: Pairing
    rows: int
    calls: int
    streams: int
    lags: tuple[Lag, ...]
    law: FloatArray
    delta: float
    seen: Power
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unique in its clause; two checks may ask the same case of other rows."""
        return f"{self.case.id} {self.check.name}"

    @property
    def bank(self) -> tuple[Alternative, ...]:
        """What all cases of the clause bet on together: nothing."""
        return ()

    @property
    def draws(self) -> int:
        """How many ids the subject draws."""
        return self.rows * self.calls * self.streams

    def calls_of(self, asked: Asked) -> Iterator[IntArray]:
        """Yield the calls of an answer; the streams take turns if there are several."""
        for streams in unpacked(asked.ids, -1, self.calls, self.rows).transpose(1, 0, 2):
            yield from streams

    def process(self) -> ShiftedPairs | StreamPairs:
        """Return the evidence before the first draw."""
        if self.pairing.in_processes:
            return StreamPairs(
                self.streams,
                self.law,
                self.lags,
                self.delta,
                self.name,
                calls=self.calls,
                without=self.without,
            )
        trusted = self.pairing in (Pairing.UNIFORMS, Pairing.RACE)
        pairs = PairProcess(
            self.law,
            self.lags,
            self.delta,
            self.name,
            calls=self.calls,
            trusted=trusted,
            without=self.without,
        )
        return ShiftedPairs(pairs, self.law.size, self.lags, self.delta, self.calls)


def plan_pairs(
    capabilities: Capabilities, profile: str, budget: Budget, owned: frozenset[ClauseId]
) -> tuple[PlannedPairs, ...]:
    """Plan the cases of the owned clauses."""
    sizes = [one for one in SIZES if one.clause in owned and one.applies(capabilities, profile)]
    counts = Counter(size.clause for size in sizes)
    return tuple(
        _planned(capabilities, size, profile, budget, 1 / counts[size.clause]) for size in sizes
    )


def unplanned_pairs(
    capabilities: Capabilities, profile: str, owned: frozenset[ClauseId]
) -> tuple[Unplanned, ...]:
    """Return which far rows are not paired, and why."""
    left = [
        (one, one.unfit(capabilities))
        for one in SIZES
        if one.far and one.clause in owned and not one.applies(capabilities, profile)
    ]
    return tuple(
        Unplanned(one.clause, f"rows {one.far}{f': {why}' if why else ''}") for one, why in left
    )


def _planned(
    capabilities: Capabilities, size: Size, profile: str, budget: Budget, share: float
) -> PlannedPairs:
    case = size.case(profile)
    logits = case.logits.build(case.dtype.torch)
    law = target_law(logits, case.requests, capabilities.semantics, thinking=case.thinking)
    probs = np.exp(law.logprobs[0].numpy().astype(np.float64))
    delta = capabilities.delta + 2.0**-23 * float(law.magnitude[0])
    alone = case_log_threshold(budget.log_threshold(size.clause), share)
    if size.pairing.in_processes:
        alone += math.log(math.comb(size.streams(case), 2))
    else:
        alone -= math.log(PAIR_SHARE)
    seen = _seen(size, size.rows_for(capabilities), case.calls, probs, delta, alone)
    return PlannedPairs(
        next(check for check in CHECKS if check.name == size.name),
        case,
        size.clause,
        size.pairing,
        size.rows_for(capabilities),
        case.calls,
        size.streams(case),
        size.lags,
        probs,
        delta,
        seen,
    )


def _seen(
    size: Size, rows: int, calls: int, probs: FloatArray, delta: float, log_threshold: float
) -> Power:
    bets = 2 * len(size.lags) * len(RATES)
    what = f"{size.pairing}: a row copies its partner with probability"
    if size.pairing in (Pairing.CALLS, Pairing.THREADS) or size.pairing.in_processes:
        pairs = calls // 2 if size.pairing is Pairing.CALLS else calls
        rates = [
            rate
            for rate in (*RATES[:-1], 1.0)
            if call_pairs_needed(probs.size, rows, rate, bets, log_threshold, delta=delta) <= pairs
        ]
        rate = min(rates, default=math.inf)
    else:
        averaged = math.log(calls) if size.pairing is Pairing.ROWS else 0.0
        held = [len(lag.within(np.arange(rows))[0]) for lag in size.lags if not lag.calls]
        fewest = min((one for one in held if one), default=0)
        pairs = fewest if size.pairing is Pairing.ROWS else calls * (rows - 64)
        rate = smallest_detectable_pairs(probs, pairs, bets, log_threshold + averaged, delta=delta)
    return Power(f"{what} {rate:.2g}", 0.0 if math.isinf(rate) else 1 - BETA)


def _check(size: Size) -> Check:
    def cases(_capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
        return (size.first_case,)

    beside = SideBySide(size.streams, size.together) if size.pairing.in_processes else None
    return Check(size.name, (size.clause,), Kind.PAIRS, cases, ask=size.ask, beside=beside)


CHECKS: tuple[Check, ...] = tuple(_check(size) for size in SIZES)
"""Equal flat rows: a copied draw is seen after a handful of pairs."""

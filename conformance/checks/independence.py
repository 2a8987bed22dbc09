"""Independence of rows, calls and streams: copied, mirrored or shifted noise in equal flat rows."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Kind, clause_ids
from refsampler.conformance.designed.tails import FLAT_VOCAB, flat_case
from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.budget import Budget
from refsampler.conformance.evidence.guarantees import BETA
from refsampler.conformance.evidence.independence import RATES, PairProcess
from refsampler.conformance.evidence.pair_guarantees import (
    call_pairs_needed,
    smallest_detectable_pairs,
)
from refsampler.conformance.evidence.pairings import Lag, call_lags, row_lags, stream_lags
from refsampler.conformance.evidence.pool import case_log_threshold
from refsampler.conformance.evidence.shifts import PAIR_SHARE, ShiftedPairs
from refsampler.conformance.series import Later, SeriesSubject
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Power
from refsampler.law import target_law

__all__ = ["CHECKS", "INDEPENDENCE", "Pairing", "PlannedPairs", "plan_pairs"]

_ENGINE_ROWS = 512

INDEPENDENCE = clause_ids("independence.rows", "independence.calls", "independence.streams")


class Pairing(StrEnum):
    """What is paired with what."""

    ROWS = "rows of one call"
    CALLS = "successive calls"
    UNIFORMS = "later torch uniforms"
    RACE = "later torch race"
    THREADS = "two threads"


@dataclass(frozen=True, slots=True)
class _Size:
    """Rows of a call, and how many calls a profile makes."""

    name: str
    clause: ClauseId
    pairing: Pairing
    rows: int
    calls: tuple[tuple[str, int], ...]
    lags: tuple[Lag, ...]

    def case(self, profile: str) -> Case:
        """Return the flat row."""
        return flat_case(self.clause, dict(self.calls)[profile])

    def rows_for(self, capabilities: Capabilities) -> int:
        """Return the rows of a call; an engine admits every row as a request of its own."""
        return min(self.rows, _ENGINE_ROWS) if capabilities.level == 3 else self.rows

    def ask(self, subject: OpenSubject, case: Case) -> Asked:
        """Draw all calls of a case; runs where the subject lives."""
        rows = self.rows_for(subject.capabilities)
        streams = SeriesSubject(subject.backend, subject.run_seed)
        match self.pairing:
            case Pairing.THREADS:
                ids = streams.threads(case, rows, case.calls)
            case Pairing.ROWS | Pairing.CALLS:
                ids = streams.series(case, rows, case.calls).ids[None]
            case Pairing.UNIFORMS | Pairing.RACE:
                uniforms = self.pairing is Pairing.UNIFORMS
                later = Later.UNIFORMS if uniforms else Later.RACE
                found = streams.series(case, rows, case.calls, later)
                # of a flat law, u gives the id floor(u V)
                scale = case.logits.vocab if uniforms else 1
                ids = np.stack([found.ids, (found.later * scale).astype(np.int64)])
        drawn = rows * case.calls * (2 if self.pairing is Pairing.THREADS else 1)
        return Asked(draws=drawn, ids=zlib.compress(ids.astype("<i4").tobytes()))


_ROWS, _CALLS, _STREAMS = INDEPENDENCE
_SIZES = (
    # calls are averaged here, so more of them say no more
    _Size(
        "independent-rows",
        _ROWS,
        Pairing.ROWS,
        2**14,
        (("quick", 2), ("full", 4)),
        row_lags(2**14, FLAT_VOCAB),
    ),
    # and rows here
    _Size(
        "independent-calls", _CALLS, Pairing.CALLS, 512, (("quick", 64), ("full", 512)), call_lags()
    ),
    _Size(
        "later-uniforms",
        _STREAMS,
        Pairing.UNIFORMS,
        1024,
        (("quick", 8), ("full", 64)),
        stream_lags(),
    ),
    _Size("later-race", _STREAMS, Pairing.RACE, 1024, (("quick", 6), ("full", 48)), stream_lags(4)),
    _Size(
        "threads", _STREAMS, Pairing.THREADS, 512, (("quick", 32), ("full", 256)), stream_lags(4)
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPairs:
    """One case of an independence clause.

    Attributes:
        check: that it belongs to.
        case: of one flat row.
        clause: that is judged.
        pairing: what is paired with what.
        rows: of each call.
        calls: of the subject, of each thread if there are two.
        lags: declared pairings.
        law: [ids] exact law of every row.
        delta: declared tolerance.
        seen: what is sure to be seen.

    """

    check: Check
    case: Case
    clause: ClauseId
    pairing: Pairing
    rows: int
    calls: int
    lags: tuple[Lag, ...]
    law: FloatArray
    delta: float
    seen: Power

    @property
    def name(self) -> str:
        """Unique in its clause."""
        return f"{self.case.id} {self.pairing}"

    @property
    def draws(self) -> int:
        """How many ids the subject draws."""
        return self.rows * self.calls * (2 if self.pairing is Pairing.THREADS else 1)

    def calls_of(self, asked: Asked) -> Iterator[IntArray]:
        """Yield the calls of an answer; the two streams alternate if there are two."""
        ids = np.frombuffer(zlib.decompress(asked.ids), dtype="<i4").astype(np.int64)
        for streams in ids.reshape(-1, self.calls, self.rows).transpose(1, 0, 2):
            yield from streams

    def process(self) -> ShiftedPairs:
        """Return the evidence before the first draw."""
        trusted = self.pairing in (Pairing.UNIFORMS, Pairing.RACE)
        pairs = PairProcess(
            self.law, self.lags, self.delta, self.name, calls=self.calls, trusted=trusted
        )
        return ShiftedPairs(pairs, self.law.size, self.lags, self.delta, self.calls)


def plan_pairs(
    capabilities: Capabilities, profile: str, budget: Budget, owned: frozenset[ClauseId]
) -> tuple[PlannedPairs, ...]:
    """Plan the cases of the owned clauses."""
    return tuple(
        _planned(capabilities, size, profile, budget) for size in _SIZES if size.clause in owned
    )


def _planned(capabilities: Capabilities, size: _Size, profile: str, budget: Budget) -> PlannedPairs:
    case = size.case(profile)
    logits = case.logits.build(case.dtype.torch)
    law = target_law(logits, case.requests, capabilities.semantics, thinking=case.thinking)
    probs = np.exp(law.logprobs[0].numpy().astype(np.float64))
    delta = capabilities.delta + 2.0**-23 * float(law.magnitude[0])
    share = 1 / sum(one.clause == size.clause for one in _SIZES)
    alone = case_log_threshold(budget.log_threshold(size.clause), share) - math.log(PAIR_SHARE)
    seen = _seen(size, size.rows_for(capabilities), case.calls, probs, delta, alone)
    return PlannedPairs(
        next(check for check in CHECKS if check.name == size.name),
        case,
        size.clause,
        size.pairing,
        size.rows_for(capabilities),
        case.calls,
        size.lags,
        probs,
        delta,
        seen,
    )


def _seen(
    size: _Size, rows: int, calls: int, probs: FloatArray, delta: float, log_threshold: float
) -> Power:
    bets = 2 * len(size.lags) * len(RATES)
    what = f"{size.pairing}: a row copies its partner with probability"
    if size.pairing in (Pairing.CALLS, Pairing.THREADS):
        pairs = calls // 2 if size.pairing is Pairing.CALLS else calls
        rates = [
            rate
            for rate in (*RATES[:-1], 1.0)
            if call_pairs_needed(probs.size, rows, rate, bets, log_threshold, delta=delta) <= pairs
        ]
        rate = min(rates, default=math.inf)
    else:
        averaged = math.log(calls) if size.pairing is Pairing.ROWS else 0.0
        # the lag with the fewest pairs, half a call, has as many as the others: blocks alternate
        pairs = rows // 2 if size.pairing is Pairing.ROWS else calls * (rows - 64)
        rate = smallest_detectable_pairs(probs, pairs, bets, log_threshold + averaged, delta=delta)
    return Power(f"{what} {rate:.2g}", 0.0 if math.isinf(rate) else 1 - BETA)


def _check(size: _Size) -> Check:
    def cases(_capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
        return (size.case("quick"),)

    return Check(size.name, (size.clause,), Kind.PAIRS, cases, ask=size.ask)


CHECKS: tuple[Check, ...] = tuple(_check(size) for size in _SIZES)
"""Equal flat rows: a copied draw is seen after a handful of pairs."""

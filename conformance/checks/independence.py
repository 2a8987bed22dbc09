"""Independence of rows, calls and streams: copied, mirrored or shifted noise in equal flat rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Kind, SideBySide, clause_ids
from refsampler.conformance.checks.processes import packed, unpacked
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
from refsampler.conformance.evidence.stream_pairs import StreamPairs
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
    PROCESSES = "processes without seeds"
    SEEDED_PROCESSES = "processes with other seeds"

    @property
    def in_processes(self) -> bool:
        """Whether the streams are those of processes."""
        return self in (Pairing.PROCESSES, Pairing.SEEDED_PROCESSES)


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

    def applies(self, capabilities: Capabilities) -> bool:
        """Whether a backend can be asked at all."""
        explicit = self.pairing is Pairing.SEEDED_PROCESSES
        return not explicit or Feature.SEED in capabilities.features

    def rows_for(self, capabilities: Capabilities) -> int:
        """Return the rows of a call; an engine admits every row as a request of its own."""
        return min(self.rows, _ENGINE_ROWS) if capabilities.level == 3 else self.rows

    def streams(self, case: Case) -> int:
        """Return how many streams the subject draws; in full one of three processes may differ."""
        if self.pairing.in_processes:
            return 2 if case.calls == dict(self.calls)["quick"] else 3
        return 2 if self.pairing is Pairing.THREADS else 1

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
            case Pairing.PROCESSES | Pairing.SEEDED_PROCESSES:
                explicit = self.pairing is Pairing.SEEDED_PROCESSES
                ids = streams.own_stream(case, rows, case.calls, explicit=explicit)
        drawn = rows * case.calls * (2 if self.pairing is Pairing.THREADS else 1)
        return Asked(draws=drawn, ids=packed(ids))

    def together(self, case: Case, asked: tuple[Asked, ...]) -> Asked:
        """Put the streams of processes side by side."""
        streams = np.stack([unpacked(one.ids, case.calls, -1) for one in asked])
        return Asked(draws=sum(one.draws for one in asked), ids=packed(streams))


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
    _Size(
        "processes",
        _STREAMS,
        Pairing.PROCESSES,
        256,
        (("quick", 24), ("full", 96)),
        stream_lags(4),
    ),
    _Size(
        "processes-seeded",
        _STREAMS,
        Pairing.SEEDED_PROCESSES,
        128,
        (("quick", 24), ("full", 96)),
        stream_lags(4),
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
        calls: of the subject, in each of its streams.
        streams: of the subject: threads or processes.
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
    streams: int
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
        return self.rows * self.calls * self.streams

    def calls_of(self, asked: Asked) -> Iterator[IntArray]:
        """Yield the calls of an answer; the streams take turns if there are several."""
        for streams in unpacked(asked.ids, -1, self.calls, self.rows).transpose(1, 0, 2):
            yield from streams

    def process(self) -> ShiftedPairs | StreamPairs:
        """Return the evidence before the first draw."""
        if self.pairing.in_processes:
            return StreamPairs(
                self.streams, self.law, self.lags, self.delta, self.name, calls=self.calls
            )
        trusted = self.pairing in (Pairing.UNIFORMS, Pairing.RACE)
        pairs = PairProcess(
            self.law, self.lags, self.delta, self.name, calls=self.calls, trusted=trusted
        )
        return ShiftedPairs(pairs, self.law.size, self.lags, self.delta, self.calls)


def plan_pairs(
    capabilities: Capabilities, profile: str, budget: Budget, owned: frozenset[ClauseId]
) -> tuple[PlannedPairs, ...]:
    """Plan the cases of the owned clauses."""
    sizes = [size for size in _SIZES if size.clause in owned and size.applies(capabilities)]
    counts = Counter(size.clause for size in sizes)
    return tuple(
        _planned(capabilities, size, profile, budget, 1 / counts[size.clause]) for size in sizes
    )


def _planned(
    capabilities: Capabilities, size: _Size, profile: str, budget: Budget, share: float
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
    size: _Size, rows: int, calls: int, probs: FloatArray, delta: float, log_threshold: float
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
        # the lag with the fewest pairs, half a call, has as many as the others: blocks alternate
        pairs = rows // 2 if size.pairing is Pairing.ROWS else calls * (rows - 64)
        rate = smallest_detectable_pairs(probs, pairs, bets, log_threshold + averaged, delta=delta)
    return Power(f"{what} {rate:.2g}", 0.0 if math.isinf(rate) else 1 - BETA)


def _check(size: _Size) -> Check:
    def cases(_capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
        return (size.case("quick"),)

    beside = SideBySide(size.streams, size.together) if size.pairing.in_processes else None
    return Check(size.name, (size.clause,), Kind.PAIRS, cases, ask=size.ask, beside=beside)


CHECKS: tuple[Check, ...] = tuple(_check(size) for size in _SIZES)
"""Equal flat rows: a copied draw is seen after a handful of pairs."""

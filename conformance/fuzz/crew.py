"""The driver of shards: tells causes apart over all of them, and merges what they say of the law."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp

from refsampler.conformance.case import decode_case
from refsampler.conformance.fuzz.found import asked_in
from refsampler.conformance.fuzz.law import LOG_THRESHOLD, merged_log_e
from refsampler.conformance.fuzz.loop import Progress
from refsampler.conformance.fuzz.shard import REPORT, Broken, Shard, State, Told
from refsampler.conformance.plan import LAW
from refsampler.conformance.records import CaseRecord, VerdictRecord, read_report

__all__ = ["Crew"]

_Cause = tuple[str, tuple[str, ...]]


class Crew:
    """What the driver knows of the shards.

    Only shards that were declared before the start take part; one that died counts at its last
    checkpoint (rule 10).

    Args:
        shards: declared.
        tell: told of every new cause.

    Attributes:
        causes: clause and features -> the first that showed it.
        seen: in how many shards each was found.
        largest: log e of the law over all shards, at its largest.

    """

    def __init__(
        self, shards: Sequence[Shard], tell: Callable[[Broken], None] = lambda _one: None
    ) -> None:
        self._shards, self._tell = shards, tell
        self._states: dict[int, State] = {}
        self.causes: dict[_Cause, Broken] = {}
        self.seen: dict[_Cause, int] = {}
        self.largest = 0.0

    @property
    def failed(self) -> bool:
        """Whether anything was found; that stays."""
        return bool(self.causes) or self.law_failed

    @property
    def law_failed(self) -> bool:
        """Whether the law was reported broken; that stays."""
        return self.largest >= LOG_THRESHOLD

    @property
    def law_draws(self) -> int:
        """Draws that went into it."""
        return sum(one.law_draws for one in self._states.values())

    def take(self, told: Told) -> None:
        """Take what a shard told."""
        if isinstance(told, State):
            self._states[told.shard] = told
            bets = [one.bets for one in self._states.values()]
            self.largest = max(self.largest, merged_log_e(bets))
            return
        cause = (told.clause, told.asks)
        self.seen[cause] = self.seen.get(cause, 0) + 1
        if cause not in self.causes:
            self.causes[cause] = told
            self._tell(told)

    def salvage(self) -> None:
        """Take what shards wrote down and did not live to tell; asked when they have ended."""
        for shard in self._shards:
            for one, candidates in _written(shard):
                if not {clause for clause, _ in self.causes} & {one.clause, *candidates}:
                    self.take(one)

    def batches_of(self, shard: int) -> int:
        """Return how many batches a shard has judged, as far as it told."""
        return self._states[shard].batches if shard in self._states else 0

    def progress(self, seconds: float) -> Progress:
        """Return what all shards have done in these seconds."""
        states = [*self._states.values()]
        return Progress(
            possible=max((one.possible for one in states), default=0),
            batches=sum(one.batches for one in states),
            draws=sum(one.draws for one in states),
            seconds=seconds,
            generating=sum(one.generating for one in states) / max(1, len(states)),
            pairs={pair for one in states for pair in one.pairs},
            log_e=self.largest,
            errors=[error for one in states for error in one.errors],
        )

    def replay(self, one: Broken) -> str:
        """Return the command that shows a finding again, from the report of its shard."""
        return f"refsampler replay {one.case} --report {self._shards[one.shard].folder}"

    def verdicts(self) -> Iterator[VerdictRecord]:
        """Yield one verdict for each cause, and one for the law if it is broken."""
        for cause, one in self.causes.items():
            yield VerdictRecord(
                clause=one.clause,
                status="fail",
                reason=f"expected {one.expected}; seen {one.seen}",
                case=one.case,
                log_e=None,
                log_threshold=None,
                false_alarm=one.charge,
                cases=self.seen[cause],
                draws=0,
                would_see=(),
                replay=self.replay(one),
            )
        if self.law_failed:
            yield VerdictRecord(
                clause=LAW,
                status="fail",
                reason=f"evidence of {len(self._states)} shards",
                case=None,
                log_e=self.largest,
                log_threshold=LOG_THRESHOLD,
                false_alarm=exp(-LOG_THRESHOLD),
                cases=0,
                draws=self.law_draws,
                would_see=(),
                replay="",
            )


def _written(shard: Shard) -> Iterator[tuple[Broken, tuple[str, ...]]]:
    """Yield the findings in a shard's report, each with the clauses that would explain it."""
    report = shard.folder / REPORT
    for record in read_report(report) if report.is_file() else ():
        if not isinstance(record, CaseRecord):
            continue
        for one in record.findings:
            if one.given is None:
                asks = asked_in(decode_case(bytes(record.case)))
                words = (one.expected, one.seen, one.charge)
                yield Broken(shard.number, one.clause, asks, *words, record.id), one.candidates

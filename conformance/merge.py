"""Merging: the shards of one plan judged as one run (evidence rule 10).

Only parts that one plan declared before they started multiply: each case was asked in one of them, on
seeds of its own.  A shard that died counts as far as its report reaches.  Reports of other runs stand
side by side and are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.decisions import Decision
from refsampler.conformance.extend import with_recorded
from refsampler.conformance.finished import Finished, gather, plan_digest
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.records import (
    CaseRecord,
    Header,
    LawRecord,
    MixedRecord,
    Record,
    ReportWriter,
    VerdictRecord,
    read_report,
)
from refsampler.conformance.runner import Outcome, run
from refsampler.conformance.shards import NONE
from refsampler.conformance.verdict import Exact, LogE, Status

__all__ = ["CannotMerge", "Shards", "judge_shards", "read_shards"]

_SAME: Final = (
    "backend",
    "backend_version",
    "spec",
    "refsampler",
    "torch",
    "contract_digest",
    "profile",
    "clauses",
    "run_seed",
    "time_budget",
    "plan",
    "capabilities",
)
"""Fields of a header in which the shards of one plan agree."""

_DECIDED: Final = (Status.PASS, Status.FAIL)


class CannotMerge(ValueError):  # noqa: N818 - reads as what happened
    """The reports are not shards of one plan; the message names what differs."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Reports of one plan's shards.

    Attributes:
        header: of the first.
        plan: of all.
        finished: cases of all.
        verdicts: of the shards that came to their end.
        missing: shards without a report.

    """

    header: Header
    plan: Plan
    finished: Finished
    verdicts: tuple[VerdictRecord, ...]
    missing: tuple[int, ...]


def read_shards(reports: Sequence[Path], logits: Path | None = None) -> Shards:
    """Read the shards' reports.

    Args:
        reports: one a shard.
        logits: the file of recorded logits that the shards were given.

    Raises:
        CannotMerge: they are not shards of one plan.
        RecordingError: the file cannot be read.
        OSError: a report cannot be read.

    """
    read = [tuple(read_report(path)) for path in reports]
    headers = [_header(path, records) for path, records in zip(reports, read, strict=True)]
    first = headers[0]
    for path, header in zip(reports[1:], headers[1:], strict=True):
        for name in _SAME:
            if getattr(header, name) != getattr(first, name):
                raise CannotMerge(f"{path}: {name} is not that of {reports[0]}")
    numbers = [header.shard for header in headers if header.shard is not None]
    count = numbers[0][1]
    if any(of != count for _, of in numbers):
        raise CannotMerge("shards of plans with another number of shards are refused")
    if len({number for number, _ in numbers}) != len(numbers):
        raise CannotMerge("the same shard twice is refused: a rerun is a new run")
    _refuse_twice(read)
    assert first.capabilities is not None
    plan = make_plan(
        first.capabilities,
        profile=first.profile,
        glob=first.clauses,
        run_seed=first.run_seed,
        time_budget=first.time_budget,
        free_bytes=first.free_bytes,
    )
    plan = plan if logits is None else with_recorded(plan, logits)
    if plan_digest(plan) != first.plan:
        raise CannotMerge(
            "another plan is made now: allowed are the versions of refsampler, Python and Hypothesis and"
            " the --logits of the shards"
        )
    together = [record for records in read for record in records]
    verdicts = tuple(one for one in together if isinstance(one, VerdictRecord))
    missing = sorted({*range(1, count + 1)} - {number for number, _ in numbers})
    return Shards(first, plan, gather(together, latched=False), verdicts, tuple(missing))


def _header(path: Path, records: Sequence[Record]) -> Header:
    header = records[0] if records else None
    if not isinstance(header, Header):
        raise CannotMerge(f"{path}: no report")
    if header.shard is None:
        raise CannotMerge(f"{path}: not a shard; only shards that one plan declared are merged")
    return header


def _refuse_twice(read: Sequence[Sequence[Record]]) -> None:
    """Refuse a case that two shards have: its seeds would enter the evidence twice."""
    seen: set[tuple[str, str]] = set()
    for records in read:
        mine = set(_asked(records))
        if mine & seen:
            raise CannotMerge(f"case {min(mine & seen)[1]} stands in two shards")
        seen |= mine


def _asked(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    for record in records:
        if isinstance(record, CaseRecord) and record.shrunk_from is None:
            yield record.check, record.id
        if isinstance(record, LawRecord | MixedRecord):
            yield record.check, record.id


def judge_shards(shards: Shards, writer: ReportWriter) -> Outcome:
    """Decide every clause from what the shards found; nothing is asked."""
    subject = _Absent(shards.plan.capabilities)
    outcome = run(subject, shards.plan, writer, finished=shards.finished, share=NONE)
    return replace(outcome, decisions=tuple(_decided(shards, outcome.decisions)))


def _decided(shards: Shards, decisions: Sequence[Decision]) -> Iterator[Decision]:
    """Take clauses that one shard asks alone, pairs of calls and tails, from its verdict."""
    alone = shards.plan.sequential.counts
    said = {ClauseId(one.clause): one for one in shards.verdicts if Status(one.status) in _DECIDED}
    for decision in decisions:
        clause = decision.verdict.clause
        taken = clause in alone and decision.verdict.status is Status.INCONCLUSIVE
        yield _as_said(decision, said[clause]) if taken and clause in said else decision


def _as_said(decision: Decision, said: VerdictRecord) -> Decision:
    certainty: Exact | LogE = Exact(said.false_alarm)
    if said.log_e is not None and said.log_threshold is not None:
        certainty = LogE(said.log_e, said.log_threshold)
    verdict = replace(
        decision.verdict,
        status=Status(said.status),
        case=said.case,
        certainty=certainty,
        draws=said.draws,
        replay=said.replay,
    )
    return replace(decision, verdict=verdict, reason=said.reason, cases=said.cases)


@dataclass(frozen=True, slots=True)
class _Absent:
    """A backend that nobody asks any more."""

    capabilities: Capabilities

    def sample(self, case: Case, call: int, key: str) -> NoReturn:
        """Refuse."""
        raise RuntimeError(f"nobody is asked while merging: case {case.id}, call {call} of {key}")

    def sample_many(self, case: Case, rows: int, call: int) -> NoReturn:
        """Refuse."""
        raise RuntimeError(
            f"nobody is asked while merging: case {case.id}, {rows} rows, call {call}"
        )

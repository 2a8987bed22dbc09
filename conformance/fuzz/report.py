"""The report of a fuzzing run: a header, cases as they are found, a verdict for each broken clause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp
from typing import Final

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.evidence.budget import NEAR_CERTAIN
from refsampler.conformance.fuzz.found import FoundBook
from refsampler.conformance.fuzz.law import LOG_THRESHOLD, LawEvidence
from refsampler.conformance.fuzz.loop import Progress
from refsampler.conformance.plan import LAW
from refsampler.conformance.records import Footer, Header, VerdictRecord
from refsampler.conformance.reporting.records import first_line

__all__ = ["PROFILE", "footer", "header", "line", "verdicts"]

PROFILE: Final = "fuzz"
_TENS: Final = 2.302585


def header(
    capabilities: Capabilities,
    spec: str,
    run_seed: int,
    time_budget: float | None,
    share: float = 1.0,
) -> Header:
    """Return the first line: what is fuzzed, where and with which seed; a shard says its share."""
    return first_line(
        capabilities,
        spec,
        profile=PROFILE,
        glob="*",
        run_seed=run_seed,
        time_budget=time_budget,
        alpha=exp(-LOG_THRESHOLD),
        charge=share * NEAR_CERTAIN,
    )


def verdicts(book: FoundBook, law: LawEvidence) -> Iterator[VerdictRecord]:
    """Yield one verdict for each cause, and one for the law if it is broken."""
    for cause, found in book.causes.items():
        yield VerdictRecord(
            clause=cause.clause,
            status="fail",
            reason=f"expected {found.finding.expected}; seen {found.finding.seen}",
            case=found.case.id,
            log_e=None,
            log_threshold=None,
            false_alarm=found.finding.charge,
            cases=book.seen[cause],
            draws=0,
            would_see=(),
            replay=f"refsampler replay {found.case.id}",
        )
    if law.failed:
        yield VerdictRecord(
            clause=LAW,
            status="fail",
            reason=law.best,
            case=None,
            log_e=law.largest,
            log_threshold=LOG_THRESHOLD,
            false_alarm=exp(-LOG_THRESHOLD),
            cases=0,
            draws=law.draws,
            would_see=(),
            replay="",
        )


def footer(
    code: int, line: str, done: Progress | None, seconds: float, dead: Sequence[str] = ()
) -> Footer:
    """Return the last line: how the run ended, with the shards that died in words."""
    errors = [*dead] if done is None else [*dead, *done.errors[:1]]
    return Footer(
        exit_code=code,
        headline=line,
        cases=0 if done is None else done.batches,
        draws=0 if done is None else done.draws,
        seconds=round(seconds, 3),
        error="; ".join(errors) or None,
    )


def line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    seconds = max(progress.seconds, 1e-9)
    return (
        f"{progress.batches} batches, {progress.batches / seconds:.1f}/s, generation"
        f" {progress.generating / seconds:.0%}, {len(progress.pairs)} of {progress.possible} pairs"
        f" of features met, law at e = 10^{progress.log_e / _TENS:.1f}"
    )

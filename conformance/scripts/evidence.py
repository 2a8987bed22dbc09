"""Which script shows a clause again that evidence judges: a law, mixed rows, a tail, pairs, steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.clauses import ClauseId
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.steps import PlannedSteps
from refsampler.conformance.checks.tail import RESOLUTION, TAIL, PlannedTail
from refsampler.conformance.evidence.law import LawProcess
from refsampler.conformance.isolation import GuardedSubject
from refsampler.conformance.plan import LAW, Plan, PlannedLaw
from refsampler.conformance.records import (
    CaseRecord,
    LawRecord,
    PairsRecord,
    TailRecord,
    read_report,
)
from refsampler.conformance.scripts.law import law_script
from refsampler.conformance.scripts.mixed import mixed_script
from refsampler.conformance.scripts.pairs import pairs_script
from refsampler.conformance.scripts.steps import steps_script
from refsampler.conformance.scripts.tails import resolution_script, tail_script

__all__ = ["Evident", "evident"]

_ENOUGH: Final = math.log(1e6)
"""Log e-value that a law has to reach on fresh seeds alone before it is shown (rules of shrinking)."""
_FRESH_CALLS: Final = 2**40
"""Number of the first call whose seed the run did not use."""


@dataclass(frozen=True, slots=True)
class Evident:
    """A case whose draws show it, and its script, None if none can be written."""

    case: str
    script: str | None


def evident(
    subject: GuardedSubject,
    plan: Plan,
    report: Path,
    clause: ClauseId,
    case: str,
    deadline: float,
) -> Evident | None:
    """Return the case that shows a clause best; None if evidence does not judge it.

    Args:
        subject: as in the run.
        plan: of the run.
        report: the JSONL so far.
        clause: that failed.
        case: that its verdict names.
        deadline: of the monotonic clock, for drawing again.

    """
    about = subject.spec, plan.capabilities, plan.run_seed
    for pairs in _pairs(report, plan, case):
        return Evident(case, _pairs_script(pairs, about))
    for mixed in plan.mixed:
        if mixed.case.id == case:
            return Evident(case, mixed_script(mixed, *about))
    for tail in _tails(report, plan, case) if clause == TAIL else ():
        return Evident(tail.case.id, tail_script(tail, *about))
    for tail in plan.sequential.tails:
        if tail.case.id == case:
            write = resolution_script if clause == RESOLUTION else tail_script
            return Evident(case, write(tail, *about))
    law = _loudest_law(report, plan) if clause == LAW else _planned(plan, case)
    if law is None:
        return None
    draws = _law_draws(subject, law, deadline)
    return Evident(law.case.id, law_script(law.case, *about, draws))


def _pairs_script(
    one: PlannedPairs | PlannedSteps, about: tuple[str, Capabilities, int]
) -> str | None:
    return steps_script(one, *about) if isinstance(one, PlannedSteps) else pairs_script(one, *about)


def _pairs(report: Path, plan: Plan, case: str) -> Iterator[PlannedPairs | PlannedSteps]:
    """Yield the pairings or steps of a case, what says most first: two may ask it of other rows."""
    said = {}
    for record in read_report(report):
        if isinstance(record, PairsRecord) and record.id == case:
            said[record.check] = record.log_e
        # what no right backend gives says more than any evidence
        if isinstance(record, CaseRecord) and record.id == case and record.findings:
            said[record.check] = math.inf
    found = [one for one in plan.sequential.pairs if one.case.id == case]
    yield from sorted(found, key=lambda one: -said.get(one.check.name, 0.0))


def _planned(plan: Plan, case: str) -> PlannedLaw | None:
    return next((one for one in plan.laws if one.case.id == case), None)


def _tails(report: Path, plan: Plan, case: str) -> Iterator[PlannedTail]:
    """Yield the required grades, the one that says most against the backend first."""
    said = {
        one.id: max((log_e for _, log_e in one.log_e), default=0.0)
        for one in read_report(report)
        if isinstance(one, TailRecord) and one.required
    }
    drawn = [one for one in plan.sequential.tails if one.case.id in said]
    yield from sorted(drawn, key=lambda one: (-said[one.case.id], one.case.id != case))


def _loudest_law(report: Path, plan: Plan) -> PlannedLaw | None:
    """Return the law case that says most against the backend for each logit drawn."""
    said = {
        one.id: one.log_e / (one.draws or 1)
        for one in read_report(report)
        if isinstance(one, LawRecord)
    }
    drawn = [one for one in plan.laws if one.case.id in said]
    return max(drawn, key=lambda one: said[one.case.id] / one.case.logits.vocab, default=None)


def _law_draws(subject: GuardedSubject, law: PlannedLaw, deadline: float) -> int:
    """Return how many draws on fresh seeds reach an e-value of 1e6; the planned ones at most."""
    vocab = law.case.logits.vocab
    rows = max(1, min(2**13, 2**20 // vocab, law.draws))
    process, call = LawProcess(law.law), _FRESH_CALLS
    while process.log_e < _ENOUGH and process.draws < law.draws and time.monotonic() < deadline:
        try:
            ids = subject.sample_many(law.case, rows, call)
        except Exception:  # noqa: BLE001 - what cannot be drawn is shown with the planned draws
            return law.draws
        process.update(np.bincount(ids[(ids >= 0) & (ids < vocab)], minlength=vocab))
        call += 1
    return max(rows, process.draws) if process.log_e >= _ENOUGH else law.draws

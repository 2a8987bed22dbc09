"""Found: what a fuzzing run found, on disk at once, then shrunk and told apart by clause and cause."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.caserun import case_record, judge_case
from refsampler.conformance.checks.base import Check, Finding
from refsampler.conformance.fuzz.compact import compacted
from refsampler.conformance.fuzz.sketch import features_in
from refsampler.conformance.isolation import AskedSubject
from refsampler.conformance.minimise import minimise
from refsampler.conformance.records import ReportWriter

__all__ = ["Cause", "Found", "FoundBook", "asked_in"]

_SHRINK_SECONDS: Final = 8.0
_CANDIDATES: Final = 300
_SHRUNK_ALIKE: Final = 2
"""Findings of one clause in the same words that are shrunk; further ones are counted."""
_CAUSES: Final = 8
"""Causes of one clause that are told apart; further findings are counted only."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What tells findings of one clause apart: the features that their minimal cases need."""

    clause: ClauseId
    asks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A clause broken, with its smallest case so far.

    Attributes:
        cause: clause and features.
        check: that judged it.
        case: the smallest.
        finding: what it showed.
        seconds: since the start, when it was first seen.
        batch: number of the batch that showed it first.
        shrunk: it shows again, so that a smaller case could be looked for.

    """

    cause: Cause
    check: Check
    case: Case
    finding: Finding
    seconds: float
    batch: int
    shrunk: bool


@dataclass(slots=True)
class FoundBook:
    """Takes findings as they come.

    Attributes:
        writer: of the report; every new one is a line before anything else happens.
        subject: asked again while shrinking.
        tell: told of every new cause.
        causes: found so far, in the order in which they came.
        seen: how often each was seen.
        shrink_s: seconds for making one finding smaller; 0 leaves it as it is.

    """

    writer: ReportWriter
    subject: AskedSubject
    tell: Callable[[Found], None] = lambda _found: None
    shrink_s: float = _SHRINK_SECONDS
    causes: dict[Cause, Found] = field(default_factory=dict)
    seen: dict[Cause, int] = field(default_factory=dict)
    _words: dict[tuple[str, str, str], list[Cause]] = field(default_factory=dict)

    def take(
        self, check: Check, case: Case, findings: tuple[Finding, ...], seconds: float, batch: int
    ) -> None:
        """Write down what a batch showed; shrink it if it is new."""
        own = (self._named(one) for one in findings if one.given is None)
        fresh = [one for one in own if not self._known(check, one)]
        if not fresh:
            return
        self.writer.write(case_record(check, case, findings, 0, 0.0))
        for one in fresh:
            smallest, shown, again = self._smallest(check, case, one)
            if again and smallest is not case:
                record = case_record(check, smallest, (shown,), 0, 0.0, shrunk_from=case.id)
                self.writer.write(record)
            cause = Cause(one.clause, asked_in(smallest))
            self._words.setdefault(_key(check, one), []).append(cause)
            self.seen[cause] = self.seen.get(cause, 0) + 1
            if cause not in self.causes:
                found = Found(cause, check, smallest, shown, seconds, batch, again)
                self.causes[cause] = found
                self.tell(found)

    def _named(self, finding: Finding) -> Finding:
        """Return it as one of a clause found before, if that explains it too."""
        explained = (one.clause for one in self.causes if one.clause in finding.candidates)
        return replace(finding, clause=next(explained, finding.clause))

    def _known(self, check: Check, finding: Finding) -> bool:
        """Count a finding that says nothing new."""
        alike = self._words.get(_key(check, finding), [])
        of_clause = [one for one in self.causes if one.clause == finding.clause]
        if len(alike) < _SHRUNK_ALIKE and len(of_clause) < _CAUSES:
            return False
        cause = alike[-1] if alike else of_clause[-1]
        self.seen[cause] += 1
        return True

    def _smallest(self, check: Check, case: Case, finding: Finding) -> tuple[Case, Finding, bool]:
        """Return the smallest case that shows it, what that shows, and whether it shows again."""
        if not self.shrink_s:
            return case, finding, False
        search = _Search(self.subject, check, finding.clause)
        if not search.fails(case):
            return case, finding, False
        deadline = time.monotonic() + self.shrink_s
        smallest = search.packed(case)  # few ids first, so that the candidates are asked quickly
        for _ in range(2):
            small = minimise(
                smallest, search.fails, search.fails, deadline=deadline, candidates=_CANDIDATES
            )
            if small is None:
                break
            smallest = search.packed(small)
            if smallest is small:
                break
        return smallest, search.shown[smallest.id], True


@dataclass(frozen=True, slots=True)
class _Search:
    """Asks whether a smaller case breaks the clause too; the same draws each time."""

    subject: AskedSubject
    check: Check
    clause: ClauseId
    shown: dict[str, Finding] = field(default_factory=dict)

    def fails(self, case: Case) -> bool:
        """Judge a candidate; nothing that goes wrong here is a finding."""
        if case.id not in self.shown:
            try:
                findings = judge_case(self.subject, self.check, case).findings
            except Exception:  # noqa: BLE001 - a candidate that cannot be judged is no smaller case
                return False
            for one in findings:
                if self.clause in (one.clause, *one.candidates):
                    self.shown[case.id] = replace(one, clause=self.clause)
                    break
        return case.id in self.shown

    def packed(self, case: Case) -> Case:
        """Return the case over fewer ids, if that breaks the clause too."""
        small = compacted(case)
        return small if self.fails(small) else case


def _key(check: Check, finding: Finding) -> tuple[str, str, str]:
    """Return clause and words without their numbers."""
    words = re.sub(r"[-+]?\d[\d.e+-]*", "#", finding.seen)
    return (check.name, str(finding.clause), words[:60])


def asked_in(case: Case) -> tuple[str, ...]:
    """Return what the requests of a minimal case ask, with the sort of its batch."""
    asked = {name for request in set(case.requests) for name in features_in(request)}
    return (*sorted(asked), *_surroundings(case))


def _surroundings(case: Case) -> Iterator[str]:
    if len(case.requests) > 1:
        yield "several rows"
    if case.steps:
        yield "several steps"
    if case.dtype != "float32":
        yield str(case.dtype)
    if case.layout != "contiguous":
        yield str(case.layout)

"""What changed between two stored runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from refsampler.conformance.records import VerdictRecord
from refsampler.conformance.reporting.distance import Buckets, Interval, between, from_law
from refsampler.conformance.reporting.shapes import shape_of
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.reporting.stored_law import StoredLaw, stored_law
from refsampler.conformance.verdict import Status

__all__ = ["Change", "Kind", "LawPair", "changes", "differences", "law_pairs"]


_NAMED: Final = (
    *("backend", "backend_version", "device", "torch", "refsampler", "revision", "contract_digest"),
    *("profile", "clauses", "delta", "floor"),
)
"""What a header says that makes two runs hard to compare."""


class Kind(StrEnum):
    """What became of a clause."""

    NEW_FAILURE = "new failure"
    FIXED = "fixed"
    EFFECT = "changed effect"
    STATUS = "changed status"
    ONLY_FIRST = "only in the first run"
    ONLY_SECOND = "only in the second run"


@dataclass(frozen=True, slots=True)
class Change:
    """One clause whose verdict changed.

    Attributes:
        kind: of change.
        clause: its id.
        before: status and effect in the first run.
        after: in the second.

    """

    kind: Kind
    clause: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class LawPair:
    """A law that both runs drew, judged again from their counts: EXPLORATORY, never a verdict.

    Attributes:
        case: its id.
        words: the row.
        draws: of both.
        first: distance of the first from the exact law.
        second: of the second.
        apart: of the two from each other.
        shapes: what each looks like, empty where it looks right.

    """

    case: str
    words: str
    draws: tuple[int, int]
    first: Interval
    second: Interval
    apart: Interval
    shapes: tuple[str, str]


def differences(first: StoredRun, second: StoredRun) -> tuple[str, ...]:
    """Return in words what the runs do not share and what makes a comparison of them less clear."""
    return tuple(
        f"{name}: {getattr(first.header, name)} -> {getattr(second.header, name)}"
        for name in _NAMED
        if getattr(first.header, name) != getattr(second.header, name)
    )


def changes(first: StoredRun, second: StoredRun) -> tuple[Change, ...]:
    """Return the clauses whose verdicts differ, new failures first."""
    found = [*_changes(first, second)]
    order = [*Kind]
    return tuple(sorted(found, key=lambda one: order.index(one.kind)))


def _changes(first: StoredRun, second: StoredRun) -> Iterator[Change]:
    clauses = dict.fromkeys(one.clause for one in (*first.verdicts, *second.verdicts))
    for clause in clauses:
        before, after = first.verdict(clause), second.verdict(clause)
        kind = _kind(before, after)
        if kind is not None:
            yield Change(kind, clause, _words(before), _words(after))


def _kind(before: VerdictRecord | None, after: VerdictRecord | None) -> Kind | None:
    failed = [one is not None and one.status == Status.FAIL for one in (before, after)]
    if failed == [False, True]:
        return Kind.NEW_FAILURE
    if before is None:
        return Kind.ONLY_SECOND
    if after is None:
        return Kind.ONLY_FIRST
    if failed == [True, True]:
        same = _words(before) == _words(after)
        return None if same else Kind.EFFECT
    if failed[0] and after.status == Status.PASS:
        return Kind.FIXED
    return None if before.status == after.status else Kind.STATUS


def _words(one: VerdictRecord | None) -> str:
    if one is None:
        return ""
    word = one.status.replace("_", " ").upper()
    effect = one.effect or one.reason
    return f"{word}: {effect}" if one.status == Status.FAIL and effect else word


def law_pairs(first: StoredRun, second: StoredRun) -> Iterator[LawPair]:
    """Yield the laws that both runs drew; runs whose headers lack capabilities have none."""
    if first.header.capabilities is None or second.header.capabilities is None:
        return
    others = {one.id: one for one in second.laws}
    for record in first.laws:
        other = others.get(record.id)
        if other is None or not (record.counts and other.counts):
            continue
        one = stored_law(record, first.header.capabilities)
        yield _pair(one, stored_law(other, second.header.capabilities))


def _pair(one: StoredLaw, other: StoredLaw) -> LawPair:
    buckets = Buckets.of(one.law)
    own = Buckets.of(other.law)
    counts = [np.asarray(buckets.fold(each.vocab_counts)) for each in (one, other)]
    shapes = [shape_of(each) for each in (one, other)]
    return LawPair(
        case=one.record.id,
        words=one.words,
        draws=(one.record.draws, other.record.draws),
        first=from_law(buckets.probs, counts[0]),
        second=from_law(own.probs, own.fold(other.vocab_counts)),
        apart=between(counts[0], counts[1]),
        shapes=(
            "" if shapes[0] is None else shapes[0].words,
            "" if shapes[1] is None else shapes[1].words,
        ),
    )

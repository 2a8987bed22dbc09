"""Draws rows from two backends, for `refsampler compare`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import click
import msgspec
import numpy as np

from refsampler.backends.process import SubjectDidNotOpen, WorkerFault
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.commands.opening import opened
from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.isolation import MEMORY_BYTES, TIMEOUT_S, GuardedSubject
from refsampler.conformance.records import LawRecord
from refsampler.conformance.reporting.distance import (
    CHANCE,
    Buckets,
    Interval,
    between,
    from_law,
)
from refsampler.conformance.reporting.shapes import shape_of
from refsampler.conformance.reporting.stored_law import StoredLaw, stored_law
from refsampler.conformance.sequential import batch_sizes
from refsampler.conformance.subject import SubjectError
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode
from refsampler.law import target_law
from refsampler.semantics import Semantics

__all__ = ["RowsSideBySide", "SideBySide", "side_by_side"]


class SideBySide(msgspec.Struct, frozen=True):
    """Two backends on one row.

    Attributes:
        row: its name; empty of a designed row.
        words: what it is and what is asked of it.
        first: distance of the first from the exact law of its semantics.
        second: of the second.
        apart: of the two from each other.
        outside: draws of each that no right backend gives.
        shapes: what each looks like, empty where it looks right.

    """

    row: str
    words: str
    first: Interval
    second: Interval
    apart: Interval
    outside: tuple[int, int]
    shapes: tuple[str, str]

    @property
    def differs(self) -> bool:
        """Whether a distance is surely not 0."""
        return any(one.low > 0 for one in (self.first, self.second, self.apart))


class RowsSideBySide(msgspec.Struct, frozen=True):
    """Two backends, as `--format json` gives them.

    Attributes:
        names: of the backends.
        draws: of each from each row.
        run_seed: of the first; the second has the next one, so that they share no noise.
        rows: all that were drawn.
        without_law: names of rows left out, as nothing can be drawn from them.

    """

    names: tuple[str, str]
    draws: int
    run_seed: int
    rows: tuple[SideBySide, ...]
    without_law: tuple[str, ...]


def side_by_side(
    specs: tuple[str, str], cases: Sequence[Case], draws: int, run_seed: int
) -> RowsSideBySide:
    """Draw the row of each case from both, and look once; a backend that cannot ends the command.

    An end of any row's interval is wrong with probability at most `CHANCE` for all rows together.
    """
    limits = (None, TIMEOUT_S, MEMORY_BYTES / 2**30)
    found: list[SideBySide] = []
    left_out: list[str] = []
    with (
        one_thread(),
        opened(specs[0], run_seed, *limits) as first,
        opened(specs[1], run_seed + 1, *limits) as second,
    ):
        for case in cases:
            if not _has_law(case, first.capabilities.semantics):
                left_out.append(_name(case))
                continue
            one, other = (_drawn(subject, case, draws) for subject in (first, second))
            found.append(_beside(one, other, CHANCE / len(cases)))
    return RowsSideBySide(specs, draws, run_seed, tuple(found), tuple(left_out))


def _has_law(case: Case, semantics: Semantics) -> bool:
    law = target_law(case.logits.build(case.dtype.torch), case.requests, semantics)
    return bool(law.valid[0])


def _name(case: Case) -> str:
    recorded = case.logits.rows[0].recorded
    return "" if recorded is None else f"{recorded.tensor}[{recorded.row}]"


def _beside(one: StoredLaw, other: StoredLaw, chance: float) -> SideBySide:
    buckets, own = Buckets.of(one.law), Buckets.of(other.law)
    counts = buckets.fold(one.vocab_counts)
    shapes = [shape_of(each) for each in (one, other)]
    return SideBySide(
        row=_name(one.case),
        words=one.words,
        first=from_law(buckets.probs, counts, chance),
        second=from_law(own.probs, own.fold(other.vocab_counts), chance),
        apart=between(counts, buckets.fold(other.vocab_counts), chance),
        outside=(one.record.outside, other.record.outside),
        shapes=(
            "" if shapes[0] is None else shapes[0].words,
            "" if shapes[1] is None else shapes[1].words,
        ),
    )


def _drawn(subject: GuardedSubject, case: Case, draws: int) -> StoredLaw:
    try:
        counts = _counts(subject, case, draws)
    except (SubjectError, SubjectDidNotOpen, WorkerFault) as error:
        click.echo(f"error: {subject.spec}: {error}", err=True)
        sys.exit(ExitCode.HARNESS)
    record = LawRecord(
        check="compare",
        id=case.id,
        case=msgspec.Raw(encode_case(case)),
        draws=draws,
        outside=0,
        counts=tuple((int(token), int(counts[token])) for token in np.flatnonzero(counts)),
        log_e=0.0,
        seconds=0.0,
    )
    found = stored_law(record, subject.capabilities)
    outside = found.law.cells.tally(counts).outside + draws - int(counts.sum())
    return replace(found, record=msgspec.structs.replace(record, outside=outside))


def _counts(subject: GuardedSubject, case: Case, draws: int) -> IntArray:
    """Return the counts [vocab]; ids beyond the vocabulary are left out."""
    vocab = case.logits.vocab
    counts: IntArray = np.zeros(vocab, dtype=np.int64)
    for call, rows in enumerate(batch_sizes(draws, vocab, subject.capabilities.max_elements)):
        ids = subject.sample_many(case, rows, call)
        counts += np.bincount(ids[(ids >= 0) & (ids < vocab)], minlength=vocab)
    return counts

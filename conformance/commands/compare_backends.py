"""Draws one row from two backends, for `refsampler compare`."""

from __future__ import annotations

import sys
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
from refsampler.conformance.reporting.distance import Buckets, Interval, between, from_law
from refsampler.conformance.reporting.shapes import shape_of
from refsampler.conformance.reporting.stored_law import StoredLaw, stored_law
from refsampler.conformance.sequential import batch_sizes
from refsampler.conformance.subject import SubjectError
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import ExitCode

__all__ = ["SideBySide", "side_by_side"]


class SideBySide(msgspec.Struct, frozen=True):
    """Two backends on one row, as `--format json` gives them.

    Attributes:
        names: of the backends.
        words: the row.
        draws: of each.
        run_seed: of the first; the second has the next one, so that they share no noise.
        first: distance of the first from the exact law of its semantics.
        second: of the second.
        apart: of the two from each other.
        outside: draws of each that no right backend gives.
        shapes: what each looks like, empty where it looks right.

    """

    names: tuple[str, str]
    words: str
    draws: int
    run_seed: int
    first: Interval
    second: Interval
    apart: Interval
    outside: tuple[int, int]
    shapes: tuple[str, str]


def side_by_side(specs: tuple[str, str], case: Case, draws: int, run_seed: int) -> SideBySide:
    """Draw the row of a case from both, and look once; a backend that cannot ends the command."""
    limits = (None, TIMEOUT_S, MEMORY_BYTES / 2**30)
    with (
        one_thread(),
        opened(specs[0], run_seed, *limits) as first,
        opened(specs[1], run_seed + 1, *limits) as second,
    ):
        one, other = (_drawn(subject, case, draws) for subject in (first, second))
    buckets, own = Buckets.of(one.law), Buckets.of(other.law)
    counts = buckets.fold(one.vocab_counts)
    shapes = [shape_of(each) for each in (one, other)]
    return SideBySide(
        names=specs,
        words=one.words,
        draws=draws,
        run_seed=run_seed,
        first=from_law(buckets.probs, counts),
        second=from_law(own.probs, own.fold(other.vocab_counts)),
        apart=between(counts, buckets.fold(other.vocab_counts)),
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

"""The exact law beside the counts of a stored law: nothing is drawn again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case, decode_case
from refsampler.conformance.checks.law import prepare
from refsampler.conformance.evidence.arrays import FloatArray, IntArray
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.records import LawRecord

__all__ = ["StoredLaw", "stored_law"]


@dataclass(frozen=True, slots=True, eq=False)
class StoredLaw:
    """One law of a report, on cells.

    Attributes:
        record: as stored.
        case: of one row.
        law: exact, without bets.
        vocab_counts: [vocab] draws of each id.
        counts: [cells] draws of each cell.

    """

    record: LawRecord
    case: Case
    law: LawCase
    vocab_counts: IntArray
    counts: IntArray

    @property
    def probs(self) -> FloatArray:
        """Return the exact law [cells]."""
        return self.law.probs

    @property
    def words(self) -> str:
        """Return the row in words: its size and what its request asks for."""
        params = self.case.requests[0].params
        asked = [f"T = {params.temperature:g}"]
        asked += [f"top-k {params.top_k}"] if params.top_k > 0 else []
        asked += [f"top-p {params.top_p:g}"] if params.top_p < 1 else []
        asked += [f"min-p {params.min_p:g}"] if params.min_p > 0 else []
        kept = int(self.law.cells.live.ids.size)
        return f"V = {self.case.logits.vocab:,}, {kept:,} ids kept, {', '.join(asked)}"


def stored_law(record: LawRecord, capabilities: Capabilities) -> StoredLaw:
    """Compute the exact law of a stored case, with the tolerance that the backend declared."""
    case = decode_case(bytes(record.case))
    law = prepare(case, capabilities, bank=())
    counts = np.zeros(case.logits.vocab, dtype=np.int64)
    for token, times in record.counts:
        counts[token] = times
    return StoredLaw(record, case, law, counts, law.cells.tally(counts).counts)

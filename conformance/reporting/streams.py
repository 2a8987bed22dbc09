"""Names what dependent draws share, as a description: read off the ids of a stored pairing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from refsampler.conformance.case import decode_case
from refsampler.conformance.checks.pairs import Pairing
from refsampler.conformance.checks.processes import unpacked
from refsampler.conformance.evidence.arrays import IntArray
from refsampler.conformance.records import PairsRecord

__all__ = ["copied_share", "shared", "shared_rows"]

_RARE: Final = 1e-9
"""What chance may do before something is called shared."""

_MOST_GROUPS: Final = 4


def shared(record: PairsRecord) -> tuple[str, ...]:
    """Return what the rows or calls of a stored pairing share, in words; mostly nothing."""
    if record.pairing not in (Pairing.ROWS, Pairing.CALLS):
        return ()
    ids = unpacked(record.ids, record.calls, record.rows)
    vocab = decode_case(bytes(record.case)).logits.vocab
    found = list(shared_rows(ids, vocab))
    share = copied_share(ids[:-1], ids[1:], vocab)
    if share:
        found.append(f"{share:.2g} of the rows repeat the call before")
    if not found and (share := copied_share(ids[:, :-1], ids[:, 1:], vocab)):
        found.append(f"{share:.2g} of the rows copy the row before")
    return tuple(found)


def shared_rows(ids: IntArray, vocab: int) -> Iterator[str]:
    """Yield groups of rows that agree in every one of the calls [calls, rows], in words.

    The law is flat over the vocabulary, so that two rows agree by chance with probability
    vocab^-calls; nothing is said where any pair might.
    """
    calls, rows = ids.shape
    if math.log(max(rows, 2)) * 2 - calls * math.log(max(vocab, 2)) > math.log(_RARE):
        return
    _, group = np.unique(ids, axis=1, return_inverse=True)
    sizes = np.bincount(group.ravel())
    big = np.flatnonzero(sizes > 1)
    for one in big[:_MOST_GROUPS]:
        yield f"{_span(np.flatnonzero(group.ravel() == one))} share a stream"
    if big.size > _MOST_GROUPS:
        yield f"{big.size - _MOST_GROUPS} more groups of rows share a stream"


def _span(rows: IntArray) -> str:
    """Return rows in words: as a range where they are one, else the first few."""
    if rows[-1] - rows[0] == rows.size - 1:
        return f"rows {rows[0]} to {rows[-1]}" if rows.size > 2 else f"rows {rows[0]} and {rows[1]}"
    shown = ", ".join(str(row) for row in rows[:8])
    return f"rows {shown}{' ...' if rows.size > 8 else ''} ({rows.size} rows)"


def copied_share(first: IntArray, second: IntArray, vocab: int) -> float:
    """Return the share of pairs that agree beyond chance under a flat law; 0 if chance does it."""
    from scipy import stats

    pairs, equal = first.size, int((first == second).sum())
    if pairs == 0 or stats.binom.sf(equal - 1, pairs, 1 / vocab) > _RARE:
        return 0.0
    return (equal / pairs - 1 / vocab) / (1 - 1 / vocab)

"""Rows for tails and for independence: one likely id and a flat sea, and flat rows."""

from __future__ import annotations

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch, flat, request
from refsampler.conformance.evidence.sea import sea
from refsampler.conformance.logits import RowRecipe

__all__ = ["FLAT_VOCAB", "TAIL_VOCAB", "flat_case", "tail_case"]

TAIL_VOCAB = 1024
"""Draws times vocabulary hardly depend on its size while the sea's mass is small; with fewer ids
the distinct count says more, with more the calls have fewer rows."""

FLAT_VOCAB = 1024
"""A copied draw is seen after a handful of pairs; larger rows cost more seconds for the same."""


def tail_case(grade: float, dtype: DType = DType.FLOAT32) -> Case:
    """Return one id against a flat sea of ids of probability `grade` each, as `dtype` rounds it.

    The likely id comes early, in the first block of a kernel: a narrow sum over the row stops growing
    there, and loses nearly all of the sea.
    """
    head = TAIL_VOCAB // 17
    recipe = RowRecipe(ids=(head,), values=(sea(TAIL_VOCAB, grade).gap,))
    clauses = ("draw.tail", "draw.resolution")[: 2 if dtype is DType.FLOAT32 else 1]
    return batch(TAIL_VOCAB, [(recipe, request())], *clauses, dtype=dtype)


def flat_case(clause: str, calls: int, vocab: int = FLAT_VOCAB) -> Case:
    """Return one flat row that is asked in so many successive calls."""
    return batch(vocab, [(flat(), request())], clause, calls=calls)

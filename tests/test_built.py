"""The logits of a case are built once, and its arrangements get copies of their rows."""

from __future__ import annotations

import pytest
import torch

from refsampler.backends.protocol import DType
from refsampler.conformance.built import BuiltLogits
from refsampler.conformance.case import Case
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.request import Request

_HALVES = RowRecipe(base=0.5, ids=(1,), values=(-2.0,))
_BELL = RowRecipe("bell", seed=3, ids=(0,), values=(7.25,))


def _case(*rows: RowRecipe, vocab: int = 4, dtype: DType = DType.FLOAT32) -> Case:
    return Case(LogitsRecipe(vocab, rows), (Request(),) * len(rows), dtype)


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 0), (1,), ()])
def test_an_arrangement_gets_the_rows_that_it_would_build(order):
    whole = _case(_HALVES, _BELL)
    arranged = _case(*(whole.logits.rows[row] for row in order))

    built = BuiltLogits.of(whole)

    assert built.holds(arranged)
    assert torch.equal(built.rows(arranged), arranged.build_logits())


def test_numbers_by_hand():
    built = BuiltLogits.of(_case(_HALVES, _HALVES))
    assert built.rows(_case(_HALVES)).tolist() == [[0.5, -2.0, 0.5, 0.5]]


def test_what_a_backend_writes_into_a_copy_stays_there():
    case = _case(_HALVES, _BELL)
    built = BuiltLogits.of(case)
    built.rows(case).fill_(torch.nan)
    assert torch.equal(built.rows(case), case.build_logits())


@pytest.mark.parametrize(
    "other",
    [
        _case(RowRecipe(base=1.5)),
        _case(_HALVES, vocab=5),
        _case(_HALVES, dtype=DType.BFLOAT16),
    ],
    ids=["recipe", "vocab", "dtype"],
)
def test_other_logits_are_built_anew(other):
    assert not BuiltLogits.of(_case(_HALVES, _BELL)).holds(other)

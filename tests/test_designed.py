"""Designed cases have margin: every right backend keeps the same ids, and the winner is certain."""

import inspect
import math

import numpy as np
import pytest

from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.conformance.case import Case, decode_case, encode_case
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.designed import batches, filters, greedy, inputs, laws, processors
from refsampler.law import target_law
from refsampler.semantics import Semantics

CAPABILITIES = Capabilities(
    "any", "1", 2, dtypes=frozenset(DType), features=frozenset(Feature), thresholds=(16,)
)
MODULES = (batches, filters, greedy, inputs, processors)
# 87 nats down float32 may round a probability to 0; nothing is decided there
FAR_DOWN = -80.0


def made(name: str, make) -> tuple[Case, ...]:
    known = {
        "capabilities": CAPABILITIES,
        "dtypes": CAPABILITIES.dtypes,
        "run_seed": 7,
        "seeds": True,
    }
    cases: tuple[Case, ...] = make(
        **{one: known[one] for one in inspect.signature(make).parameters}
    )
    return cases


GROUPS = [
    (name, getattr(module, name))
    for module in MODULES
    for name in module.__all__
    if name.endswith("_cases")
]


@pytest.mark.parametrize(("name", "make"), GROUPS, ids=[name for name, _ in GROUPS])
def test_cases_are_legal_distinct_and_survive_json(name, make):
    cases = made(name, make)
    assert cases
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert case.clauses
        assert decode_case(encode_case(case)).id == case.id
        for request in case.requests:
            request.verify(case.logits.vocab)


@pytest.mark.parametrize(("name", "make"), GROUPS, ids=[name for name, _ in GROUPS])
def test_core_is_hull_but_for_ids_far_down(name, make):
    for case in made(name, make):
        expected = Expected.of(case, Semantics())
        for row in expected.distinct:
            if not row.valid or row.greedy:
                continue
            # tied ids at a declared boundary are one lumped cell and have no bound below
            open_ids = row.allowed & ~row.core & (row.most < 0)
            assert (row.most[open_ids] < FAR_DOWN).all(), case.requests


def certain(case: Case) -> list[int]:
    """The id that each row gives but for e^-35."""
    expected = Expected.of(case, Semantics())
    found = []
    for row in range(len(case.requests)):
        law = expected.row(row)
        if law.greedy:
            assert law.allowed.sum() == 1
            found.append(int(np.flatnonzero(law.allowed)[0]))
            continue
        top = int(np.argmax(law.most))
        others = np.delete(law.most, top)
        assert np.exp(others).sum() < math.exp(-35)
        found.append(top)
    return found


@pytest.mark.parametrize(
    "make", [processors.mask_cases, processors.bias_cases, processors.penalty_cases]
)
def test_order_flips_have_one_winner_greedy_or_not(make):
    for case in make():
        assert len(set(certain(case))) == 1


def test_order_flips_worked_by_hand():
    # each number is derived in the comment beside its case
    assert [certain(case)[0] for case in processors.bias_cases()] == [11, 5, 5, 0, 0, 0, 0, 0, 0]
    assert [certain(case)[0] for case in processors.penalty_cases()] == [
        *(0, 0, 0, 11, 11, 11, 11),
        *(0, 11, 11, 11),
        *(0, 11, 11),
        0,
    ]


def test_masks_worked_by_hand():
    winners = [certain(case)[0] for case in processors.mask_cases()]
    allowed, words = [0, 11, 5], [0, 5]
    # banned where the last ids of the output are the word's beginning, the prompt never counts
    prefixes = [0, 0, 11, 11, 0, 11, 0, 11, 11, 0, 11, 0, 0]
    # 11 and 0 are stop ids below 3 output ids
    minimum = [5, 5, 5, 11, 11, 0, 11, 0]
    assert winners == [*allowed, *words, *prefixes, *minimum]


def test_thinking_worked_by_hand():
    # spent, spent, second id of the marker, unspent, no budget, spent under three masks, greedy,
    # not thinking
    forward, _ = processors.thinking_cases()
    assert certain(forward) == [3, 3, 4, 11, 11, 3, 3, 3, 3, 11]


def test_kept_sets_worked_by_hand():
    def sets(cases: tuple[Case, ...]) -> list[set[int]]:
        return [
            {int(token) for token in np.flatnonzero(Expected.of(case, Semantics()).row(0).allowed)}
            for case in cases
        ]

    # ids in the order of their probability: 6, 2, 9, 0
    assert sets(filters.top_p_cases())[:5] == [{6, 2}, {6}, {6, 2, 9}, {6}, {9}]
    after_top_k, after_heat = [{6}, {6, 2}, {6, 2}], [{6, 2}, {6}, {6, 2}]
    assert sets(filters.order_cases()) == [*after_top_k, *after_heat, {6}]
    assert sets(filters.min_p_cases())[:4] == [{6, 2, 9}, {6, 2}, {6}, {6}]
    assert sets(filters.min_p_cases())[5:] == [{6, 2, 9}, {6}]
    assert sets(filters.temperature_cases(frozenset(DType)))[:2] == [{6, 2, 9}, {6}]


def test_law_cases_are_well_conditioned():
    for case in laws.law_cases():
        law = target_law(case.build_logits(), case.requests)
        assert bool(law.exact[0])
        # rounding moves less than a tenth of the smallest delta that is usual
        assert float(law.magnitude[0]) * 2.0**-23 < 1e-5

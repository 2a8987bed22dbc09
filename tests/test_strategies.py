"""Generated cases are legal, varied, and the same for the same seed."""

import importlib
import math
import sys
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from refsampler.backends.protocol import DType, Feature
from refsampler.conformance.case import Case, decode_case, encode_case
from refsampler.conformance.examples import collect, shrink
from refsampler.conformance.strategies import cases

DYADIC_STEP = 2.0**-12


def is_power_of_two(number: float) -> bool:
    return math.frexp(number)[0] == 0.5


def on_grid(number: float) -> bool:
    return not math.isfinite(number) or (number / DYADIC_STEP).is_integer()


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(cases(dtypes=tuple(DType)))
def test_every_case_is_legal_and_survives_json(case):
    for request in case.requests:
        request.verify(case.logits.vocab)
    logits = case.build_logits()
    assert logits.shape == (len(case.requests), case.logits.vocab)
    assert not logits.isnan().any()
    assert decode_case(encode_case(case)) == case


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(cases(dyadic=True))
def test_dyadic_cases_stay_exact_up_to_the_penalties(case):
    logits = case.build_logits()
    finite = logits[logits.isfinite()].double()
    assert torch.equal(finite / DYADIC_STEP, (finite / DYADIC_STEP).round())
    for request in case.requests:
        params = request.params
        assert params.greedy or is_power_of_two(params.temperature)
        assert is_power_of_two(params.repetition_penalty)
        assert all(on_grid(bias) for _, bias in params.logit_bias)
        assert on_grid(params.frequency_penalty)
        assert on_grid(params.presence_penalty)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(cases(features=frozenset()))
def test_nothing_is_asked_that_the_backend_does_not_declare(case):
    for request in case.requests:
        params = request.params
        assert params.seed is None
        assert not params.penalised
        assert params.allowed_token_ids is None
        assert params.logprobs is None
        assert not params.logit_bias


def test_the_same_seed_gives_the_same_distinct_cases():
    first, again, other = (collect(cases(), 40, seed) for seed in (5, 5, 6))
    assert len({case.id for case in first}) == 40
    assert [case.id for case in first] == [case.id for case in again]
    assert {case.id for case in first} != {case.id for case in other}


def test_40_cases_reach_what_samplers_get_wrong():
    found: Counter[str] = Counter()
    for case in collect(cases(), 60, 3):
        greedy = [request.params.greedy for request in case.requests]
        found["mixed"] += any(greedy) and not all(greedy)
        found["one id"] += case.logits.vocab == 1
        found["wide"] += case.logits.vocab > 500
        found["empty background"] += any(row.base == -math.inf for row in case.logits.rows)
        for request in case.requests:
            params = request.params
            found["top-k"] += params.top_k > 0
            found["top-p"] += params.top_p < 1
            found["min-p"] += params.min_p > 0
            found["seed"] += params.seed is not None
            found["penalty"] += params.penalised
            found["mask"] += params.allowed_token_ids is not None
            found["bad words"] += bool(params.bad_words_token_ids)
            found["bias"] += bool(params.logit_bias)
            found["min tokens"] += params.min_tokens > 0
            found["placeholder"] += -1 in request.output
            found["id 0"] += 0 in request.output
            found["logprobs"] += params.logprobs is not None
    assert all(found.values()), found
    assert len(found) == 16


@pytest.mark.parametrize("feature", [Feature.SEED, Feature.PENALTIES])
def test_a_declared_feature_is_used(feature):
    drawn = collect(cases(features=frozenset({feature})), 30, 1)
    params = [request.params for case in drawn for request in case.requests]
    used = {
        Feature.SEED: any(one.seed is not None for one in params),
        Feature.PENALTIES: any(one.penalised for one in params),
    }
    assert used == {name: name is feature for name in used}


def test_shrinking_returns_a_small_case_that_fails():
    def two_rows(case: Case) -> bool:
        return len(case.requests) >= 2 and case.logits.vocab >= 8

    smallest = shrink(cases(), two_rows, 1, 15, deadline=math.inf, candidates=60)
    assert smallest is not None
    assert two_rows(smallest)
    assert len(smallest.requests) == 2


def test_shrinking_gives_up_without_a_failure():
    assert shrink(cases(), lambda _: False, 1, 20, deadline=math.inf) is None


def test_what_else_is_imported_changes_no_case(tmp_path, monkeypatch):
    """Hypothesis likes numbers that stand in imported modules; of 2,000 it would try some here."""
    first = [one.id for one in collect(cases(), 60, 5)]
    numbers = ", ".join(str(one / 16) for one in range(-400, 400))
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = [{numbers}]\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_numbers")
    assert [one.id for one in collect(cases(), 60, 5)] == first
    del sys.modules["full_of_numbers"]

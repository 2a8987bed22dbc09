"""Request and ThinkingMarkers: what they refuse, and how they say it."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from refsampler.batch import PersistentBatch
from refsampler.law import target_law, trace_law
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.validation import ParameterError, ParameterTypeError


@pytest.mark.parametrize(
    ("field", "token", "lowest"),
    [
        ("prompt", 10, 0),
        ("prompt", PLACEHOLDER, 0),
        ("output", 10, -1),
        ("output", -2, -1),
        ("drafts", 10, -1),
        ("drafts", -2, -1),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(field, token, lowest):
    ids: dict[str, Any] = {field: (3, token)}
    request = Request(**ids)
    with pytest.raises(ParameterError) as error:
        request.verify(10)
    assert str(error.value) == f"{field} = {token} is refused: allowed is ids from {lowest} to 9"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(prompt=(1.5,)), "prompt"),  # type: ignore[arg-type]  # the point of the test
        (Request(SamplingParams(allowed_token_ids=(1.5,))), "allowed_token_ids"),  # type: ignore[arg-type]  # the point of the test
    ],
)
def test_an_id_that_is_no_integer_is_refused(request_, field):
    with pytest.raises(ParameterTypeError) as error:
        request_.verify(10)
    assert str(error.value) == f"{field} = 1.5 is refused: allowed is ids from 0 to 9"


def test_boundary_ids_and_placeholders_are_admitted():
    Request(prompt=(0, 9), output=(0, PLACEHOLDER, 9), drafts=(PLACEHOLDER, 9)).verify(10)


def test_verify_covers_the_parameters():
    with pytest.raises(ParameterError, match="eos_token_id = 10 is refused"):
        Request(SamplingParams(eos_token_id=10)).verify(10)


def test_a_request_may_ask_for_all_logprobs_unless_the_model_caps_them():
    request = Request(SamplingParams(logprobs=-1))
    request.verify(50)
    with pytest.raises(ParameterError, match="at most 20 logprobs a token"):
        request.verify(50, max_logprobs=20)


def test_requests_are_values():
    assert Request(prompt=(1,)) == Request(prompt=(1,))
    with pytest.raises(FrozenInstanceError):
        Request().prompt = (1,)  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize("field", ["start", "end"])
def test_a_marker_has_at_least_one_id(field):
    given = {"start": (1,), "end": (2,), field: ()}
    with pytest.raises(ParameterError) as error:
        ThinkingMarkers(**given)
    assert str(error.value) == f"{field} = () is refused: allowed is at least one id"


@pytest.mark.parametrize("token", [PLACEHOLDER, 10])
@pytest.mark.parametrize("field", ["start", "end"])
def test_a_marker_outside_the_vocabulary_is_refused_before_it_forces_nothing(field, token):
    given = {"start": (1,), "end": (2,), field: (3, token)}
    markers = ThinkingMarkers(**given)
    makers = (
        lambda: SamplingMetadata.from_requests([Request()], 10, thinking=markers),
        lambda: PersistentBatch(10, thinking=markers),
        lambda: target_law(torch.zeros(1, 10), [Request()], thinking=markers),
        lambda: trace_law(torch.zeros(10), Request(), thinking=markers),
    )
    for make in makers:
        with pytest.raises(ParameterError) as error:
            make()
        message = f"thinking.{field} = {token} is refused: allowed is ids from 0 to 9"
        assert str(error.value) == message

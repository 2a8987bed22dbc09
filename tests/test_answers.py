"""What a backend returns is read without raising, and what is wrong with it is said."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from refsampler.conformance.answers import read_drawn, read_output
from refsampler.conformance.case import Case
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.subject import OpenSubject, SubjectError
from refsampler.draw import Drawn
from refsampler.request import Request
from tests.broken_samplers import RightSampler

PLAIN = Case(LogitsRecipe(9, (RowRecipe(),)), (Request(),))
IDS = torch.tensor([[3], [4]], dtype=torch.int32)
VALID = torch.tensor([True, True])
LOGPROBS = SimpleNamespace(
    logprob_token_ids=torch.tensor([[3, 1], [4, 0]], dtype=torch.int32),
    logprobs=torch.zeros(2, 2),
    selected_token_ranks=torch.tensor([1, 1]),
    valid=torch.ones(2, 2, dtype=torch.bool),
)


def answer(**changed):
    return SimpleNamespace(
        **{"sampled_token_ids": IDS, "logprobs_tensors": None, "valid": VALID, **changed}
    )


def logprobs(**changed):
    return answer(logprobs_tensors=SimpleNamespace(**{**vars(LOGPROBS), **changed}))


class Raises:
    sampled_token_ids = IDS

    @property
    def valid(self):
        raise ZeroDivisionError


def test_a_right_answer_is_itself():
    for right in (answer(), logprobs()):
        read = read_output(right, 2, 9)
        assert (read.ids.tolist(), read.output, read.form) == ([3, 4], right, "")


@pytest.mark.parametrize(
    ("result", "form"),
    [
        (None, "NoneType in place of a SamplerOutput"),
        ({"sampled_token_ids": IDS}, "dict in place of a SamplerOutput"),
        (IDS, "Tensor in place of a SamplerOutput"),
        (answer(sampled_token_ids=[[3], [4]]), "list in place of a tensor"),
        (answer(sampled_token_ids=IDS.float()), "float32 [2, 1]"),
        (answer(sampled_token_ids=IDS[:1]), "int32 [1, 1]"),
        (answer(valid=None), "valid: NoneType in place of a tensor"),
        (answer(valid=VALID[:1]), "valid: bool [1]"),
        (Raises(), "valid: nothing in place of a tensor"),
        (answer(logprobs_tensors=7), "logprob_token_ids: nothing in place of a tensor"),
        (logprobs(logprobs=torch.zeros(3, 2)), "logprobs: [3, 2]"),
        (logprobs(logprobs=torch.zeros(2, 2, dtype=torch.int64)), "logprobs: torch.int64"),
        (logprobs(logprob_token_ids=torch.zeros(2, 3, dtype=torch.int32)), "int32 [2, 3]"),
        (logprobs(logprob_token_ids=torch.full((2, 2), 9)), "logprob_token_ids: id 9"),
        (logprobs(selected_token_ranks=torch.ones(2)), "selected_token_ranks: float32 [2]"),
    ],
)
def test_rubbish_of_a_sampler_is_a_wrong_form(result, form):
    read = read_output(result, 2, 9)
    # ids of another dtype or shape do not spoil the logprobs beside them
    assert (read.output is None) == (read.form not in ("float32 [2, 1]", "int32 [1, 1]"))
    assert read.form.endswith(form)


@pytest.mark.parametrize(
    ("result", "form"),
    [
        (None, "NoneType in place of a tensor"),
        (
            Drawn(torch.tensor([1, 2]), cast("torch.Tensor", "logits")),
            "processed_logits: str in place of a tensor",
        ),
        (Drawn(torch.tensor([1, 2]), torch.zeros(2, 3)), "processed_logits: float32 [2, 3]"),
        (Drawn(torch.tensor([1, 2]), torch.zeros(2, 9).bool()), "processed_logits: bool [2, 9]"),
        (torch.tensor([1, 2]).to_sparse(), "ids that cannot be read"),
        (torch.empty(2, dtype=torch.int64, device="meta"), "ids that cannot be read"),
    ],
)
def test_rubbish_of_a_kernel_is_a_wrong_form(result, form):
    read = read_drawn(result, 2, 9)
    assert read.processed is None
    assert form in read.form


class Leaves(RightKernel):
    def draw(self, *_):
        raise SystemExit(0)


class Refuses(RightSampler):
    def sample(self, *_):
        raise ValueError("row 3")


def test_what_a_backend_raises_never_ends_the_run():
    with pytest.raises(SubjectError, match="SystemExit") as caught:
        OpenSubject(Leaves(), 1).sample(PLAIN, 0, "k")
    assert not caught.value.refused
    with pytest.raises(SubjectError, match="ValueError: row 3") as caught:
        OpenSubject(Refuses(), 1).sample(PLAIN, 0, "k")
    assert caught.value.refused

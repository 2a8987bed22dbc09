"""What a kernel is handed, and what the pipeline still does."""

from dataclasses import replace

import pytest
import torch

from refsampler.draw import Drawn, Fold
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.processors import LogitsProcessor
from refsampler.request import Request
from refsampler.sampler import Sampler

TOP = frozenset({Fold.TOP_K, Fold.TOP_P})
INF = float("inf")


class Spy:
    """A kernel that notes what it got and returns the last id."""

    def __init__(self, processed=None):
        self.processed = processed

    def __call__(self, logits, rows):
        self.logits, self.rows = logits, rows
        ids = torch.full((logits.shape[0],), logits.shape[1] - 1, dtype=torch.int32)
        return ids if self.processed is None else Drawn(ids, self.processed)


class Nothing(LogitsProcessor):
    """A custom argmax-invariant processor that changes nothing."""

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits


def run(spy, folds, *params, custom=(), mode="raw_logprobs", logits=(2.0, 4.0, 0.0)):
    metadata = SamplingMetadata.from_requests([Request(p) for p in params], 3, custom=custom)
    sampler = Sampler(mode, filter_and_draw=spy, folds=folds)
    return sampler(torch.tensor([logits] * len(params)), metadata)


WARM = SamplingParams(temperature=0.5, top_k=2, top_p=0.75, seed=-5)
COLD = SamplingParams(temperature=0)


def test_a_kernel_gets_tempered_logits_and_its_own_parameters():
    spy = Spy()
    output = run(spy, TOP, WARM, COLD)
    # the greedy row is divided by 1, its filters are off, and its id is not the kernel's
    assert spy.logits.tolist() == [[4, 8, 0], [2, 4, 0]]
    assert spy.rows.top_k.tolist() == [2, 3]
    assert spy.rows.top_p.tolist() == [0.75, 1]
    assert spy.rows.temperature is None
    assert spy.rows.min_p is None
    assert spy.rows.seed.tolist() == [-5, 0]
    assert spy.rows.seeded.tolist() == [True, False]
    assert spy.rows.step.tolist() == [0, 0]
    assert output.sampled_token_ids.flatten().tolist() == [2, 1]


def test_filters_that_are_off_for_all_rows_are_none():
    spy = Spy()
    run(spy, TOP, SamplingParams())
    assert spy.rows.top_k is None
    assert spy.rows.top_p is None


def test_folded_temperature_is_one_on_greedy_rows():
    spy = Spy()
    run(spy, TOP | {Fold.TEMPERATURE}, WARM, COLD)
    assert spy.logits.tolist() == [[2, 4, 0], [2, 4, 0]]
    assert spy.rows.temperature.tolist() == [0.5, 1]


def test_folded_greedy_rows_have_temperature_zero_and_the_kernels_id():
    spy = Spy()
    output = run(spy, TOP | {Fold.TEMPERATURE, Fold.GREEDY}, WARM, COLD)
    assert spy.rows.temperature.tolist() == [0.5, 0]
    # exactly 0 also where a caller's own metadata holds something small
    metadata = SamplingMetadata.from_requests([Request(WARM), Request(COLD)], 3)
    metadata = replace(metadata, temperature=torch.tensor([0.5, 9e-6]))
    Sampler(filter_and_draw=spy, folds=TOP | {Fold.TEMPERATURE, Fold.GREEDY})(
        torch.zeros(2, 3), metadata
    )
    assert spy.rows.temperature.tolist() == [0.5, 0]
    assert output.sampled_token_ids.flatten().tolist() == [2, 2]
    assert run(spy, TOP | {Fold.TEMPERATURE, Fold.GREEDY}, COLD).sampled_token_ids.item() == 2


def test_min_p_that_is_not_folded_keeps_the_temperature_and_greedy_rows_here():
    spy = Spy()
    folds = TOP | {Fold.TEMPERATURE, Fold.GREEDY}
    output = run(spy, folds, SamplingParams(temperature=0.5, min_p=0.5), COLD)
    assert spy.rows.temperature is None
    assert spy.logits[0].tolist() == [-INF, 8, -INF]
    assert output.sampled_token_ids.flatten().tolist() == [2, 1]


def test_folded_min_p_is_handed_over():
    spy = Spy()
    run(spy, TOP | {Fold.TEMPERATURE, Fold.MIN_P}, SamplingParams(temperature=0.5, min_p=0.5), COLD)
    assert spy.rows.min_p.tolist() == [0.5, 0]
    assert spy.logits[0].tolist() == [2, 4, 0]


def test_a_custom_processor_between_keeps_everything_before_it_here():
    spy = Spy()
    folds = TOP | {Fold.TEMPERATURE, Fold.MIN_P}
    run(spy, folds, SamplingParams(temperature=0.5, min_p=0.5), custom=[Nothing])
    assert spy.rows.temperature is None
    assert spy.rows.min_p is None
    assert spy.logits[0].tolist() == [-INF, 8, -INF]


def test_processed_values_come_from_the_kernel_or_else_from_the_reference():
    params = SamplingParams(temperature=0.5, top_k=1, logprobs=0)
    own = torch.tensor([[0.0, 0.0, 7.0]])
    for kernel, shown in ((Spy(own), 7), (Spy(), -INF)):
        logprobs = run(kernel, TOP, params, mode="processed_logits").logprobs_tensors
        assert logprobs is not None
        assert logprobs.logprobs.tolist() == [[shown]]


def test_greedy_rows_are_handed_over_only_with_the_temperature_that_marks_them():
    with pytest.raises(ValueError, match=r"folds = \[.*'greedy'.*\] is refused: allowed is greedy"):
        Sampler(filter_and_draw=Spy(), folds=TOP | {Fold.GREEDY})


def test_a_kernel_that_works_in_place_spoils_no_logprobs():
    def kernel(logits, rows):
        logits.fill_(-INF)
        return torch.full((len(rows.seed),), 1)

    for mode in ("raw_logits", "processed_logits"):
        warm, cold = SamplingParams(logprobs=0), SamplingParams(temperature=0, logprobs=0)
        output = run(kernel, frozenset(Fold), warm, cold, mode=mode)
        assert output.logprobs_tensors is not None
        assert output.logprobs_tensors.logprobs.tolist() == [[4], [4]]
        assert output.valid.tolist() == [True, True]


@pytest.mark.parametrize("wrong", [torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2)])
def test_ids_of_another_form_are_refused_by_name(wrong):
    with pytest.raises(
        ValueError, match=r"ids of the kernel = .* are refused: allowed are int32 or"
    ):
        run(lambda *_: wrong, TOP, WARM, WARM)

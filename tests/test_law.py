"""The law on rows whose answer is worked by hand."""

import math

import pytest
import torch

from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import Request, ThinkingMarkers
from refsampler.semantics import Semantics, Step, profile

INF = math.inf
ULP_8 = 2.0**-20  # distance from 8 to the next float32


def law_of(values, request=None, semantics=None, **params):
    """The law of one row; `params` make the request if none is given."""
    request = request or Request(SamplingParams(**params))
    return target_law(torch.tensor([values]), [request], semantics or Semantics())


def law_of_probs(probs, semantics=None, **params):
    return law_of([math.log(p) for p in probs], semantics=semantics, **params)


def ids(mask):
    return mask[0].nonzero().flatten().tolist()


def probs_of(law):
    return law.logprobs[0].exp().tolist()


def test_top_p_measures_what_top_k_left():
    # .4/.7 = .571 of the two survivors is above id 1, and not below .55
    law = law_of_probs([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.55)
    assert (ids(law.core), ids(law.hull), law.exact.item()) == ([0], [0], True)


def test_joint_top_p_measures_the_whole_row():
    # .4 of the whole row is above id 1, and below .55
    law = law_of_probs([0.4, 0.3, 0.2, 0.1], profile("sglang"), top_k=2, top_p=0.55)
    assert ids(law.core) == [0, 1]
    assert probs_of(law) == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=1e-7)


def test_top_k_measures_what_top_p_left_if_the_order_says_so():
    # k last: p = .55 of the whole row keeps two, k = 2 keeps both
    law = law_of_probs([0.4, 0.3, 0.2, 0.1], profile("mlx-lm"), top_k=2, top_p=0.55)
    assert ids(law.core) == [0, 1]


def test_top_p_before_the_temperature_sees_the_row_before_it():
    # T = 2 flattens .64/.32/.04 to .8/.566/.2 over 1.566; p = .9 at T = 1 keeps two of three
    late = law_of_probs([0.64, 0.32, 0.04], profile("llama.cpp"), temperature=2.0, top_p=0.9)
    early = law_of_probs([0.64, 0.32, 0.04], temperature=2.0, top_p=0.9)
    assert (ids(late.core), ids(early.core)) == ([0, 1], [0, 1, 2])
    assert probs_of(late)[0] == pytest.approx(0.8 / (0.8 + 0.32**0.5), abs=1e-7)


@pytest.mark.parametrize(
    ("cut", "p", "count"),
    [
        ("strict", 0.5, 2),
        ("inclusive", 0.5, 3),
        ("strict", 0.5625, 3),
        ("inclusive", 0.5625, 3),
        ("strict", 0.25, 1),
        ("inclusive", 0.25, 2),
        ("strict", 0.125, 1),
    ],
)
def test_equal_ids_at_the_top_p_boundary_are_one_cell_of_known_count(cut, p, count):
    law = law_of([1.5] * 4, semantics=Semantics(top_p_cut=cut), top_p=p)
    assert (ids(law.lumped), ids(law.core)) == ([0, 1, 2, 3], [])
    assert (law.lump_count.item(), law.lump_logprob.item(), law.exact.item()) == (count, 0.0, True)


@pytest.mark.parametrize(("cut", "whole"), [("strict", False), ("inclusive", True)])
def test_three_quarters_of_four_equals(cut, whole):
    # above the last of four lies exactly .75
    law = law_of([0.0] * 4, semantics=Semantics(top_p_cut=cut), top_p=0.75)
    assert ids(law.core) == ([0, 1, 2, 3] if whole else [])
    assert law.lump_count.item() == (0 if whole else 3)


@pytest.mark.parametrize("p", [0.25 + 2.0**-25, 0.75 + 2.0**-24])
def test_top_p_next_to_an_exact_boundary_is_open(p):
    # 1 - p in float32 is 3/4 for p = 1/4 and for the next float32 above it
    law = law_of([0.0] * 4, top_p=p)
    assert (ids(law.core), ids(law.lumped), ids(law.hull)) == ([], [], [0, 1, 2, 3])


def test_three_equals_do_not_sum_exactly_in_float32():
    law = law_of([0.0] * 3, top_p=2 / 3 + 1e-6)
    assert (ids(law.core), ids(law.lumped), ids(law.hull)) == ([], [], [0, 1, 2])
    clear = law_of([0.0] * 3, top_p=0.7)
    assert (ids(clear.core), clear.exact.item()) == ([0, 1, 2], True)


def test_one_of_two_equal_maxima_stays_however_small_p_is():
    law = law_of([1.0, 1.0, 0.0], top_p=1e-9)
    assert (ids(law.lumped), law.lump_count.item(), ids(law.hull)) == ([0, 1], 1, [0, 1])


def test_all_equal_ids_stay_where_the_policy_says_all():
    law = law_of([1.5] * 4, semantics=profile("flashinfer"), top_p=0.5)
    assert (ids(law.core), law.exact.item()) == ([0, 1, 2, 3], True)


def test_a_class_below_the_certain_ids_is_lumped_with_its_mass():
    # p = .75: above id 1 or 2, whichever is first, lies .6; above the other .8
    law = law_of_probs([0.6, 0.2, 0.2], top_p=0.75)
    assert (ids(law.core), ids(law.lumped), law.lump_count.item()) == ([0], [1, 2], 1)
    assert probs_of(law)[0] == pytest.approx(0.75, abs=1e-7)
    assert law.lump_logprob.item() == pytest.approx(math.log(0.25), abs=1e-7)


def test_a_boundary_within_float32_summation_is_open():
    # above id 1 lies .5, which float32 may find a little less or more
    law = law_of_probs([0.5, 0.3, 0.2], top_p=0.5)
    assert (ids(law.core), ids(law.hull), law.exact.item()) == ([0], [0, 1], False)
    assert probs_of(law) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("offset", "core", "hull"),
    [(-2e-5, [0], [0]), (-8e-6, [0], [0, 1]), (8e-6, [0], [0, 1]), (2e-5, [0, 1], [0, 1])],
)
def test_open_is_what_lies_within_a_hundred_thousandth_of_the_mass(offset, core, hull):
    law = law_of_probs([0.5, 0.3, 0.2], top_p=0.5 + offset)
    assert (ids(law.core), ids(law.hull)) == (core, hull)


def test_unknown_survivors_are_not_uniform():
    # top-k leaves 2 of 4 equals; what comes between might have parted them, so that p = .75 may
    # be measured on any of them
    order = (Step.TOP_K, Step.LOGIT_BIAS, Step.TOP_P)
    law = law_of(
        [0.0] * 4, semantics=Semantics(order=order, top_k_ties="exactly_k"), top_k=2, top_p=0.75
    )
    assert (ids(law.core), ids(law.hull), law.lump_count.item()) == ([], [0, 1, 2, 3], 0)


def test_a_count_is_unknown_if_the_whole_mass_is():
    # id 2 is at the threshold of min-p.  Without it .5 lies above the second of the two equals,
    # with it .4: so p = .45 keeps one of them or both
    order = (Step.MIN_P, Step.TOP_K, Step.TOP_P)
    joint = Semantics(order=order, top_k_ties="exactly_k", top_p_mass="joint")
    probs = [0.36, 0.36, 0.18, 0.1]
    law = law_of_probs(probs, joint, min_p=0.5, top_k=2, top_p=0.45)
    assert (ids(law.core), ids(law.lumped), ids(law.hull)) == ([], [], [0, 1])


def test_top_p_keeps_one_id_however_small_p_is():
    law = law_of_probs([0.3, 0.5, 0.2], top_p=1e-9)
    assert (ids(law.core), ids(law.hull)) == ([1], [1])


def test_top_p_of_one_removes_only_what_float32_cannot_see():
    law = law_of([0.0, -87.0, -88.0], top_p=1.0)
    assert (ids(law.core), ids(law.hull)) == ([0, 1], [0, 1, 2])  # e^-88 < 2^-126 < e^-87


def test_top_k_keeps_all_ties_or_exactly_k():
    values = [2.0, 1.0, 1.0, 1.0, 0.0]
    every = law_of(values, top_k=2)
    assert (ids(every.core), ids(every.hull)) == ([0, 1, 2, 3], [0, 1, 2, 3])
    exactly = law_of(values, semantics=profile("onnxruntime-genai"), top_k=3)
    assert (ids(exactly.core), ids(exactly.lumped), exactly.lump_count.item()) == (
        [0],
        [1, 2, 3],
        2,
    )
    e = math.e
    assert probs_of(exactly)[0] == pytest.approx(e / (e + 2), rel=1e-12)
    assert exactly.lump_logprob.item() == pytest.approx(math.log(2 / (e + 2)), rel=1e-12)


def test_top_p_counts_the_part_of_a_class_that_top_k_left():
    # weights 2, 1, 1 of which k keeps two: 2/3 is above whichever 1 is left
    values = [math.log(2.0), 0.0, 0.0]
    kept = law_of(values, semantics=profile("onnxruntime-genai"), top_k=2, top_p=0.7)
    assert (ids(kept.lumped), kept.lump_count.item()) == ([1, 2], 1)
    cut = law_of(values, semantics=profile("onnxruntime-genai"), top_k=2, top_p=0.6)
    assert (ids(cut.core), ids(cut.hull)) == ([0], [0])


@pytest.mark.parametrize("k", [0, -1, 3, 7])
def test_top_k_is_off(k):
    assert ids(law_of([2.0, 1.0, 0.0], top_k=k).core) == [0, 1, 2]


def test_min_p_keeps_half_of_the_maximum():
    assert ids(law_of_probs([0.4, 0.3, 0.3], min_p=0.5).core) == [0, 1, 2]
    assert ids(law_of_probs([0.5, 0.3, 0.2], min_p=0.5).core) == [0, 1]


def test_min_p_at_its_threshold_is_open():
    law = law_of_probs([0.4, 0.2, 0.4], min_p=0.5)
    assert (ids(law.core), ids(law.hull)) == ([0, 2], [0, 1, 2])


def test_min_p_of_one_keeps_every_maximum():
    law = law_of([3.0, 3.0, 2.0], min_p=1.0, temperature=0.7)
    assert (ids(law.core), ids(law.hull)) == ([0, 1], [0, 1])


def test_min_p_before_or_after_top_p():
    # min-p = .3 leaves .5/.3/.2, so p = .79 keeps two; after p = .79 of .45/.27/.18/.1 min-p
    # keeps the three that p kept
    probs = [0.45, 0.27, 0.18, 0.1]
    assert ids(law_of_probs(probs, min_p=0.3, top_p=0.79).core) == [0, 1]
    late = law_of_probs(probs, profile("transformers"), min_p=0.3, top_p=0.79)
    assert ids(late.core) == [0, 1, 2]


def test_a_tiny_min_p_may_vanish_in_probabilities_but_not_in_logits():
    values = [0.0, -100.0]
    flushed = law_of(values, min_p=1e-39, semantics=Semantics(order=(Step.MIN_P,)))
    exact = law_of(
        values, min_p=1e-39, semantics=Semantics(order=(Step.MIN_P,), min_p_space="logit")
    )
    assert (ids(flushed.hull), ids(exact.hull)) == ([0, 1], [0])


def test_temperature_that_rounds_makes_neighbours_tie():
    values = [8.0, 8.0 + ULP_8, 0.0]
    exact = law_of(values, top_k=1, temperature=0.5)
    assert (ids(exact.core), ids(exact.hull)) == ([1], [1])
    rounded = law_of(values, top_k=1, temperature=0.7)
    assert (ids(rounded.core), ids(rounded.hull)) == ([], [0, 1])
    # 2^-18 / .7 = 5.4e-6 is more than 2^-22 * 8 / .7 = 2.7e-6
    apart = law_of([8.0, 8.0 + 4 * ULP_8, 0.0], top_k=1, temperature=0.7)
    assert (ids(apart.core), ids(apart.hull)) == ([1], [1])


def test_a_representable_quotient_may_still_be_rounded():
    # 12 + 3 * 2^-20 over 1.5 is a float32 number, but not if 1/1.5 is rounded first
    law = law_of([12.0, 12.0 + 3 * ULP_8, 0.0], top_k=1, temperature=1.5)
    assert (ids(law.core), ids(law.hull)) == ([], [0, 1])


def test_temperature_leaves_equal_ids_equal():
    law = law_of([1.0, 1.0, 0.0], top_k=1, temperature=0.7)
    assert (ids(law.core), ids(law.hull)) == ([0, 1], [0, 1])


def test_a_penalised_maximum_is_certain():
    request = Request(SamplingParams(repetition_penalty=1.1, top_k=1), prompt=(0,))
    law = law_of([3.3, 1.0], request)
    assert (ids(law.core), ids(law.hull)) == ([0], [0])


@pytest.mark.parametrize("name", ["vllm", "onnxruntime-genai"])
def test_the_same_value_by_another_way_is_no_certain_tie(name):
    # 41/41 is 1, but 41 times the float32 nearest to 1/41 is not
    assert (torch.tensor(41.0) * (1 / torch.tensor(41.0))).item() != 1.0
    request = Request(SamplingParams(repetition_penalty=41.0, top_k=1), prompt=(1,))
    law = law_of([1.0, 41.0, 0.0], request, profile(name))
    assert (ids(law.core), ids(law.lumped), ids(law.hull)) == ([], [], [0, 1])


@pytest.mark.parametrize(
    ("params", "certain"),
    [
        ({"repetition_penalty": 2.0}, True),
        ({"repetition_penalty": 1.1}, False),
        ({"frequency_penalty": 0.25}, True),
        ({"frequency_penalty": 0.1}, False),
        ({"presence_penalty": -0.5}, True),
        ({"presence_penalty": 0.1}, False),
        ({"logit_bias": ((2, 0.5),)}, True),
        ({"logit_bias": ((2, 0.1),)}, False),
        ({"logit_bias": ((2, -INF),)}, True),
    ],
)
def test_greedy_is_exact_unless_arithmetic_rounds(params, certain):
    # id 2 alone is touched; 8 and its neighbour lie within 2^-22 * 8
    request = Request(SamplingParams(temperature=0.0, **params), output=(2,))
    law = law_of([8.0, 8.0 + ULP_8, 0.75], request)
    assert ids(law.admissible) == ([1] if certain else [0, 1])
    assert law.exact.item() is certain
    assert ids(law.core) == ([1] if certain else [])


def test_a_product_that_rounds_makes_the_difference_inexact():
    # 3 * .1 needs 26 bits; what is left of .3 would fit, but float32 never subtracts all of it
    request = Request(SamplingParams(temperature=0.0, frequency_penalty=0.1), output=(2, 2, 2))
    law = law_of([8.0, 8.0 + ULP_8, 0.3], request)
    assert ids(law.admissible) == [0, 1]


def test_exact_arithmetic_on_rounded_values_makes_no_certain_tie():
    # 12/1.5 and 6/1.5 + 4 are both 8, but the quotients may have been rounded
    semantics = Semantics(order=(Step.TEMPERATURE, Step.LOGIT_BIAS, Step.TOP_K))
    request = Request(SamplingParams(temperature=1.5, logit_bias=((1, 4.0),), top_k=1))
    law = law_of([12.0, 6.0, 0.0], request, semantics)
    assert (ids(law.core), ids(law.hull)) == ([], [0, 1])


def test_a_forced_id_is_certain_after_any_rounding():
    markers = ThinkingMarkers(start=(0,), end=(1,))
    for temperature in (0.0, 0.7):
        params = SamplingParams(
            temperature=temperature,
            thinking_token_budget=1,
            repetition_penalty=1.1,
            allowed_token_ids=(2, 3),
        )
        request = Request(params, (0, 2))
        law = target_law(torch.tensor([[9.0, 1.0, 1.0, 8.0]]), [request], thinking=markers)
        assert (ids(law.core), ids(law.hull), law.exact.item()) == ([1], [1], True)
        assert law.magnitude.item() == 0.0
        assert probs_of(law) == [0.0, 1.0, 0.0, 0.0]


def test_magnitude_is_that_of_ids_that_carry_mass():
    # -100 lies more than 40 nats down; 16/.5 = 32 is the largest of the others
    assert law_of([16.0, 10.0, -100.0], temperature=0.5).magnitude.item() == 32.0
    # a penalty's intermediate counts: 64 before it was divided by 2
    request = Request(SamplingParams(repetition_penalty=2.0), prompt=(0,))
    assert law_of([64.0, 30.0], request).magnitude.item() == 64.0


def test_greedy_ties():
    values = [1.0, 3.0, 3.0]
    lowest = law_of(values, temperature=0.0)
    assert (ids(lowest.admissible), probs_of(lowest)) == ([1], [0.0, 1.0, 0.0])
    either = law_of(values, temperature=0.0, semantics=Semantics(greedy_ties="any"))
    assert (ids(either.admissible), ids(either.core), either.exact.item()) == ([1, 2], [], False)


def test_greedy_threshold():
    params = {"temperature": 1e-5, "temperature_floor": 0.0}
    assert not law_of([1.0, 2.0], **params).greedy.item()
    params = {"temperature": 9.9e-6, "temperature_floor": 0.0}
    assert law_of([1.0, 2.0], **params).greedy.item()
    assert not law_of([1.0, 2.0], **params, semantics=profile("vllm-v2")).greedy.item()

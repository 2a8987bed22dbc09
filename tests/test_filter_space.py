"""Filters on log-probabilities or probabilities: what float32 then cannot tell apart, and no more."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from refsampler.conformance.checks.base import Arrangement, Kind, Trial
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.rows import judge_rows
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.faults.controls import CONTROLS
from refsampler.conformance.stateful.step_judge import CERTAIN
from refsampler.conformance.subject import OpenSubject
from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import PROFILES, Semantics, Step, profile

SPACES = ("logit", "logprob", "probability")
SMALL = 2.0**-24
"""6e-8, a quarter of a float32 step at log 8."""
SMALLEST = 2.0**-126
"""1.2e-38, the smallest normal float32."""


def law_of(values, space, *, semantics=None, **params):
    declared = semantics or Semantics(filter_space=space)
    return target_law(torch.tensor([values]), [Request(SamplingParams(**params))], declared)


def ids(mask):
    return mask[0].nonzero().flatten().tolist()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("gap", [SMALL, SMALLEST])
def test_a_gap_below_the_rounding_is_seen_among_logits_only(gap, space):
    # less log 8 = 2.08 all are equal
    assert np.float32(gap) - np.float32(math.log(8)) == -np.float32(math.log(8))
    law = law_of([0.0, gap, *[0.0] * 6], space, top_k=1)
    assert ids(law.core) == ([1] if space == "logit" else [])
    assert ids(law.hull) == ([1] if space == "logit" else list(range(8)))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_gap_far_above_the_rounding_is_seen_everywhere(space, temperature):
    law = law_of([0.0, 1e-3, -8.0], space, top_k=1, temperature=temperature)
    assert (ids(law.core), ids(law.hull), law.exact.item()) == ([1], [1], True)


@pytest.mark.parametrize("space", SPACES)
def test_equal_logits_stay_equal(space):
    law = law_of([1.0, 1.0, 0.0], space, top_k=1)
    assert (ids(law.core), ids(law.hull), law.exact.item()) == ([0, 1], [0, 1], True)
    exactly = Semantics(filter_space=space, top_k_ties="exactly_k")
    law = law_of([1.0, 1.0, 0.0], space, semantics=exactly, top_k=1)
    assert (ids(law.lumped), law.lump_count.item(), law.exact.item()) == ([0, 1], 1, True)


def test_probabilities_of_0_are_equal_where_top_k_needs_some_of_them():
    # e^-110 = 1.7e-48, and 1.4e-45 is the smallest float32
    values = [110.0, 0.0, -1.0, -2.0, -torch.inf]
    for space in ("logit", "logprob"):
        assert ids(law_of(values, space, top_k=2).hull) == [0, 1]
    equals = Semantics(filter_space="probability")
    for declared in (equals, replace(equals, top_k_ties="exactly_k")):
        law = law_of(values, "", semantics=declared, top_k=2)
        assert (ids(law.core), ids(law.hull), ids(law.lumped)) == ([0], [0, 1, 2, 3], [])
        assert ids(law_of(values, "", semantics=declared, top_k=1).hull) == [0]
    joint = Semantics(top_p_mass="joint")
    assert ids(law_of(values, "", semantics=joint, top_k=2).hull) == [0, 1, 2, 3]


def test_probabilities_that_float32_holds_are_not_equal():
    # e^-80 = 1.8e-35; all but one are needed, so that those of 0 are too
    values = [80.0, 0.0, -1.0, -30.0, -31.0]
    for k, hull, core in ((2, [0, 1], [0, 1]), (4, [0, 1, 2, 3, 4], [0, 1, 2])):
        law = law_of(values, "probability", top_k=k)
        assert (ids(law.hull), ids(law.core)) == (hull, core)


def test_top_k_that_is_off_keeps_what_a_neighbour_that_asks_for_it_may_not():
    declared = Semantics(filter_space="probability", order=(Step.TOP_K,))
    asked = [Request(SamplingParams(top_k=k)) for k in (0, 2)]
    law = target_law(torch.tensor([[110.0, 0.0, -1.0]] * 2), asked, declared)
    assert law.core.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize(
    ("gap", "allowed", "seen"),
    [
        # the largest intermediate is -8 - (8 + log 2) = -16.7, and 2^-22 of it 3.98e-6
        (3.8e-6, None, False),
        (4.8e-6, None, True),
        # without id 2 it is lse = 8.7, and 2^-22 of it 2.07e-6
        (1.0e-6, (0, 1), False),
        (2.9e-6, (0, 1), True),
    ],
)
def test_the_band_is_that_of_the_largest_log_probability_or_lse(gap, allowed, seen):
    values = torch.tensor([8.0, 8.0, -8.0]) + torch.tensor([0.0, gap, 0.0])
    law = law_of(values.tolist(), "logprob", top_k=1, allowed_token_ids=allowed)
    assert ids(law.hull) == ([1] if seen else [0, 1])
    assert ids(law_of(values.tolist(), "logit", top_k=1).hull) == [1]


def test_the_log_sum_exp_is_an_intermediate_too():
    # 2^-22 of 2 + log 8 is 9.7e-7, of -log 8 it is 5.0e-7
    law = law_of([2.0, 2.0 + 3 * 2.0**-22, *[2.0] * 6], "logprob", top_k=1)
    assert (ids(law.core), ids(law.hull)) == ([], list(range(8)))


def test_the_law_stays_and_its_magnitude_is_that_of_the_log_probabilities():
    # x - lse and lse are log 2, divided by .5 after it
    for space, magnitude in (("logit", 0.0), ("logprob", 2 * math.log(2)), ("probability", 0.0)):
        law = law_of([0.0, 0.0], space, temperature=0.5)
        assert law.magnitude.item() == pytest.approx(magnitude)
        assert law.logprobs.exp().tolist() == [[0.5, 0.5]]
    # where the temperature comes first, the log-sum-exp of its quotients is one too
    late = Semantics(filter_space="logprob", order=(Step.TEMPERATURE, Step.TOP_K))
    law = law_of([0.0, 0.0], "", semantics=late, temperature=2.0)
    assert law.magnitude.item() == pytest.approx(math.log(2))


def test_the_greedy_argmax_is_that_of_log_probabilities():
    values = [3.0, 3.0, 3.0 + 2.0**-22, 0.0]
    assert ids(law_of(values, "logit", temperature=0.0).admissible) == [2]
    assert ids(law_of(values, "probability", temperature=0.0).admissible) == [2]
    # the three may tie, and then the lowest comes; id 1 never does, as it is equal to id 0
    assert ids(law_of(values, "logprob", temperature=0.0).admissible) == [0, 2]
    anyone = Semantics(filter_space="logprob", greedy_ties="any")
    law = law_of(values, "", semantics=anyone, temperature=0.0)
    assert ids(law.admissible) == [0, 1, 2]


def test_equal_maxima_give_the_lowest_id_after_any_rounding_of_the_whole_row():
    law = law_of([1.0, 3.0, 3.0, 3.0], "logprob", temperature=0.0)
    assert (ids(law.admissible), law.exact.item()) == ([1], True)
    # 41/41 is 1, but 41 times the float32 nearest to 1/41 may be more
    asked = Request(SamplingParams(temperature=0.0, repetition_penalty=41.0), prompt=(1,))
    law = target_law(torch.tensor([[1.0, 41.0, 1.0, 0.0]]), [asked])
    assert ids(law.admissible) == [0, 1]


def test_shares_of_mass_are_not_exact_if_they_are_exponentials_of_log_probabilities():
    # p = .5 of two equals keeps one of them by exact shares; by these two, and one
    shares = []
    for value in (0.7, -9.3):
        x = np.full(2, value, np.float32)
        lse = x.max() + np.log(np.exp(x - x.max()).sum(dtype=np.float32))
        shares.append(float(np.exp(x - lse)[0]))
    assert shares[0] < 0.5 < shares[1]
    for space, count in (("logit", 1), ("logprob", 0), ("probability", 1)):
        law = law_of([0.7, 0.7], space, top_p=0.5)
        assert (ids(law.hull), law.lump_count.item()) == ([0, 1], count)


def test_rows_without_a_law_and_rows_of_one_id_stay_what_they_are():
    law = law_of([-math.inf, -math.inf], "logprob", top_k=1)
    assert (law.valid.item(), law.magnitude.item()) == (False, 0.0)
    law = law_of([-math.inf, 5.0], "logprob", top_k=1)
    assert (ids(law.core), law.exact.item(), law.magnitude.item()) == ([1], True, 5.0)


# --- float32 samplers by numpy, which know nothing of the law

ROWS, VOCAB = 400, 48


def near_ties(seed):
    """Rows of float32 in which some ids equal or neighbour one of the largest.

    Most rows have their largest near 0, where logits are finer than log-probabilities.
    """
    random = np.random.default_rng(seed)
    base = random.normal(size=(ROWS, VOCAB)) * random.uniform(0.2, 4, size=(ROWS, 1))
    base += random.choice([0.0, 0.0, 0.0, -30.0, 7.9], size=(ROWS, 1)) - base.max(-1, keepdims=True)
    share = random.choice([0.0, 0.02, 0.1, 0.5], size=(ROWS, 1))
    largest = np.take_along_axis((-base).argsort(-1), random.integers(8, size=(ROWS, VOCAB)), -1)
    partner = np.where(random.random((ROWS, VOCAB)) < share, largest, np.arange(VOCAB))
    near = np.take_along_axis(base, partner, -1).astype(np.float32)
    steps = random.choice([0.0, 0.0, 3e-8, 6e-8, 2.4e-7, 1e-6, 1.2e-38], size=(ROWS, VOCAB))
    return near + steps.astype(np.float32)


def log_softmax(x, way):
    top = x.max(-1, keepdims=True)
    total = np.log(np.exp(x - top).sum(-1, keepdims=True, dtype=np.float32))
    return (x - top) - total if way == "of the maximum" else x - (top + total)


def ranked(key, k, *, exactly):
    if exactly:
        return (-key).argsort(-1, kind="stable").argsort(-1, kind="stable") < k
    return key >= np.sort(key, -1)[:, [VOCAB - k]]


def strays(kept, law):
    """Rows in which a sampler kept an id outside the hull, or lost one of the core."""
    kept = torch.from_numpy(kept)
    wrong = ((kept & ~law.hull) | (law.core & ~kept)).any(-1)
    counted = law.lumped.any(-1)
    return wrong | (counted & ((kept & law.lumped).sum(-1) != law.lump_count))


@pytest.mark.parametrize("way", ["of the maximum", "of the log-sum-exp"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("exactly", [False, True])
def test_a_float32_sampler_of_log_probabilities_is_right_by_its_own_law_alone(
    way, temperature, exactly
):
    x = near_ties(1)
    t, unlike = np.float32(temperature), 0
    for order in (profile("mlx-lm").order, profile("vllm").order):
        first = order.index(Step.TEMPERATURE) < order.index(Step.TOP_K)
        for k in (1, 2, 7):
            asked = [Request(SamplingParams(temperature=temperature, top_k=k))] * ROWS
            laws = [
                target_law(
                    torch.from_numpy(x),
                    asked,
                    Semantics(
                        order=order,
                        filter_space=space,
                        top_k_ties="exactly_k" if exactly else "all",
                    ),
                )
                for space in ("logit", "logprob")
            ]
            # log-probabilities before the temperature, and after it
            keys = [log_softmax(x, way), log_softmax(x / t, way)]
            keys[0] = keys[0] / t if first else keys[0]
            for key in keys:
                kept = ranked(key, k, exactly=exactly)
                unlike += int(strays(kept, laws[0]).sum())
                assert not strays(kept, laws[1]).any()
            assert laws[1].exact.double().mean() > 0.3
    # what the declaration is for
    assert unlike > 50


def test_a_float32_argmax_of_log_probabilities_is_admissible():
    x = near_ties(2)
    asked = [Request(SamplingParams(temperature=0.0))] * ROWS
    logit, logprob = (
        target_law(torch.from_numpy(x), asked, Semantics(filter_space=space))
        for space in ("logit", "logprob")
    )
    unlike = 0
    for way in ("of the maximum", "of the log-sum-exp"):
        best = torch.from_numpy(log_softmax(x, way).argmax(-1))[:, None]
        assert logprob.admissible.gather(-1, best).all()
        unlike += int((~logit.admissible.gather(-1, best)).sum())
    assert unlike > 10
    assert logprob.exact.double().mean() > 0.3


def test_a_float32_sampler_of_probabilities_is_right_by_its_own_law_alone():
    x, unlike = near_ties(3), 0
    probs = np.exp(x - x.max(-1, keepdims=True))
    probs = probs / probs.sum(-1, keepdims=True, dtype=np.float32)
    for k in (1, 2, 7):
        asked = [Request(SamplingParams(top_k=k))] * ROWS
        logit, own = (
            target_law(torch.from_numpy(x), asked, Semantics(filter_space=space))
            for space in ("logit", "probability")
        )
        kept = ranked(probs, k, exactly=False)
        assert not strays(kept, own).any()
        assert own.exact.double().mean() > 0.3
        unlike += int(strays(kept, logit).sum())
    assert unlike > 20


@pytest.mark.parametrize("space", ["logprob", "probability"])
def test_the_declaration_only_ever_opens_what_logits_decide(space):
    x = torch.from_numpy(near_ties(4))
    for params in (
        {"top_k": 5},
        {"top_p": 0.5},
        {"min_p": 0.3, "temperature": 0.7},
        {"temperature": 0.0},
    ):
        asked = [Request(SamplingParams(**params))] * ROWS
        logit, own = (target_law(x, asked, Semantics(filter_space=one)) for one in ("logit", space))
        assert not (own.core & ~(logit.core | logit.lumped)).any()
        assert not (logit.hull & ~own.hull).any()


# --- who declares it, and how it travels


def test_what_the_engines_declare():
    declared = {one.profile: one.filter_space for one in PROFILES if one.filter_space != "logit"}
    assert declared == {"mlx-lm": "logprob", "flashinfer": "probability"}


def test_a_declaration_without_the_field_is_about_logits():
    assert msgspec.json.decode(b"{}", type=Semantics) == Semantics()
    declared = profile("mlx-lm")
    assert msgspec.json.decode(msgspec.json.encode(declared), type=Semantics) == declared
    with pytest.raises(msgspec.ValidationError, match="filter_space"):
        msgspec.json.decode(b'{"filter_space": "odds"}', type=Semantics)


@pytest.mark.parametrize("gap", [SMALL, SMALLEST])
def test_the_control_is_right_as_declared_and_not_among_logits(gap):
    """The shape of the generated batches that reported it: one id a little above many zeros."""
    control = CONTROLS["temperature on log probabilities"]()
    case = batch(256, [(row({200: gap}, base=0.0), request(top_k=1))] * 8, "top-k.keep")
    draw = OpenSubject(control, 5).sample(case, 0, case.id)

    def found(semantics):
        expected = Expected.of(case, semantics)
        arrangement = Arrangement(case, expected, (draw,))
        trial = Trial(control.capabilities, (arrangement,), Kind.NEAR_CERTAIN, CERTAIN)
        return [one.clause for one in judge_rows(trial)]

    assert found(control.capabilities.semantics) == []
    assert found(Semantics()) == ["top-k.keep"]

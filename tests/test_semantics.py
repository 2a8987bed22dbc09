"""Profiles are what the engines' notes say, and orders are checked."""

import pytest
import torch

from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import PROFILES, VLLM_ORDER, Semantics, Step, profile


def test_vllm_order_is_the_nine_steps():
    assert [step.value for step in VLLM_ORDER] == [
        "allowed",
        "bad_words",
        "min_tokens",
        "logit_bias",
        "repetition",
        "frequency",
        "presence",
        "thinking",
        "temperature",
        "min_p",
        "top_k",
        "top_p",
    ]


def test_names_are_unique_and_found():
    names = [semantics.profile for semantics in PROFILES]
    assert len(set(names)) == len(names)
    assert all(profile(name).profile == name for name in names)


def test_an_unknown_profile_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"'vlm' is not known: allowed are vllm, vllm-v2"):
        profile("vlm")


def test_a_step_named_twice_is_refused():
    with pytest.raises(ValueError, match="each step acts once"):
        Semantics(order=(Step.TOP_K, Step.TOP_P, Step.TOP_K))


@pytest.mark.parametrize("name", ["llama.cpp", "mlx-lm"])
def test_engines_that_divide_by_the_temperature_last(name):
    assert profile(name).order[-1] is Step.TEMPERATURE


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("vllm", {0}),
        ("flashinfer", {0}),
        ("aiter", {0, 1}),
        ("sglang", {0, 1}),
        ("lmdeploy", {0}),
        ("llama.cpp", {0}),
    ],
)
def test_top_p_is_measured_before_or_after_top_k(name, kept):
    # .3 .2 and 50 x .01: of the two that k leaves the first has 3/5, of all it has 3/10 < 1/2
    logits = torch.tensor([[0.3, 0.2] + [0.01] * 50]).log()
    law = target_law(logits, [Request(SamplingParams(top_k=2, top_p=0.5))], profile(name))
    assert set(law.hull[0].nonzero().flatten().tolist()) == kept
    assert law.exact.item()

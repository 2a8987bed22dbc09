"""Declared semantics: which steps act, in which order, and how ties and boundaries fall.

`refsampler.law` walks `Semantics.order`; nothing else decides order.  The default is vLLM 0.25.1's
v1 Sampler (clause `order.pipeline`); the other profiles state what other engines do on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = ["PROFILES", "VLLM_ORDER", "Scope", "Semantics", "Step", "profile"]


class Step(StrEnum):
    """One transformation of a row's logits, named as the law walks it."""

    ALLOWED = "allowed"
    BAD_WORDS = "bad_words"
    MIN_TOKENS = "min_tokens"
    LOGIT_BIAS = "logit_bias"
    REPETITION = "repetition"
    FREQUENCY = "frequency"
    PRESENCE = "presence"
    THINKING = "thinking"
    TEMPERATURE = "temperature"
    MIN_P = "min_p"
    TOP_K = "top_k"
    TOP_P = "top_p"


class Scope(StrEnum):
    """Which tokens of a request count as its history."""

    PROMPT_OUTPUT = "prompt_output"
    OUTPUT = "output"


_MASKS = (Step.ALLOWED, Step.BAD_WORDS, Step.MIN_TOKENS, Step.LOGIT_BIAS)
_PENALTIES = (Step.REPETITION, Step.FREQUENCY, Step.PRESENCE)
_BEFORE = (*_MASKS, *_PENALTIES, Step.THINKING)

VLLM_ORDER: tuple[Step, ...] = (*_BEFORE, Step.TEMPERATURE, Step.MIN_P, Step.TOP_K, Step.TOP_P)


@dataclass(frozen=True, slots=True)
class Semantics:
    """What a backend declares that its results mean.

    Attributes:
        profile: name of the profile, for reports.
        order: the steps in the order in which they act, each at most once.
        top_k_ties: ids equal to the k-th value are `all` kept, or cut to `exactly_k`.
        top_p_ties: of equal logits at the boundary `all` are kept, or the right `count` of them.
        top_p_cut: an id is kept iff the mass above it is < p (`strict`) or <= p (`inclusive`).
        top_p_mass: measured on what the filters before it left (`after_top_k`), or on the softmax
            before top-k (`joint`).
        min_p_space: q >= min_p * max q, or x >= max x + log(min_p).
        greedy_below: a temperature below this is greedy, in temperature units.
        greedy_ties: among equal maxima the `lowest` id, or `any`.
        repetition_scope: tokens that the repetition penalty sees.
        count_scope: tokens that the frequency and presence penalties see.
        window: only the last `window` tokens of the scope count; None is all of them.

    """

    profile: str = "vllm"
    order: tuple[Step, ...] = VLLM_ORDER
    top_k_ties: Literal["all", "exactly_k"] = "all"
    top_p_ties: Literal["all", "count"] = "count"
    top_p_cut: Literal["strict", "inclusive"] = "strict"
    top_p_mass: Literal["after_top_k", "joint"] = "after_top_k"
    min_p_space: Literal["probability", "logit"] = "probability"
    greedy_below: float = 1e-5
    greedy_ties: Literal["lowest", "any"] = "lowest"
    repetition_scope: Scope = Scope.PROMPT_OUTPUT
    count_scope: Scope = Scope.OUTPUT
    window: int | None = None

    def __post_init__(self) -> None:
        """Refuse an order that names a step twice."""
        repeated = {step for step in self.order if self.order.count(step) > 1}
        if repeated:
            msg = f"order = {self.order!r} names {sorted(repeated)} twice: each step acts once"
            raise ValueError(msg)


def _filters(*steps: Step) -> tuple[Step, ...]:
    """Return vLLM's steps before temperature, followed by `steps`."""
    return (*_BEFORE, *steps)


PROFILES: tuple[Semantics, ...] = (
    Semantics(),
    Semantics(
        profile="vllm-v2",
        order=(
            Step.ALLOWED,
            Step.LOGIT_BIAS,
            Step.MIN_TOKENS,
            *_PENALTIES,
            Step.BAD_WORDS,
            Step.TEMPERATURE,
            Step.MIN_P,
            Step.TOP_K,
            Step.TOP_P,
        ),
        min_p_space="logit",
        greedy_below=5e-324,
    ),
    Semantics(profile="flashinfer", top_p_ties="all"),
    Semantics(profile="aiter", top_p_ties="all", top_p_mass="joint"),
    Semantics(
        profile="transformers",
        order=_filters(Step.TEMPERATURE, Step.TOP_K, Step.TOP_P, Step.MIN_P),
    ),
    Semantics(
        profile="llama.cpp",
        order=_filters(Step.TOP_K, Step.TOP_P, Step.MIN_P, Step.TEMPERATURE),
        top_k_ties="exactly_k",
        greedy_below=5e-324,
        count_scope=Scope.PROMPT_OUTPUT,
        window=64,
    ),
    Semantics(
        profile="sglang",
        top_k_ties="exactly_k",
        top_p_cut="inclusive",
        top_p_mass="joint",
        order=(
            Step.ALLOWED,
            Step.BAD_WORDS,
            Step.FREQUENCY,
            Step.PRESENCE,
            Step.MIN_TOKENS,
            Step.REPETITION,
            Step.LOGIT_BIAS,
            Step.TEMPERATURE,
            Step.TOP_K,
            Step.TOP_P,
            Step.MIN_P,
        ),
        greedy_below=1e-6,
        greedy_ties="any",
        repetition_scope=Scope.OUTPUT,
    ),
    Semantics(
        profile="mlx-lm",
        order=_filters(Step.TOP_P, Step.MIN_P, Step.TOP_K, Step.TEMPERATURE),
        top_k_ties="exactly_k",
        top_p_ties="all",
        greedy_below=5e-324,
        count_scope=Scope.PROMPT_OUTPUT,
        window=20,
    ),
    Semantics(
        profile="lmdeploy",
        order=(
            *_PENALTIES,
            Step.TEMPERATURE,
            Step.BAD_WORDS,
            Step.TOP_K,
            Step.TOP_P,
            Step.MIN_P,
        ),
        top_k_ties="exactly_k",
        top_p_cut="inclusive",
        greedy_ties="any",
        repetition_scope=Scope.OUTPUT,
    ),
    Semantics(
        profile="onnxruntime-genai",
        order=_filters(Step.TOP_K, Step.TEMPERATURE, Step.TOP_P),
        top_k_ties="exactly_k",
    ),
)


def profile(name: str) -> Semantics:
    """Return the named profile.

    Raises:
        ValueError: if no profile has that name; the message lists the names.

    """
    for semantics in PROFILES:
        if semantics.profile == name:
            return semantics
    names = ", ".join(semantics.profile for semantics in PROFILES)
    msg = f"profile = {name!r} is not known: allowed are {names}"
    raise ValueError(msg)

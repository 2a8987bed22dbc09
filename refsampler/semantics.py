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
        filter_space: temperature and filters act on the `logit`s, on `logprob`s (x less its
            log-sum-exp; the greedy argmax then is theirs too), or top-k ranks float32
            `probability`s, as with `joint` masses anyway.
        greedy_below: a temperature below this is greedy, in temperature units.
        greedy_ties: among equal maxima the `lowest` id, or `any`.
        repetition_scope: tokens that the repetition penalty sees.
        count_scope: tokens that the frequency and presence penalties see.
        window: only the last `window` tokens of the scope count; None is all of them.

    Logits that differ may be equal as float32 log-probabilities or probabilities, so that a right
    backend of another `filter_space` cannot tell them apart: 6e-8 and 0 less a log-sum-exp of 5 are
    both -5.0.  Equal logits stay equal.  Sources: mlx-lm 0.32.2, whose `generate_step` hands
    `logits - logsumexp(logits)` to every sampler, the greedy one too; vLLM 0.25.1, which gives
    FlashInfer the softmax wherever a batch asks for top-k alone.

    The declaration costs sight.  With `logprob` values within 2^-22 of the row's largest |x - lse|
    or |lse| compare either way (2e-6 nats where those are 8), and shares of mass are never exact:
    a backend that takes the wrong one of two such logits, greedily or at the k-th place, or errs at
    a power of two in top-p, is not seen.  With `probability` top-k alone is blind, to 1e-6 (1 + M/4)
    nats, M as in `TargetLaw`, and among ids whose probability is below 2^-125.  False alarms become
    fewer, never more: core and hull only move apart, and nothing is charged to the bound of a run.

    """

    profile: str = "vllm"
    order: tuple[Step, ...] = VLLM_ORDER
    top_k_ties: Literal["all", "exactly_k"] = "all"
    top_p_ties: Literal["all", "count"] = "count"
    top_p_cut: Literal["strict", "inclusive"] = "strict"
    top_p_mass: Literal["after_top_k", "joint"] = "after_top_k"
    min_p_space: Literal["probability", "logit"] = "probability"
    filter_space: Literal["logit", "logprob", "probability"] = "logit"
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
    Semantics(profile="flashinfer", top_p_ties="all", filter_space="probability"),
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
        filter_space="logprob",
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

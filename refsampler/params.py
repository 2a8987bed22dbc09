"""SamplingParams: one request's knobs, validated when they are made.

Fields, defaults and effective values are vLLM 0.25.1's; `refsampler.validation` has the ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from refsampler.validation import ParameterError, check_asked, check_effective, check_ids

__all__ = [
    "GREEDY_EPSILON",
    "LOWEST_TEMPERATURE",
    "SamplingParams",
]

GREEDY_EPSILON = 1e-5
LOWEST_TEMPERATURE = 1e-2
_BIAS_LIMIT = 100.0
_REAL_FIELDS = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "temperature_floor",
    "top_p",
    "min_p",
)
_FLOAT32_NORMAL = 2.0**-126


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of the sampler; every field has vLLM's name, default and range.

    Construction validates, then shows the *effective* values: a temperature in (0, 0.01) is raised
    to `temperature_floor`, a greedy request has its filters reset, seed -1 is no seed
    (clauses `input.validated`, `greedy.threshold`).

    Attributes:
        temperature: divides the logits; 0 is greedy.
        temperature_floor: nonzero temperatures below it are raised to it; 0 keeps what was asked,
            so that a case can reach the sampler with T = 1e-5.
        top_p: nucleus mass in (0, 1]; 1 is off.
        top_k: how many ids are kept; 0 and -1 are off.
        min_p: least probability relative to the most likely id, in [0, 1]; 0 is off.
        stop_token_ids: ids that `min_tokens` bans, beside `eos_token_id`.
        bad_words: banned strings; a tokenizer turns them into `bad_words_token_ids`.
        bad_words_token_ids: banned id sequences, each of at least one id.
        logit_bias: pairs (id, bias in nats), each id once.
        logprobs: None is none, 0 the sampled id, N also the top N, -1 the whole vocabulary.
        logprob_token_ids: ids whose logprobs are wanted instead of the top N.
        thinking_token_budget: most thinking tokens; None and -1 are unlimited.

    Raises:
        ParameterError: a value is out of range.
        ParameterTypeError: a value has the wrong type.

    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    temperature_floor: float = LOWEST_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    detokenize: bool = True
    stop_token_ids: tuple[int, ...] = ()
    eos_token_id: int | None = None
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        """Validate every field, then replace what was asked by what takes effect."""
        check_asked(self)
        self._become_effective()
        check_effective(self)

    def _become_effective(self) -> None:
        effective: dict[str, Any] = {field: float(getattr(self, field)) for field in _REAL_FIELDS}
        if 0 < self.temperature < self.temperature_floor:
            effective["temperature"] = self.temperature_floor
        # float32 must not make 0 of it, which would keep no id at all; the law is the same
        effective["top_p"] = max(effective["top_p"], _FLOAT32_NORMAL)
        if self.seed == -1:
            effective["seed"] = None
        if self.thinking_token_budget == -1:
            effective["thinking_token_budget"] = None
        for field in ("logprobs", "prompt_logprobs"):
            if getattr(self, field) is True:
                effective[field] = 1
        if effective["temperature"] < GREEDY_EPSILON:
            effective |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        for field, value in effective.items():
            object.__setattr__(self, field, value)

    @property
    def greedy(self) -> bool:
        """Whether the request takes the argmax (clause `greedy.argmax`)."""
        return self.temperature < GREEDY_EPSILON

    @property
    def penalised(self) -> bool:
        """Whether any of the three penalties is not neutral."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Ids that `mask.min-tokens` bans; eos is among them also under `ignore_eos`."""
        eos = () if self.eos_token_id is None else (self.eos_token_id,)
        return frozenset((*self.stop_token_ids, *eos))

    @classmethod
    def from_optional(cls, *, logit_bias: Mapping[int, float] | None = None, **fields: Any) -> Self:
        """Build from an API request: None is the default, biases are clamped to [-100, 100].

        Source: vLLM's `SamplingParams.from_optional`, the only place where it clamps.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        if logit_bias is not None:
            given["logit_bias"] = tuple(
                # in this order NaN survives, to be refused
                (token, min(max(bias, -_BIAS_LIMIT), _BIAS_LIMIT))
                for token, bias in logit_bias.items()
            )
        return cls(**given)

    def verify(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Check what depends on the model (clauses `input.validated`, `logprobs.gather`).

        Args:
            vocab_size: V; ids must lie in [0, V).
            max_logprobs: the model's cap on N; -1 is no cap beyond V.

        Raises:
            ParameterError: an id or a number of logprobs is out of range.
            ParameterTypeError: an id is no integer.

        """
        listed: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("logit_bias", tuple(token for token, _ in self.logit_bias)),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
            ("eos_token_id", () if self.eos_token_id is None else (self.eos_token_id,)),
            ("bad_words_token_ids", tuple(i for word in self.bad_words_token_ids for i in word)),
            ("logprob_token_ids", self.logprob_token_ids or ()),
        )
        for field, ids in listed:
            check_ids(field, ids, 0, vocab_size)
        if self.bad_words and not self.bad_words_token_ids:
            allowed = "words whose ids are in bad_words_token_ids (`encode_bad_words`)"
            raise ParameterError("bad_words", self.bad_words, allowed)
        most = vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size)
        for field in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, field)
            if wanted is None:
                continue
            count = vocab_size if wanted == -1 else wanted
            if count > most:
                raise ParameterError(field, wanted, f"at most {most} logprobs a token")

"""SamplingParams: one request's knobs, validated when they are made.

The table of ranges is vLLM 0.25.1's `SamplingParams` (clause `input.validated`), with what the
contract decides on top: infinite and NaN biases (`bias.additive`) and the effective temperature
(`greedy.threshold`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

__all__ = [
    "GREEDY_EPSILON",
    "LOWEST_TEMPERATURE",
    "MAX_LISTED_LOGPROBS",
    "MAX_SEQUENCES",
    "ParameterError",
    "ParameterTypeError",
    "SamplingParams",
    "check_ids",
]

GREEDY_EPSILON = 1e-5
LOWEST_TEMPERATURE = 1e-2
MAX_SEQUENCES = 16384
MAX_LISTED_LOGPROBS = 128
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
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_FLOAT32_NORMAL = 2.0**-126


class ParameterError(ValueError):
    """A parameter is out of range; names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Build the message from its three parts."""
        super().__init__(f"{field} = {value!r} is refused: allowed is {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


class ParameterTypeError(TypeError):
    """A parameter has the wrong type; names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        """Build the message from its three parts."""
        super().__init__(f"{field} = {value!r} is refused: allowed is {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


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
        _check_penalties(self)
        _check_filters(self)
        _check_lengths(self)
        _check_words(self)
        _check_ids(self)
        _check_logprobs(self)
        _check_bias(self)
        self._become_effective()
        _check_sequences(self)

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
        most = vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size)
        for field in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, field)
            if wanted is None:
                continue
            count = vocab_size if wanted == -1 else wanted
            if count > most:
                raise ParameterError(field, wanted, f"at most {most} logprobs a token")


def check_ids(field: str, ids: Sequence[int], lowest: int, vocab_size: int) -> None:
    """Refuse ids that are no integers from `lowest` to V - 1 (clause `input.validated`).

    Raises:
        ParameterError: names the field and the first id out of range.
        ParameterTypeError: names the field and the first id that is no integer.

    """
    allowed = f"ids from {lowest} to {vocab_size - 1}"
    for token in ids:
        if not lowest <= _integer(field, token, allowed) < vocab_size:
            raise ParameterError(field, token, allowed)


def _number(field: str, value: object, allowed: str) -> float:
    """Return `value` as a float, or refuse it by type."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParameterTypeError(field, value, allowed)
    try:
        return float(value)
    except OverflowError:
        raise ParameterError(field, value, allowed) from None


def _integer(field: str, value: object, allowed: str) -> int:
    """Return `value` as an int, or refuse it by type; a bool passes, as in vLLM."""
    if not isinstance(value, int):
        raise ParameterTypeError(field, value, allowed)
    return int(value)


def _within(field: str, value: object, low: float, high: float, allowed: str) -> None:
    # NaN fails both comparisons, hence the range test
    if not low <= _number(field, value, allowed) <= high:
        raise ParameterError(field, value, allowed)


def _check_penalties(params: SamplingParams) -> None:
    for field in ("presence_penalty", "frequency_penalty"):
        _within(field, getattr(params, field), -2.0, 2.0, "a number from -2 to 2")
    # what float32 holds as 0 or inf would leave the row without a law
    allowed = "a number from 2**-126 to the largest float32"
    repetition = _number("repetition_penalty", params.repetition_penalty, allowed)
    if not _FLOAT32_NORMAL <= repetition <= _FLOAT32_MAX:
        raise ParameterError("repetition_penalty", params.repetition_penalty, allowed)


def _check_filters(params: SamplingParams) -> None:
    _within("temperature", params.temperature, 0.0, 2.0, "a number from 0 (greedy) to 2")
    _within("temperature_floor", params.temperature_floor, 0.0, 2.0, "a number from 0 (off) to 2")
    allowed = "a number above 0, at most 1 (off)"
    if not 0.0 < _number("top_p", params.top_p, allowed) <= 1.0:
        raise ParameterError("top_p", params.top_p, allowed)
    allowed = "an integer: 0 or -1 (off), or at least 1"
    if _integer("top_k", params.top_k, allowed) < -1:
        raise ParameterError("top_k", params.top_k, allowed)
    _within("min_p", params.min_p, 0.0, 1.0, "a number from 0 (off) to 1")


def _check_lengths(params: SamplingParams) -> None:
    allowed = "None or an integer of at least 1"
    if params.max_tokens is not None and _integer("max_tokens", params.max_tokens, allowed) < 1:
        raise ParameterError("max_tokens", params.max_tokens, allowed)
    most = math.inf if params.max_tokens is None else params.max_tokens
    allowed = "an integer from 0 to max_tokens"
    if not 0 <= _integer("min_tokens", params.min_tokens, allowed) <= most:
        raise ParameterError("min_tokens", params.min_tokens, f"{allowed} ({most})")
    if params.seed is not None:
        allowed = "None, -1 (none), or an integer from -2**63 to 2**64 - 1"
        if not -(2**63) <= _integer("seed", params.seed, allowed) < 2**64:
            raise ParameterError("seed", params.seed, allowed)
    if params.thinking_token_budget is not None:
        allowed = "None, -1 (unlimited), or an integer of at least 0"
        budget = params.thinking_token_budget
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < -1:
            raise ParameterError("thinking_token_budget", budget, allowed)


def _check_words(params: SamplingParams) -> None:
    for field in ("bad_words", "stop"):
        if any(not word for word in getattr(params, field)):
            raise ParameterError(field, getattr(params, field), "strings that are not empty")
    if params.stop and not params.detokenize:
        raise ParameterError("stop", params.stop, "stop strings only with detokenize=True")
    if any(not word for word in params.bad_words_token_ids):
        allowed = "sequences of at least one id"
        raise ParameterError("bad_words_token_ids", params.bad_words_token_ids, allowed)


def _check_ids(params: SamplingParams) -> None:
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise ParameterError("allowed_token_ids", (), "None or at least one id")


def _check_logprobs(params: SamplingParams) -> None:
    for field in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, field)
        allowed = "None, -1 (all), or an integer of at least 0"
        if wanted is not None and _integer(field, wanted, allowed) < -1:
            raise ParameterError(field, wanted, allowed)
    listed = params.logprob_token_ids
    if listed is None:
        return
    if len(listed) > MAX_LISTED_LOGPROBS:
        allowed = f"at most {MAX_LISTED_LOGPROBS} ids"
        raise ParameterError("logprob_token_ids", f"{len(listed)} ids", allowed)
    if params.logprobs is not None and params.logprobs != len(listed):
        allowed = f"None or {len(listed)}, the number of logprob_token_ids"
        raise ParameterError("logprobs", params.logprobs, allowed)


def _check_bias(params: SamplingParams) -> None:
    for token, bias in params.logit_bias:
        allowed = "a number that is finite in float32, or -inf as a ban"
        _number(f"logit_bias[{token}]", bias, allowed)
        # beyond float32 a bias becomes +-inf: it would lift a ban, or be one
        if not (abs(bias) <= _FLOAT32_MAX or bias == -math.inf):
            raise ParameterError(f"logit_bias[{token}]", bias, allowed)
    biased = [token for token, _ in params.logit_bias]
    if len(set(biased)) < len(biased):
        raise ParameterError("logit_bias", params.logit_bias, "each id once")


def _check_sequences(params: SamplingParams) -> None:
    allowed = f"an integer from 1 to {MAX_SEQUENCES}"
    if not 1 <= _integer("n", params.n, allowed) <= MAX_SEQUENCES:
        raise ParameterError("n", params.n, allowed)
    if params.greedy and params.n > 1:
        raise ParameterError("n", params.n, "1 for a greedy request")

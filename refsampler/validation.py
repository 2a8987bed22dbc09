"""The table of ranges: what a request may ask, and the errors that say what it may not.

Source: vLLM 0.25.1's `SamplingParams` (clause `input.validated`), with what the contract decides on
top: infinite and NaN biases (`bias.additive`), and bounds that keep every legal row finite in
float32 (`input.extreme`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refsampler.params import SamplingParams

__all__ = [
    "MAX_LISTED_LOGPROBS",
    "MAX_SEQUENCES",
    "ParameterError",
    "ParameterTypeError",
    "check_asked",
    "check_effective",
    "check_ids",
]

MAX_SEQUENCES = 16384
MAX_LISTED_LOGPROBS = 128
_LARGEST = 2.0**64


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


def check_asked(params: SamplingParams) -> None:
    """Check every field as it was asked for.

    Raises:
        ParameterError: a value is out of range.
        ParameterTypeError: a value has the wrong type.

    """
    _check_penalties(params)
    _check_filters(params)
    _check_lengths(params)
    _check_words(params)
    _check_ids(params)
    _check_logprobs(params)
    _check_bias(params)


def check_effective(params: SamplingParams) -> None:
    """Check what depends on the temperature that takes effect.

    Raises:
        ParameterError: n is out of range, or a greedy request wants more than one sequence.
        ParameterTypeError: n is no integer.

    """
    allowed = f"an integer from 1 to {MAX_SEQUENCES}"
    if not 1 <= _integer("n", params.n, allowed) <= MAX_SEQUENCES:
        raise ParameterError("n", params.n, allowed)
    if params.greedy and params.n > 1:
        raise ParameterError("n", params.n, "1 for a greedy request")


def check_ids(field: str, ids: Sequence[int], lowest: int, vocab_size: int) -> None:
    """Refuse ids that are no integers from `lowest` to V - 1 (clause `input.validated`).

    Raises:
        ParameterError: names the field and the first id out of range.
        ParameterTypeError: names the field and the first id that is no integer.

    """
    if not ids:
        return
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
    # a legal logit times the bound, over the lowest temperature, is finite in float32
    allowed = "a number from 2**-64 to 2**64"
    _within("repetition_penalty", params.repetition_penalty, 1 / _LARGEST, _LARGEST, allowed)


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
        _tuple(field, getattr(params, field), "a tuple of strings")
        if any(not word for word in getattr(params, field)):
            raise ParameterError(field, getattr(params, field), "strings that are not empty")
    if params.stop and not params.detokenize:
        raise ParameterError("stop", params.stop, "stop strings only with detokenize=True")
    allowed = "a tuple of tuples of at least one id"
    _tuple("bad_words_token_ids", params.bad_words_token_ids, allowed)
    for word in params.bad_words_token_ids:
        _tuple("bad_words_token_ids", word, allowed)
    if any(not word for word in params.bad_words_token_ids):
        raise ParameterError("bad_words_token_ids", params.bad_words_token_ids, allowed)


def _tuple(field: str, value: object, allowed: str) -> None:
    if not isinstance(value, tuple):
        raise ParameterTypeError(field, value, allowed)


def _check_ids(params: SamplingParams) -> None:
    _tuple("stop_token_ids", params.stop_token_ids, "a tuple of ids")
    for field in ("allowed_token_ids", "logprob_token_ids"):
        if getattr(params, field) is not None:
            _tuple(field, getattr(params, field), "None or a tuple of ids")
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
    allowed = "a tuple of pairs (id, bias)"
    if not isinstance(params.logit_bias, tuple):
        raise ParameterTypeError("logit_bias", params.logit_bias, allowed)
    for pair in params.logit_bias:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ParameterTypeError("logit_bias", pair, allowed)
    for token, bias in params.logit_bias:
        allowed = "a number from -2**64 to 2**64, or -inf as a ban"
        _number(f"logit_bias[{token}]", bias, allowed)
        if bias != -math.inf:
            _within(f"logit_bias[{token}]", bias, -_LARGEST, _LARGEST, allowed)
    biased = [token for token, _ in params.logit_bias]
    if len(set(biased)) < len(biased):
        raise ParameterError("logit_bias", params.logit_bias, "each id once")

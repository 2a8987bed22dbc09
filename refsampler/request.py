"""Request: one row of a batch, as the engine knows it before tensors exist."""

from __future__ import annotations

from dataclasses import dataclass

from refsampler.params import SamplingParams
from refsampler.validation import ParameterError, check_ids

__all__ = ["PLACEHOLDER", "Request", "ThinkingMarkers"]

PLACEHOLDER = -1
"""An output position whose id is not known yet; not history (clause `penalty.history`)."""


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """Id sequences that open and close a thinking section (clause `thinking.force`)."""

    start: tuple[int, ...]
    end: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a marker without ids."""
        for field in ("start", "end"):
            if not getattr(self, field):
                raise ParameterError(field, getattr(self, field), "at least one id")

    def verify(self, vocab_size: int) -> None:
        """Check the ids against the vocabulary: an end that no id can be would force nothing.

        Raises:
            ParameterError: names the field, the value and the allowed range.

        """
        for field in ("start", "end"):
            check_ids(f"thinking.{field}", getattr(self, field), 0, vocab_size)


@dataclass(frozen=True, slots=True)
class Request:
    """Parameters and history of one request.

    Attributes:
        params: what the request asks; its seed lives there.
        prompt: prompt ids.
        output: ids generated so far; `PLACEHOLDER` where an id is not known yet.
        drafts: speculated ids scheduled behind the output, not accepted yet.

    """

    params: SamplingParams = SamplingParams()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()

    def verify(self, vocab_size: int, max_logprobs: int = -1) -> None:
        """Check parameters and ids against the vocabulary (clause `input.validated`).

        Raises:
            ParameterError: names the field, the value and the allowed range.

        """
        self.params.verify(vocab_size, max_logprobs)
        for field, lowest in (("prompt", 0), ("output", PLACEHOLDER), ("drafts", PLACEHOLDER)):
            check_ids(field, getattr(self, field), lowest, vocab_size)

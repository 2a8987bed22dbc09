"""Logits processors: min tokens, logit bias, min-p, and the interface for custom ones.

A processor keeps state per row of a persistent batch.  Every processor here follows the batch with
the same helper, `follow_rows`, in the documented order removed, added, moved (clause `batch.state`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.batch_update import AddedRequest, BatchUpdate, Direction
from refsampler.params import GREEDY_EPSILON, SamplingParams
from refsampler.truncation import keep, keep_min_p
from refsampler.validation import ParameterError

__all__ = [
    "EngineConfig",
    "LogitBias",
    "LogitsProcessor",
    "LogitsProcessors",
    "MinP",
    "MinTokens",
    "build_logitsprocs",
    "follow_rows",
]

_State = TypeVar("_State")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a processor may know of the engine when it is made.

    Attributes:
        vocab_size: V, the width of the logits.
        max_num_reqs: most rows of a batch.
        speculative: whether drafts are verified (clause `spec.processors`).

    """

    vocab_size: int
    max_num_reqs: int
    speculative: bool = False


class LogitsProcessor(ABC):
    """vLLM's interface of a processor: one object serves every row of the batch."""

    def __init__(self, config: EngineConfig, device: torch.device, pin_memory: bool) -> None:
        """Keep what most processors need; a subclass adds its state."""
        self.config, self.device, self.pin_memory = config, device, pin_memory

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise ValueError if a request asks what this processor cannot do; accept by default."""
        _ = params

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Say whether the argmax of a row never changes; asked once, when the batch is built."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch; called every step, with None if its rows did not change."""

    @abstractmethod
    def apply(
        self, logits: Float32[Tensor, "num_tokens vocab"]
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Return the processed logits; the given ones stay as they are."""


def follow_rows(
    state: Mapping[int, _State],
    update: BatchUpdate | None,
    admit: Callable[[AddedRequest], _State | None],
) -> Mapping[int, _State]:
    """Return the state of each row after the update: removed, added, then moved.

    Args:
        state: row -> state; rows without state are absent.
        update: None if the rows did not change.
        admit: the state of a new request, None if it needs none.

    """
    if update is None:
        return state
    rows = {row: kept for row, kept in state.items() if row not in update.removed}
    for request in update.added:
        admitted = admit(request)
        if admitted is not None:
            rows[request.row] = admitted
        elif rows:
            # the row may still hold a request that was replaced without being removed
            rows.pop(request.row, None)
    for source, target, direction in update.moved:
        going, coming = rows.pop(source, None), rows.pop(target, None)
        if going is not None:
            rows[target] = going
        if coming is not None and direction is Direction.SWAP:
            rows[source] = coming
    return rows


@dataclass(frozen=True, slots=True)
class _Minimum:
    """The least length of one request's output, and the ids that would end it."""

    min_tokens: int
    stop_ids: frozenset[int]
    output: Sequence[int]


def _minimum_of(request: AddedRequest) -> _Minimum | None:
    least, stop_ids = request.params.min_tokens, request.params.all_stop_token_ids
    return _Minimum(least, stop_ids, request.output) if least else None


class MinTokens(LogitsProcessor):
    """Ban stop and eos ids while fewer than min_tokens ids exist (clause `mask.min-tokens`).

    A placeholder in the output counts: it is an id that was generated and is only not known here
    yet, and the caller asked for a length, not for known ids.
    """

    def __init__(self, config: EngineConfig, device: torch.device, pin_memory: bool) -> None:
        """Start with an empty batch."""
        super().__init__(config, device, pin_memory)
        self._minimum: Mapping[int, _Minimum] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: a banned id may be the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch; outputs are live, so growth needs no update."""
        self._minimum = follow_rows(self._minimum, batch_update, _minimum_of)

    def apply(
        self, logits: Float32[Tensor, "num_tokens vocab"]
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Set the stop ids of rows that are too short to -inf."""
        banned = {
            (row, token): 1.0
            for row, minimum in self._minimum.items()
            if len(minimum.output) < minimum.min_tokens
            for token in minimum.stop_ids
        }
        return keep(logits, _cells(banned, logits) == 0) if banned else logits

    def at_rows(self, rows: Sequence[int], outputs: Sequence[Sequence[int]]) -> MinTokens:
        """Return the processor of a batch whose row i is row `rows[i]` with another output."""
        there = MinTokens(self.config, self.device, self.pin_memory)
        there._minimum = {
            place: replace(self._minimum[row], output=output)
            for place, (row, output) in enumerate(zip(rows, outputs, strict=True))
            if row in self._minimum
        }
        return there


def _biases_of(request: AddedRequest) -> tuple[tuple[int, float], ...] | None:
    return request.params.logit_bias or None


class LogitBias(LogitsProcessor):
    """Add each request's biases, in nats, once (clause `bias.additive`)."""

    def __init__(self, config: EngineConfig, device: torch.device, pin_memory: bool) -> None:
        """Start with an empty batch."""
        super().__init__(config, device, pin_memory)
        self._biases: Mapping[int, tuple[tuple[int, float], ...]] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: a bias may lift or sink the argmax."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch."""
        self._biases = follow_rows(self._biases, batch_update, _biases_of)

    def apply(
        self, logits: Float32[Tensor, "num_tokens vocab"]
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Return logits + bias; a bias of -inf is a ban, also of NaN or +inf."""
        if not self._biases:
            return logits
        bias = _cells(
            {
                (row, token): value
                for row, biases in self._biases.items()
                for token, value in biases
            },
            logits,
        )
        return keep(logits + bias, bias != -torch.inf)


def _min_p_of(request: AddedRequest) -> float | None:
    return request.params.min_p or None


class MinP(LogitsProcessor):
    """Keep ids whose probability is at least min_p times the largest (clause `min-p.keep`)."""

    def __init__(self, config: EngineConfig, device: torch.device, pin_memory: bool) -> None:
        """Start with an empty batch."""
        super().__init__(config, device, pin_memory)
        self._by_row: Mapping[int, float] = {}
        self.min_p: Float32[Tensor, " num_tokens"] | None = None

    def is_argmax_invariant(self) -> bool:
        """Return True: the most likely id always stays."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch; `min_p` is one value a row, or None if no row has one."""
        if batch_update is None:
            return
        self._by_row = follow_rows(self._by_row, batch_update, _min_p_of)
        self.min_p = None
        if self._by_row:
            values = [self._by_row.get(row, 0.0) for row in range(batch_update.batch_size)]
            self.min_p = torch.tensor(values, dtype=torch.float32, device=self.device)

    def apply(
        self, logits: Float32[Tensor, "num_tokens vocab"]
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Set the unlikely ids to -inf; expects logits that the temperature has divided."""
        return logits if self.min_p is None else keep(logits, keep_min_p(logits, self.min_p))


@dataclass(frozen=True, slots=True)
class LogitsProcessors:
    """Every processor of an engine, in the order in which they act.

    Attributes:
        non_argmax_invariant: act on all rows, before the penalties.
        argmax_invariant: act on random rows only, after the temperature.
        speculative: whether min-p and logit bias are refused (clause `spec.processors`).

    """

    argmax_invariant: tuple[LogitsProcessor, ...] = ()
    non_argmax_invariant: tuple[LogitsProcessor, ...] = ()
    speculative: bool = False

    @property
    def min_p(self) -> Float32[Tensor, " num_tokens"] | None:
        """One min_p a row, 0 where it is off; None if no row has one."""
        return next((one.min_p for one in self.argmax_invariant if isinstance(one, MinP)), None)

    @property
    def has_custom_argmax_invariant(self) -> bool:
        """Whether something beside min-p acts between temperature and top-k."""
        return any(not isinstance(one, MinP) for one in self.argmax_invariant)

    def at_rows(self, rows: Sequence[int], outputs: Sequence[Sequence[int]]) -> Self:
        """Return the processors of a batch whose row i is row `rows[i]` with another output.

        Only min tokens reads an output; the others stay as they are.
        """
        return replace(
            self,
            non_argmax_invariant=tuple(
                one.at_rows(rows, outputs) if isinstance(one, MinTokens) else one
                for one in self.non_argmax_invariant
            ),
        )

    def validate(self, params: Sequence[SamplingParams]) -> None:
        """Check requests before they are admitted.

        Raises:
            ValueError: speculative decoding or a processor refuses a request.

        """
        processors = (*self.non_argmax_invariant, *self.argmax_invariant)
        for one in params:
            if self.speculative:
                _refuse_with_drafts(one)
            for processor in processors:
                processor.validate_params(one)

    def update_state(self, update: BatchUpdate | None) -> None:
        """Let every processor follow the batch."""
        for processor in (*self.non_argmax_invariant, *self.argmax_invariant):
            processor.update_state(update)


def build_logitsprocs(
    config: EngineConfig, device: torch.device, custom: Sequence[type[LogitsProcessor]] = ()
) -> LogitsProcessors:
    """Make the built-in processors, then the custom ones in the given order.

    Raises:
        ValueError: custom processors with speculative decoding (clause `spec.processors`).

    """
    if config.speculative and custom:
        names = ", ".join(one.__name__ for one in custom)
        raise ParameterError("custom", names, "no processor with speculative decoding")
    built_in: tuple[type[LogitsProcessor], ...] = (MinTokens, LogitBias, MinP)
    kinds = (MinTokens,) if config.speculative else (*built_in, *custom)
    processors = [kind(config, device, pin_memory=False) for kind in kinds]
    # asked once, since a processor must not change lists while it runs
    invariant = [processor.is_argmax_invariant() for processor in processors]
    return LogitsProcessors(
        argmax_invariant=tuple(
            one for one, kept in zip(processors, invariant, strict=True) if kept
        ),
        non_argmax_invariant=tuple(
            one for one, kept in zip(processors, invariant, strict=True) if not kept
        ),
        speculative=config.speculative,
    )


def _refuse_with_drafts(params: SamplingParams) -> None:
    """Refuse what the verifier cannot honour (clause `spec.processors`)."""
    if params.min_p > GREEDY_EPSILON:
        raise ParameterError("min_p", params.min_p, "at most 1e-05 with speculative decoding")
    if params.logit_bias:
        raise ParameterError("logit_bias", params.logit_bias, "none with speculative decoding")


def _cells(
    values: Mapping[tuple[int, int], float], like: Float32[Tensor, "num_tokens vocab"]
) -> Float32[Tensor, "num_tokens vocab"]:
    """Return a tensor like `like` with values at (row, id) and 0 elsewhere."""
    rows, ids = torch.tensor(list(values), device=like.device).unbind(dim=1)
    cells = torch.tensor(list(values.values()), dtype=like.dtype, device=like.device)
    return torch.zeros_like(like).index_put((rows, ids), cells)

"""Adapter: a plain function per request becomes a processor of the whole batch."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.batch_update import AddedRequest, BatchUpdate
from refsampler.params import SamplingParams
from refsampler.processors import EngineConfig, LogitsProcessor, follow_rows

__all__ = ["PerRequestProcessor"]

_Row = Float32[Tensor, " vocab"]


class PerRequestProcessor(LogitsProcessor):
    """Adapter: a plain function per request becomes a processor of the batch.

    A subclass says with `new_req_logits_processor` which function a request gets, if any.  It is
    called as f(output ids, row logits) or, with three arguments, f(prompt ids, output ids, row
    logits), and its result replaces the row.
    """

    def __init__(self, config: EngineConfig, device: torch.device, pin_memory: bool) -> None:
        """Start with an empty batch."""
        super().__init__(config, device, pin_memory)
        self._functions: Mapping[int, Callable[[_Row], _Row]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., _Row] | None:
        """Return the function of a new request, or None if its row is left alone."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch."""
        self._functions = follow_rows(self._functions, batch_update, self._function_of)

    def _function_of(self, request: AddedRequest) -> Callable[[_Row], _Row] | None:
        """Return the new request's function of the row alone, or None."""
        function = self.new_req_logits_processor(request.params)
        if function is None:
            return None
        if len(inspect.signature(function).parameters) == 3:
            return partial(function, request.prompt, request.output)
        return partial(function, request.output)

    def apply(
        self, logits: Float32[Tensor, "num_tokens vocab"]
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Replace the rows that have a function; a function may overwrite the row it is given."""
        rows = list(logits)
        for row, function in self._functions.items():
            rows[row] = function(logits[row].clone())
        return torch.stack(rows) if self._functions else logits

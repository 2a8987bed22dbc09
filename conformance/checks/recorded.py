"""Recorded logits: real rows under the filters that are used with them, judged by exact supports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from refsampler.backends.protocol import Capabilities, DType
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed.build import request
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.recorded import RecordedRow, digest, tensors_of
from refsampler.request import Request

__all__ = ["CHECKS", "recorded_cases"]

_CLAUSES = clause_ids("output.returns", "draw.support", "greedy.argmax", "top-k.keep", "top-p.keep")
_DTYPES = {"F32": DType.FLOAT32, "BF16": DType.BFLOAT16, "F16": DType.FLOAT16}
_ASKS: tuple[Request, ...] = (
    request(temperature=0.0),
    request(),
    request(top_k=1),
    request(top_k=50),
    request(top_p=0.9),
    request(min_p=0.05),
    request(temperature=0.7, top_k=40, top_p=0.95),
    request(temperature=1.3, top_p=0.8, min_p=0.02),
)
_CALLS = 16

CHECKS: tuple[Check, ...] = (
    # its cases come from the file that a run names
    Check("recorded-logits", _CLAUSES, Kind.EXACT, lambda _capabilities, _run_seed: ()),
)


def recorded_cases(path: Path, capabilities: Capabilities) -> Iterator[Case]:
    """Yield one case a recorded row: the row under every filter, in the nearest declared dtype.

    Raises:
        RecordingError: the file cannot be read.

    """
    sha256 = digest(path)
    for tensor in tensors_of(path):
        dtype = _DTYPES[tensor.dtype]
        for row in range(tensor.rows):
            recipe = RowRecipe(recorded=RecordedRow(path.name, sha256, tensor.name, row))
            yield Case(
                LogitsRecipe(tensor.vocab, (recipe,) * len(_ASKS)),
                tuple(_fitting(one, tensor.vocab) for one in _ASKS),
                dtype=dtype if dtype in capabilities.dtypes else DType.FLOAT32,
                calls=_CALLS,
                clauses=_CLAUSES,
            )


def _fitting(asked: Request, vocab: int) -> Request:
    """Return the request with a top-k that is no larger than the vocabulary."""
    return replace(asked, params=replace(asked.params, top_k=min(asked.params.top_k, vocab)))

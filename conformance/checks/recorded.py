"""Recorded logits: real rows under the filters that are used with them, and the law of each row."""

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
from refsampler.law import target_law
from refsampler.request import Request

__all__ = ["CHECKS", "law_draws", "recorded_cases", "recorded_laws"]

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
_LAW_LOGITS = 2**25
"""Draws times vocabulary of one row in the quick profile, about as many as of a designed law."""
_FILE_LOGITS = 2**28
"""The same of all rows of a file."""
_TIMES = {"quick": 1, "full": 8}
_MOST_DRAWS, _LEAST_DRAWS = 200_000, 64

CHECKS: tuple[Check, ...] = (
    # their cases come from the file that a run names
    Check("recorded-logits", _CLAUSES, Kind.EXACT, lambda _capabilities, _run_seed: ()),
    Check("recorded-laws", clause_ids("draw.law"), Kind.LAW, lambda _capabilities, _run_seed: ()),
)


def recorded_cases(path: Path, capabilities: Capabilities) -> Iterator[Case]:
    """Yield one case a recorded row: the row under every filter, in the nearest declared dtype.

    Raises:
        RecordingError: the file cannot be read.

    """
    for vocab, recipe, dtype in _rows(path, capabilities):
        yield Case(
            LogitsRecipe(vocab, (recipe,) * len(_ASKS)),
            tuple(_fitting(one, vocab) for one in _ASKS),
            dtype=dtype,
            calls=_CALLS,
            clauses=_CLAUSES,
        )


def recorded_laws(path: Path, capabilities: Capabilities) -> Iterator[Case]:
    """Yield each recorded row that has a law, unfiltered and at temperature 1.

    Raises:
        RecordingError: the file cannot be read.

    """
    for vocab, recipe, dtype in _rows(path, capabilities):
        logits = LogitsRecipe(vocab, (recipe,))
        law = target_law(logits.build(dtype.torch), (request(),), capabilities.semantics)
        if bool(law.valid[0]) and int(law.core[0].sum()) > 1:
            yield Case(logits, (request(),), dtype=dtype, clauses=clause_ids("draw.law"))


def law_draws(vocab: int, rows: int, profile: str) -> int:
    """Return how often a row of a file of so many rows is drawn."""
    logits = min(_LAW_LOGITS, _FILE_LOGITS // rows)
    return _TIMES[profile] * max(_LEAST_DRAWS, min(_MOST_DRAWS, logits // vocab))


def _rows(path: Path, capabilities: Capabilities) -> Iterator[tuple[int, RowRecipe, DType]]:
    """Yield vocabulary, row and the nearest declared dtype."""
    sha256 = digest(path)
    for tensor in tensors_of(path):
        dtype = _DTYPES[tensor.dtype]
        dtype = dtype if dtype in capabilities.dtypes else DType.FLOAT32
        for row in range(tensor.rows):
            recorded = RecordedRow(path.name, sha256, tensor.name, row)
            yield tensor.vocab, RowRecipe(recorded=recorded), dtype


def _fitting(asked: Request, vocab: int) -> Request:
    """Return the request with a top-k that is no larger than the vocabulary."""
    return replace(asked, params=replace(asked.params, top_k=min(asked.params.top_k, vocab)))

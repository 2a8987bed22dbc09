"""Case: logits, requests and the clauses they speak about, with a stable id.

A case is a JSON document; its id is the hash of that document, so a report, a replay command and a
file in a corpus all name the same bits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Final

import msgspec
from torch import Tensor

from refsampler.backends.protocol import DType
from refsampler.clauses import ClauseId
from refsampler.conformance.logits import LogitsRecipe
from refsampler.request import Request, ThinkingMarkers

__all__ = [
    "Case",
    "CaseId",
    "Hazard",
    "Layout",
    "SessionStep",
    "decode_case",
    "encode_case",
    "id_of",
    "lay_out",
]

CaseId = str

_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_NONFINITE: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class Layout(StrEnum):
    """How the logits lie in memory (clause `input.layout`)."""

    CONTIGUOUS = "contiguous"
    TRANSPOSED = "transposed"
    STRIDED = "strided"
    SLICED = "sliced"


class Hazard(StrEnum):
    """What a broken backend may do with the case; hazardous cases want a process of their own."""

    NONE = "none"
    CRASH = "crash"
    HANG = "hang"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class SessionStep:
    """One step of an engine's session.

    Attributes:
        ids: of the requests sampled, in row order; who is not running yet is added.
        removed: ids of the requests that leave before the step.

    """

    ids: tuple[int, ...]
    removed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """One input of the suite.

    With `steps` the rows are those of all steps, one after the other; each request stands there as
    it is at that step, so that its exact law follows from the row alone.

    Attributes:
        logits: recipe of the logits, one row a request.
        requests: one a row.
        dtype: of the logits.
        layout: of the logits in memory.
        calls: how often the batch is sampled.
        clauses: clauses that the case speaks about.
        hazard: what a broken backend may do.
        thinking: markers of the model's thinking section.
        steps: of an engine's session; empty for a batch that is sampled by itself.
        drafts: logits of the laws that the drafts come from, one row a draft; None if each is
            certain, or if there are none.

    """

    logits: LogitsRecipe
    requests: tuple[Request, ...]
    dtype: DType = DType.FLOAT32
    layout: Layout = Layout.CONTIGUOUS
    calls: int = 1
    clauses: tuple[ClauseId, ...] = ()
    hazard: Hazard = Hazard.NONE
    thinking: ThinkingMarkers | None = None
    steps: tuple[SessionStep, ...] = ()
    drafts: LogitsRecipe | None = None

    def __post_init__(self) -> None:
        """Refuse a case whose rows do not match its requests."""
        if len(self.logits.rows) != len(self.requests):
            msg = (
                f"requests: {len(self.requests)} are given, allowed is one for each of "
                f"{len(self.logits.rows)} rows of logits"
            )
            raise ValueError(msg)
        sampled = sum(len(step.ids) for step in self.steps)
        if self.steps and sampled != len(self.requests):
            msg = (
                f"steps: {sampled} rows are sampled, allowed is one for each of "
                f"{len(self.requests)} requests"
            )
            raise ValueError(msg)
        if self.calls < 1:
            msg = f"calls = {self.calls} is refused: allowed is at least 1"
            raise ValueError(msg)

    @cached_property
    def id(self) -> CaseId:
        """First 12 hex digits of the sha256 of the canonical JSON; written once, as it is long."""
        return id_of(encode_case(self))

    def build_logits(self, device: str = "cpu") -> Tensor:
        """Return the logits [num_tokens, vocab] in the case's dtype and layout."""
        return lay_out(self.logits.build(self.dtype.torch), self.layout).to(device)


def lay_out(logits: Tensor, layout: Layout) -> Tensor:
    """Return equal logits whose memory has the wanted strides."""
    rows, vocab = logits.shape
    if layout is Layout.TRANSPOSED:
        return logits.t().contiguous().t()
    if layout is Layout.STRIDED:
        wide = logits.new_full((rows, 2 * vocab), math.nan)
        wide[:, ::2] = logits
        return wide[:, ::2]
    if layout is Layout.SLICED:
        wide = logits.new_full((rows + 1, vocab + 3), math.nan)
        wide[1:, 3:] = logits
        return wide[1:, 3:]
    return logits


def encode_case(case: Case) -> bytes:
    """Return the canonical JSON: sorted keys, defaults left out, non-finite numbers as words."""
    return _written(case).encode()


def id_of(document: bytes) -> CaseId:
    """Return the id of the case that `encode_case` wrote so."""
    return hashlib.sha256(document).hexdigest()[:12]


def decode_case(document: bytes | str) -> Case:
    """Read what `encode_case` wrote.

    Raises:
        msgspec.ValidationError: a field is missing or has another type.

    """
    return msgspec.convert(_numbers(json.loads(document)), Case)


def _written(value: Any) -> str:
    """Return JSON: dataclasses as objects without their defaults, tuples as lists."""
    if isinstance(value, (tuple, list)):
        # most of a case are ids, for which the encoder is ten times slower
        if {type(item) for item in value} == {int}:
            return f"[{','.join(map(str, value))}]"
        # rows that are alike are often one object, which is written once
        distinct = {id(item): item for item in value}
        if len(distinct) == len(value):
            return f"[{','.join(map(_written, value))}]"
        texts = {key: _written(item) for key, item in distinct.items()}
        return f"[{','.join([texts[id(item)] for item in value])}]"
    plain = _canonical(value) if isinstance(value, float) else value
    if type(plain) is int:
        return str(plain)
    defaults = _defaults(value.__class__)
    if defaults is None:
        return _JSON.encode(plain)
    told = [
        f'"{name}":{_written(own)}'
        for name, default in defaults.items()
        if (own := getattr(value, name)) != default
    ]
    return f"{{{','.join(told)}}}"


@cache
def _defaults(kind: type[Any]) -> Mapping[str, Any] | None:
    """Return the defaults of a dataclass's fields, MISSING where there is none, in order of name.

    None: it is no dataclass.
    """
    if not is_dataclass(kind):
        return None
    return {one.name: one.default for one in sorted(fields(kind), key=lambda one: one.name)}


def _canonical(number: float) -> float | int | str:
    """Return one spelling a number: words if non-finite, an integer if integral, but -0.0."""
    if not math.isfinite(number):
        return str(number)
    if number.is_integer() and not (number == 0 and math.copysign(1, number) < 0):
        return int(number)
    return number


def _numbers(value: Any) -> Any:
    """Turn the words for non-finite numbers back into numbers."""
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return _NONFINITE.get(value, value) if isinstance(value, str) else value

"""Answers: what a backend returned, as far as it can be read, and what is wrong with its form.

Nothing here raises on what a backend made, so that rubbish is a finding of `output.form` and never
an error of the harness.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import cast

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from refsampler.draw import Drawn
from refsampler.logprobs import LogprobsTensors
from refsampler.sampler import SamplerOutput

__all__ = ["DrawnAnswer", "SamplerAnswer", "read_drawn", "read_output"]

_KERNEL_IDS = (torch.int32, torch.int64)
_SAMPLER_IDS = (torch.int32,)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What every answer has.

    Attributes:
        ids: empty if the form allows no reading.
        form: what is wrong with the form, empty if nothing is.

    """

    ids: Int64[np.ndarray, " num_tokens"]
    form: str


@dataclass(frozen=True, slots=True)
class DrawnAnswer(_Answer):
    """What a kernel returned.

    Attributes:
        processed: None if there are none that can be read.

    """

    processed: Tensor | None


@dataclass(frozen=True, slots=True)
class SamplerAnswer(_Answer):
    """What a sampler or an engine returned.

    Attributes:
        output: None unless every part of it can be read.

    """

    output: SamplerOutput | None


def read_drawn(result: object, rows: int, vocab: int) -> DrawnAnswer:
    """Read what a kernel gave for logits [rows, vocab]."""
    ids, processed = result if isinstance(result, Drawn) else (result, None)
    read, form = _read_ids(ids, (rows,), _KERNEL_IDS)
    if processed is None:
        return DrawnAnswer(read, form, None)
    wrong = _wrong_tensor(processed, (rows, vocab), floating=True)
    if not wrong:
        return DrawnAnswer(read, form, processed)
    return DrawnAnswer(read, _joined(form, f"processed_logits: {wrong}"), None)


def read_output(result: object, rows: int, vocab: int) -> SamplerAnswer:
    """Read what a sampler gave for logits [rows, vocab]; any object with the fields will do."""
    parts = [_part(result, one.name) for one in fields(SamplerOutput)]
    if all(isinstance(part, _Absent) for part in parts):
        nothing = np.empty(0, np.int64)
        return SamplerAnswer(nothing, f"{type(result).__name__} in place of a SamplerOutput", None)
    ids, logprobs, valid = parts
    logprobs = None if isinstance(logprobs, _Absent) else logprobs
    read, form = _read_ids(ids, (rows, 1), _SAMPLER_IDS)
    wrong = _wrong_tensor(valid, (rows,), floating=False)
    if wrong:
        form = _joined(form, f"valid: {wrong}")
    wrong_logprobs = "" if logprobs is None else _wrong_parts(logprobs, rows, vocab)
    form = _joined(form, wrong_logprobs)
    if wrong or wrong_logprobs or not isinstance(ids, Tensor):
        return SamplerAnswer(read, form, None)
    return SamplerAnswer(read, form, cast("SamplerOutput", result))


class _Absent:
    """An attribute that is not there, or that raises."""


def _part(result: object, name: str) -> object:
    try:
        return getattr(result, name, _Absent())
    except Exception:  # noqa: BLE001 - a property of the backend's that raises gives nothing
        return _Absent()


def _read_ids(
    ids: object, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> tuple[Int64[np.ndarray, " num_tokens"], str]:
    """Return the ids as far as they can be read, and what is wrong with their form."""
    if not isinstance(ids, Tensor):
        return np.empty(0, np.int64), f"{_kind(ids)} in place of a tensor"
    form = ""
    if tuple(ids.shape) != shape or ids.dtype not in dtypes:
        form = f"{str(ids.dtype).removeprefix('torch.')} {list(ids.shape)}"
    if ids.numel() != shape[0] or ids.dtype.is_floating_point or ids.dtype.is_complex:
        return np.empty(0, np.int64), form
    try:
        return ids.detach().reshape(-1).cpu().numpy().astype(np.int64), form
    except (RuntimeError, TypeError) as error:  # torch's NotImplementedError is a RuntimeError
        return np.empty(0, np.int64), _joined(form, f"ids that cannot be read: {error}")


def _wrong_parts(logprobs: object, rows: int, vocab: int) -> str:
    """Say what is wrong with logprobs; empty if nothing is."""
    for one in fields(LogprobsTensors):
        part = _part(logprobs, one.name)
        if not isinstance(part, Tensor):
            return f"logprobs_tensors.{one.name}: {_kind(part)} in place of a tensor"
    wrong = _wrong_logprobs(cast("LogprobsTensors", logprobs), rows, vocab)
    return f"logprobs_tensors.{wrong}" if wrong else ""


def _wrong_logprobs(read: LogprobsTensors, rows: int, vocab: int) -> str:
    """Say which part does not fit the others."""
    if read.logprobs.ndim != 2 or len(read.logprobs) != rows:
        return f"logprobs: {list(read.logprobs.shape)}"
    if not read.logprobs.dtype.is_floating_point:
        return f"logprobs: {read.logprobs.dtype}"
    if read.logprob_token_ids.numel() == 0:
        return ""
    for name, part, shape in (
        ("logprob_token_ids", read.logprob_token_ids, tuple(read.logprobs.shape)),
        ("valid", read.valid, tuple(read.logprobs.shape)),
        ("selected_token_ranks", read.selected_token_ranks, (rows,)),
    ):
        wrong = _wrong_tensor(part, shape, floating=False)
        if wrong:
            return f"{name}: {wrong}"
    beyond = (read.logprob_token_ids < 0) | (read.logprob_token_ids >= vocab)
    if beyond.any():
        return f"logprob_token_ids: id {int(read.logprob_token_ids[beyond][0])}"
    return ""


def _wrong_tensor(part: object, shape: tuple[int, ...], *, floating: bool) -> str:
    """Say what is wrong with something that should be a tensor; empty if nothing is."""
    if not isinstance(part, Tensor):
        return f"{_kind(part)} in place of a tensor"
    if tuple(part.shape) != shape or part.dtype.is_floating_point != floating:
        return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
    return ""


def _kind(part: object) -> str:
    return "nothing" if isinstance(part, _Absent) else type(part).__name__


def _joined(*words: str) -> str:
    return "; ".join(word for word in words if word)

"""Tensors beside the wire: safetensors files in a folder of the harness, read with their size known.

A program that may write into the folder may put anything there, so a file is opened without following
links and without waiting, must be a plain one, and is read once and whole before anything looks at it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from refsampler.backends.stdio.wire import WireFault
from refsampler.logprobs import LogprobsTensors
from refsampler.sampler import SamplerOutput

__all__ = ["largest_output", "output_tensors", "read_output_file", "read_tensors", "write_tensors"]

_PREFIX: Final = "logprobs."
_IDS: Final = "sampled_token_ids"
_VALID: Final = "valid"
_HEADER: Final = 2**16
_ROW: Final = 64
_ENTRY: Final = 16
"""Bytes of one listed logprob at most: id, value, flag, with room for wider types."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors where no file is yet; what has strides is copied."""
    plain = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
    save_file(plain, path)


def read_tensors(path: Path, largest: int) -> dict[str, Tensor]:
    """Read a file of at most `largest` bytes.

    Raises:
        WireFault: there is none, or it is no plain file, too large, or no safetensors.

    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise WireFault(f"{path.name}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WireFault(f"{path.name} is no plain file")
        if status.st_size > largest:
            raise WireFault(f"{path.name} is larger than {largest} bytes")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(status.st_size)
    finally:
        os.close(descriptor)
    try:
        return load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise WireFault(f"{path.name}: {type(error).__name__}: {error}") from error


def largest_output(rows: int, vocab: int) -> int:
    """Return how many bytes the output of a step may have."""
    return _HEADER + rows * (_ROW + (vocab + 1) * _ENTRY)


def output_tensors(output: SamplerOutput) -> dict[str, Tensor]:
    """Return the tensors of an output by the names that they have on the wire."""
    found = {_IDS: output.sampled_token_ids, _VALID: output.valid}
    logprobs = output.logprobs_tensors
    if logprobs is not None:
        found |= {f"{_PREFIX}{one.name}": getattr(logprobs, one.name) for one in fields(logprobs)}
    return found


def read_output_file(path: Path, rows: int, vocab: int) -> SamplerOutput:
    """Read what a program wrote for a step; a wrong form is left to the check of that name.

    Raises:
        WireFault: the file cannot be read, or has tensors that the wire does not know.

    """
    tensors = read_tensors(path, largest_output(rows, vocab))
    names = {f"{_PREFIX}{one.name}" for one in fields(LogprobsTensors)}
    unknown = set(tensors) - names - {_IDS, _VALID}
    if unknown or _IDS not in tensors:
        raise WireFault(f"{path.name} has {sorted(tensors)}: allowed is {_IDS}, {_VALID}, logprobs")
    logprobs = None
    given = names & set(tensors)
    if given:
        if given != names:
            raise WireFault(f"{path.name} lacks {sorted(names - given)}")
        parts = {name.removeprefix(_PREFIX): tensors[name] for name in given}
        logprobs = LogprobsTensors(**parts)
    valid = tensors.get(_VALID, torch.ones(rows, dtype=torch.bool))
    return SamplerOutput(tensors[_IDS], logprobs, valid)

"""Recorded logits: rows of a safetensors file as cases, named by what the file holds.

A case refers to a row by the file's name, its sha256, the tensor and the row, so its id is the same
wherever the file lies.  The file itself is looked for in the folders of `REFSAMPLER_LOGITS`, which
the processes of a run inherit, and in the current one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

__all__ = [
    "FOLDERS",
    "RecordedRow",
    "RecordingError",
    "TensorRows",
    "add_folder",
    "digest",
    "tensors_of",
]

FOLDERS: Final = "REFSAMPLER_LOGITS"
"""Environment variable with the folders of recorded logits, separated as in PATH."""


class RecordingError(ValueError):
    """Recorded logits cannot be read; the message names the file and what is allowed."""


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One row of a recording.

    Attributes:
        file: name without folders.
        sha256: of the file.
        tensor: name in the file.
        row: of the tensor.

    """

    file: str
    sha256: str
    tensor: str
    row: int

    def build(self, vocab: int) -> Float[np.ndarray, " vocab"]:
        """Return the row as float64.

        Raises:
            RecordingError: the file is not there, is another one, or has other rows.

        """
        rows = _rows(self.file, self.sha256, self.tensor)
        if not (self.row < len(rows) and rows.shape[1] == vocab):
            raise RecordingError(
                f"{self.file}: tensor {self.tensor!r} is {list(rows.shape)}: allowed is one with "
                f"row {self.row} of {vocab} ids"
            )
        row: np.ndarray = rows[self.row].astype(np.float64)
        return row


@dataclass(frozen=True, slots=True)
class TensorRows:
    """A tensor [rows, vocab] of a file."""

    name: str
    dtype: str
    rows: int
    vocab: int


def add_folder(path: Path) -> None:
    """Let this process and its children find the files beside `path`."""
    known = [one for one in os.environ.get(FOLDERS, "").split(os.pathsep) if one]
    os.environ[FOLDERS] = os.pathsep.join(dict.fromkeys([str(path.resolve().parent), *known]))


def tensors_of(path: Path) -> Iterator[TensorRows]:
    """Yield the tensors of a file by name.

    Raises:
        RecordingError: it is no safetensors file, or a tensor is not [rows, vocab] of floats.

    """
    try:
        with safe_open(str(path), framework="pt") as opened:
            for name in sorted(opened.keys()):
                part = opened.get_slice(name)
                shape, dtype = part.get_shape(), part.get_dtype()
                if len(shape) != 2 or dtype not in ("F32", "BF16", "F16") or 0 in shape:
                    raise RecordingError(
                        f"{path}: tensor {name!r} is {dtype} {shape}: allowed are F32, BF16 and F16 "
                        "of [rows, vocab]"
                    )
                yield TensorRows(name, dtype, *shape)
    except (SafetensorError, OSError) as error:
        raise RecordingError(f"{path}: {error}") from error


def digest(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def _found(file: str, sha256: str) -> Path:
    folders = [*os.environ.get(FOLDERS, "").split(os.pathsep), "."]
    there = [Path(one) / file for one in folders if one and (Path(one) / file).is_file()]
    for path in there:
        if digest(path) == sha256:
            return path
    why = "has another sha256" if there else "is not there"
    raise RecordingError(
        f"{file} {why}: allowed is the file of sha256 {sha256[:12]} in a folder of {FOLDERS}"
    )


@cache
def _rows(file: str, sha256: str, tensor: str) -> Float[np.ndarray, "rows vocab"]:
    """Return a tensor as float32, which holds the values of every dtype allowed, exactly."""
    with safe_open(str(_found(file, sha256)), framework="pt") as opened:
        rows: np.ndarray = opened.get_tensor(tensor).float().numpy()
    return rows

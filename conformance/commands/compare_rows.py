"""Rows of the user's own logits as cases, for `refsampler compare --logits`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
import numpy as np
from safetensors.numpy import save_file

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import batch
from refsampler.conformance.logits import RowRecipe
from refsampler.conformance.recorded import (
    RecordedRow,
    RecordingError,
    add_folder,
    digest,
    tensors_of,
)
from refsampler.request import Request

__all__ = ["rows_of"]

_MOST: Final = 16
_ARRAY: Final = ".npy"


@contextmanager
def rows_of(path: Path, asked: Request, chosen: Sequence[int]) -> Iterator[tuple[Case, ...]]:
    """Give a case for each row of a file, or end the command with status 2.

    Args:
        path: safetensors of tensors [rows, vocab], or a NumPy array [rows, vocab] or [vocab].
        asked: of every row; top-k is cut to the vocabulary.
        chosen: rows to take, counted through all tensors in the order of their names; the first 16
            if there are none.

    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            file = _converted(path, Path(folder)) if path.suffix == _ARRAY else path
            add_folder(file)
            there = tuple(_cases(file, asked))
        except (RecordingError, ValueError, OSError) as error:
            raise click.BadParameter(str(error), param_hint="--logits") from error
        beyond = [one for one in chosen if one >= len(there)]
        if beyond:
            raise click.BadParameter(
                f"{beyond[0]} is given, allowed is 0 to {len(there) - 1}", param_hint="--row"
            )
        yield tuple(there[one] for one in chosen) if chosen else there[:_MOST]


def _converted(path: Path, folder: Path) -> Path:
    """Write an array as a safetensors file of one tensor and return its path."""
    rows = np.atleast_2d(np.load(path, allow_pickle=False))
    if rows.ndim != 2 or rows.dtype.kind != "f" or 0 in rows.shape:
        raise RecordingError(
            f"{path}: {rows.dtype} {list(rows.shape)}: allowed is [rows, vocab] of floats"
        )
    target = folder / f"{path.stem}.safetensors"
    save_file({path.stem: np.ascontiguousarray(rows, dtype=np.float32)}, target)
    return target


def _cases(path: Path, asked: Request) -> Iterator[Case]:
    sha256 = digest(path)
    for tensor in tensors_of(path):
        top_k = min(asked.params.top_k, tensor.vocab)
        fitting = replace(asked, params=replace(asked.params, top_k=top_k))
        for row in range(tensor.rows):
            recipe = RowRecipe(recorded=RecordedRow(path.name, sha256, tensor.name, row))
            yield batch(tensor.vocab, [(recipe, fitting)], "draw.law")

"""Values as the Python expressions that make them again, bit by bit."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

__all__ = ["id_set", "one_line", "tensor", "value"]

_INLINE: Final = 192
"""Numbers that are written out; more of them are packed."""


def tensor(part: Tensor | None, device: str = "cpu") -> str:
    """Return a tensor as an expression that gives the same bits, on a device."""
    if part is None:
        return "None"
    where = "" if device == "cpu" else f'.to("{device}")'
    plain = part.detach().cpu().contiguous()
    if plain.numel() <= _INLINE:
        # a float32 goes through Python's float and back without loss
        made = f"torch.tensor({plain.tolist()}, dtype={plain.dtype}).reshape({list(plain.shape)})"
        return f"{made}{where}"
    raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return f'packed("{text}", {list(plain.shape)}, {plain.dtype}){where}'


def value(given: Any) -> str:
    """Return a value object as the expression that makes it, without its defaults."""
    if is_dataclass(given) and not isinstance(given, type):
        parts = [
            f"{one.name}={value(getattr(given, one.name))}"
            for one in fields(given)
            if one.default is MISSING or getattr(given, one.name) != one.default
        ]
        return f"{type(given).__name__}({', '.join(parts)})"
    if isinstance(given, tuple):
        return f"({''.join(f'{value(one)}, ' for one in given)})"
    if isinstance(given, StrEnum):
        return repr(str(given))
    if isinstance(given, np.generic):
        return repr(given.item())
    return repr(given)


def id_set(ids: Sequence[int]) -> str:
    """Return a set of ascending ids as an expression, ranges as ranges."""
    if not ids:
        return "set()"
    runs: list[list[int]] = []
    for token in ids:
        if runs and runs[-1][1] == token:
            runs[-1][1] = token + 1
        else:
            runs.append([token, token + 1])
    parts = [str(a) if b == a + 1 else f"*range({a}, {b})" for a, b in runs]
    return f"{{{', '.join(parts)}}}"


def one_line(words: str) -> str:
    """Return the first line, without what would end a docstring."""
    first = words.splitlines()[0] if words else ""
    return first.replace("\\", "/").replace('"""', "'''")

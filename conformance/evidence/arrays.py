"""Array types of the evidence engine."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "FloatArray", "IntArray", "frozen"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def frozen(array: _Array) -> _Array:
    """Return the array made read-only, so that a frozen dataclass that holds it is frozen."""
    array.flags.writeable = False
    return array

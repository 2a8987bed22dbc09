"""Which filter and draw runs where: one table, read from the top, with a reason in every row."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

import torch

from refsampler.backends.protocol import Subject
from refsampler.backends.registry import EXTRAS, names, resolve

__all__ = ["TABLE", "Choice", "Path", "Route", "Situation", "choose", "here", "opened"]


class Path(StrEnum):
    """A filter and draw, by the name of its backend."""

    FLASHINFER = "flashinfer"
    TRITON = "triton"
    AITER = "aiter"
    CPU = "cpu"
    NATIVE = "native"


_PACKAGES: Final = {
    Path.FLASHINFER: "flashinfer",
    Path.TRITON: "triton",
    Path.AITER: "aiter",
    Path.CPU: "numba",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides.

    Attributes:
        device: `cuda`, `rocm`, `xpu`, `cpu` or another torch device.
        processed: the logprobs mode shows processed logits or logprobs.
        seeds: a row of the batch has a seed of its own.
        fp64: the noise has to reach the tail in float64.
        architecture: as `sm90` or `gfx942`; empty where it does not matter.

    """

    device: str
    processed: bool = False
    seeds: bool = False
    fp64: bool = False
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A row of the table; None is "either".

    Attributes:
        device: of the situation; `*` is every device.
        path: that is taken.
        processed: as in the situation.
        seeds: likewise.
        fp64: likewise.
        architectures: shell patterns; one has to match.
        reason: why this path, here.

    """

    device: str
    path: Path
    reason: str
    processed: bool | None = None
    seeds: bool | None = None
    fp64: bool | None = None
    architectures: tuple[str, ...] = ("*",)

    def fits(self, situation: Situation) -> bool:
        """Say whether the row speaks of the situation."""
        asked = (situation.processed, situation.seeds, situation.fp64)
        allowed = (self.processed, self.seeds, self.fp64)
        return (
            self.device in ("*", situation.device)
            and any(fnmatchcase(situation.architecture, one) for one in self.architectures)
            and all(want is None or want is has for want, has in zip(allowed, asked, strict=True))
        )


TABLE: Final[tuple[Route, ...]] = (
    Route(
        "cuda",
        Path.FLASHINFER,
        "compiled for NVIDIA; shows no logits, has one seed a call, and float32 noise",
        processed=False,
        seeds=False,
        fp64=False,
        architectures=("sm8?", "sm9?", "sm1??"),
    ),
    Route("cuda", Path.TRITON, "a seed for each row, processed logits, float64 masses"),
    Route("rocm", Path.TRITON, "the same source as on CUDA, hence the same semantics"),
    Route(
        "rocm",
        Path.AITER,
        "where Triton is missing; measures top-p beside top-k, and has one seed a call",
        processed=False,
        seeds=False,
        fp64=False,
        architectures=("gfx9*",),
    ),
    Route("xpu", Path.TRITON, "the same source as on CUDA"),
    Route("cpu", Path.CPU, "exact in float64, a seed for each row, close to reading the logits"),
    Route("*", Path.NATIVE, "plain torch runs everywhere and does everything"),
)
"""Rows of the table; the first that fits and whose library is installed is taken."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a situation gets.

    Attributes:
        path: that is taken.
        reason: of its row.
        notice: what would have been taken if it were installed, and how to; empty if nothing.

    """

    path: Path
    reason: str
    notice: str = ""


def choose(situation: Situation, is_there: Callable[[Path], bool] | None = None) -> Choice:
    """Return the path for a situation.

    Args:
        situation: what decides.
        is_there: whether a path can be taken on this machine; looks by itself without.

    """
    found = _is_there if is_there is None else is_there
    fitting = [route for route in TABLE if route.fits(situation)]
    taken = next(route for route in fitting if route.path is Path.NATIVE or found(route.path))
    missing = fitting[: fitting.index(taken)]
    return Choice(taken.path, taken.reason, _notice(missing, taken) if missing else "")


def opened(situation: Situation) -> Subject:
    """Return the backend for a situation; a fallback is announced once, as a RuntimeWarning."""
    choice = choose(situation)
    if choice.notice:
        warnings.warn(choice.notice, RuntimeWarning, stacklevel=2)
    return resolve(choice.path)


def here(device: str | None = None) -> Situation:
    """Return the situation of plain batches on this machine, or on one kind of its devices."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        device = "xpu" if torch.xpu.is_available() else device
    if device != "cuda":
        return Situation(device)
    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip is not None:
        return Situation("rocm", architecture=properties.gcnArchName.partition(":")[0])
    return Situation("cuda", architecture=f"sm{properties.major}{properties.minor}")


def _is_there(path: Path) -> bool:
    """Look for the backend and for the library that it needs."""
    package = _PACKAGES.get(path)
    found = package is None or importlib.util.find_spec(package) is not None
    return found and path in names()


def _notice(missing: Iterable[Route], taken: Route) -> str:
    """Say what is missing and how to get it."""
    better = [route.path for route in missing]
    extras = [EXTRAS.get(_PACKAGES[path], "") for path in better]
    extra = next(filter(None, extras), "")
    how = f"; pip install 'refsampler[{extra}]'" if extra else ""
    return f"{taken.path} samples, because {' and '.join(better)} cannot be used here{how}"

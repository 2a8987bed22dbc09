"""Launches repeated without Triton's own launch, which looks at every argument every time.

Where the driver confirms what a kernel takes, its arguments lie ready in memory and a launch is one
call of `cuLaunchKernel`; elsewhere it is one call of Triton's compiled launcher.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from refsampler.backends.triton.call import Made, Workspace

__all__ = ["Plan"]

_SIZES: Final = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4, "u64": 8}


class Plan:
    """The launches of one form of call, for other tensors of that form.

    Args:
        made: the launches of the first call.
        places: id of a tensor of that call -> its place among the pointers of later ones.
        stream: on which they are launched.
        work: the workspace of that call, and from now on of all others.
        neutral: other tensors that its launches point to.

    """

    def __init__(
        self,
        made: Sequence[Made],
        places: Mapping[int, int],
        stream: int,
        work: Workspace,
        neutral: tuple[Tensor, ...],
    ) -> None:
        self.work = work
        self._neutral = neutral
        self._launches = [_launch(one, places, stream) for one in made]

    def run(self, pointers: Sequence[int]) -> None:
        """Launch everything on the tensors at these addresses."""
        for launch in self._launches:
            launch(pointers)


def _launch(made: Made, places: Mapping[int, int], stream: int) -> Callable[[Sequence[int]], None]:
    """Return a function of the pointers that repeats a launch."""
    compiled = made.compiled
    values = [one.data_ptr() if isinstance(one, Tensor) else one for one in made.arguments]
    moving = [(at, places[id(one)]) for at, one in enumerate(made.arguments) if id(one) in places]
    types = list(compiled.src.signature.values())
    direct = _direct(made, values, types, moving, stream)
    if direct is not None:
        return direct
    run = compiled[(made.programs, 1, 1)]

    def launch(pointers: Sequence[int]) -> None:
        for at, place in moving:
            values[at] = pointers[place]
        run(*values, stream=stream)

    return launch


def _direct(
    made: Made,
    values: Sequence[Any],
    types: Sequence[str],
    moving: Sequence[tuple[int, int]],
    stream: int,
) -> Callable[[Sequence[int]], None] | None:
    """Return the same through `cuLaunchKernel`, or None where the driver does not confirm it."""
    compiled, metadata = made.compiled, made.compiled.metadata
    plain = metadata.global_scratch_size == 0 and metadata.profile_scratch_size == 0
    plain = plain and metadata.num_ctas == 1 and not metadata.launch_cooperative_grid
    passed = [at for at, kind in enumerate(types) if kind != "constexpr"]
    sizes = [8 if types[at].startswith("*") else _SIZES.get(types[at], 0) for at in passed]
    driver = _driver()
    # Behind the kernel's own there are two pointers to scratch memory, which it does not need.
    if not plain or driver is None or driver.parameter_sizes(compiled.function) != [*sizes, 8, 8]:
        return None
    slots = (ctypes.c_uint64 * (len(passed) + 2))()
    for slot, at in enumerate(passed):
        slots[slot] = int(values[at]) & 0xFFFFFFFFFFFFFFFF
    first = ctypes.addressof(slots)
    addresses = (ctypes.c_void_p * len(slots))(*(first + 8 * slot for slot in range(len(slots))))
    slot_of = {at: slot for slot, at in enumerate(passed)}
    moves = [(slot_of[at], place) for at, place in moving if at in slot_of]
    words = [made.programs, 1, 1, 32 * metadata.num_warps, 1, 1, metadata.shared]
    fixed = (ctypes.c_void_p(compiled.function), *map(ctypes.c_uint, words))
    call, handle, nothing = driver.launch, ctypes.c_void_p(stream), ctypes.c_void_p()

    def launch(pointers: Sequence[int]) -> None:
        for slot, place in moves:
            slots[slot] = pointers[place]
        code = call(*fixed, handle, addresses, nothing)
        if code:
            raise RuntimeError(f"cuLaunchKernel returned {code}: allowed is 0")

    return launch


class _Driver:
    """Two functions of CUDA's driver."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.launch = library.cuLaunchKernel
        self._info = library.cuFuncGetParamInfo

    def parameter_sizes(self, function: int) -> list[int]:
        """Return the bytes of each parameter of a kernel."""
        sizes: list[int] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        while not self._info(
            ctypes.c_void_p(function),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(offset),
            ctypes.byref(size),
        ):
            sizes.append(size.value)
        return sizes


@functools.cache
def _driver() -> _Driver | None:
    """Return the driver; None on AMD, and where it is too old to tell a kernel's parameters."""
    if torch.version.hip is not None:
        return None
    try:
        return _Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None

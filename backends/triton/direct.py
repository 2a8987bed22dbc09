"""Launches repeated without Triton's own launch, which looks at every argument every time.

Where the driver confirms what the kernels take, they are the nodes of one CUDA graph: the addresses of
other tensors are written into its nodes, and one call launches all.  Elsewhere each kernel is one call
of Triton's compiled launcher.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from refsampler.backends.triton.call import Made, Workspace

__all__ = ["KernelNode", "Plan", "Ready"]

_SIZES: Final = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4, "u64": 8}
_Launch = Callable[[Sequence[int]], None]
"""Launches on the tensors at these addresses."""


class KernelNode(ctypes.Structure):
    """A kernel as the driver's graphs take it (`CUDA_KERNEL_NODE_PARAMS_v2`)."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("programs", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


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
        driver = _driver()
        prepared = [] if driver is None else [_prepare(one, places, driver) for one in made]
        kernels = [one for one in prepared if one is not None]
        self._launches: list[_Launch]
        if driver is not None and len(kernels) == len(made):
            self._launches = [_Graph(driver, kernels, stream)]
        else:
            self._launches = [_through_triton(one, places, stream) for one in made]

    def run(self, pointers: Sequence[int]) -> None:
        """Launch everything on the tensors at these addresses.

        Raises:
            RuntimeError: the driver refused.

        """
        for launch in self._launches:
            launch(pointers)


def _values(made: Made) -> list[Any]:
    """Return the arguments of a launch, addresses for tensors."""
    return [one.data_ptr() if isinstance(one, Tensor) else one for one in made.arguments]


def _moving(made: Made, places: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return which arguments are tensors of the call, and their places among its pointers."""
    return [(at, places[id(one)]) for at, one in enumerate(made.arguments) if id(one) in places]


def _through_triton(made: Made, places: Mapping[int, int], stream: int) -> _Launch:
    """Return a launch that is one call of Triton's compiled launcher."""
    values, moving = _values(made), _moving(made, places)
    run = made.compiled[(made.programs, 1, 1)]

    def launch(pointers: Sequence[int]) -> None:
        for at, place in moving:
            values[at] = pointers[place]
        run(*values, stream=stream)

    return launch


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel whose arguments lie ready in memory.

    Attributes:
        node: which points to `addresses`.
        slots: the arguments, 8 bytes each.
        addresses: of the slots.
        moves: slot -> place among a call's pointers.

    """

    node: KernelNode
    slots: ctypes.Array[ctypes.c_uint64]
    addresses: ctypes.Array[ctypes.c_void_p]
    moves: tuple[tuple[int, int], ...]


def _prepare(made: Made, places: Mapping[int, int], driver: _Driver) -> _Kernel | None:
    """Return a launch as a kernel of a graph, or None where the driver does not confirm it."""
    compiled, metadata = made.compiled, made.compiled.metadata
    types, values = list(compiled.src.signature.values()), _values(made)
    plain = metadata.global_scratch_size == 0 and metadata.profile_scratch_size == 0
    plain = plain and metadata.num_ctas == 1 and not metadata.launch_cooperative_grid
    passed = [at for at, kind in enumerate(types) if kind != "constexpr"]
    sizes = [8 if types[at].startswith("*") else _SIZES.get(types[at], 0) for at in passed]
    # Behind the kernel's own there are two pointers to scratch memory, which it does not need.
    if not plain or driver.parameter_sizes(compiled.function) != [*sizes, 8, 8]:
        return None
    slots = (ctypes.c_uint64 * (len(passed) + 2))()
    for slot, at in enumerate(passed):
        slots[slot] = int(values[at]) & 0xFFFFFFFFFFFFFFFF
    first = ctypes.addressof(slots)
    addresses = (ctypes.c_void_p * len(slots))(*(first + 8 * slot for slot in range(len(slots))))
    slot_of = {at: slot for slot, at in enumerate(passed)}
    node = KernelNode(
        function=compiled.function,
        programs=(made.programs, 1, 1),
        threads=(32 * metadata.num_warps, 1, 1),
        shared=metadata.shared,
        arguments=ctypes.addressof(addresses),
    )
    moves = tuple((slot_of[at], place) for at, place in _moving(made, places) if at in slot_of)
    return _Kernel(node, slots, addresses, moves)


@dataclass(frozen=True, slots=True)
class Ready:
    """What the driver calls a graph.

    Attributes:
        launched: the executable one.
        source: of which it was made; its nodes are the names of the other's.
        nodes: in order.

    """

    launched: ctypes.c_void_p
    source: ctypes.c_void_p
    nodes: tuple[ctypes.c_void_p, ...]


class _Graph:
    """Kernels that one call launches, one after the other.

    Launches that are under way keep the arguments that they were made with.
    """

    def __init__(self, driver: _Driver, kernels: Sequence[_Kernel], stream: int) -> None:
        self._driver, self._kernels = driver, kernels
        self._stream = ctypes.c_void_p(stream)
        self._ready = driver.instantiate([one.node for one in kernels])
        self._pointers: list[int] = []
        weakref.finalize(self, driver.destroy, self._ready)

    def __call__(self, pointers: Sequence[int]) -> None:
        """Launch on the tensors at these addresses."""
        if pointers != self._pointers:
            for kernel, handle in zip(self._kernels, self._ready.nodes, strict=True):
                slots = kernel.slots
                for slot, place in kernel.moves:
                    slots[slot] = pointers[place]
                self._driver.update(self._ready, handle, kernel.node)
            self._pointers = list(pointers)
        self._driver.launch(self._ready, self._stream)


class _Driver:
    """CUDA's driver: what a kernel takes, and graphs of kernels."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._info = library.cuFuncGetParamInfo
        self._create, self._add = library.cuGraphCreate, library.cuGraphAddKernelNode_v2
        self._instantiate = library.cuGraphInstantiateWithFlags
        self._update = library.cuGraphExecKernelNodeSetParams_v2
        self._launch = library.cuGraphLaunch
        self._drop, self._drop_source = library.cuGraphExecDestroy, library.cuGraphDestroy

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

    def instantiate(self, kernels: Sequence[KernelNode]) -> Ready:
        """Return a graph of kernels, each behind the one before it."""
        source, launched = ctypes.c_void_p(), ctypes.c_void_p()
        nodes: list[ctypes.c_void_p] = []
        _take(self._create(ctypes.byref(source), ctypes.c_uint(0)), "cuGraphCreate")
        for kernel in kernels:
            node, behind = ctypes.c_void_p(), nodes[-1:]
            code = self._add(
                ctypes.byref(node),
                source,
                (ctypes.c_void_p * len(behind))(*behind),
                ctypes.c_size_t(len(behind)),
                ctypes.byref(kernel),
            )
            _take(code, "cuGraphAddKernelNode")
            nodes.append(node)
        code = self._instantiate(ctypes.byref(launched), source, ctypes.c_ulonglong(0))
        _take(code, "cuGraphInstantiateWithFlags")
        return Ready(launched, source, tuple(nodes))

    def update(self, ready: Ready, node: ctypes.c_void_p, kernel: KernelNode) -> None:
        """Read the arguments of a node again, for launches to come."""
        code = self._update(ready.launched, node, ctypes.byref(kernel))
        _take(code, "cuGraphExecKernelNodeSetParams")

    def launch(self, ready: Ready, stream: ctypes.c_void_p) -> None:
        """Launch all kernels of a graph."""
        _take(self._launch(ready.launched, stream), "cuGraphLaunch")

    def destroy(self, ready: Ready) -> None:
        """Give a graph back; what is under way ends first."""
        self._drop(ready.launched)
        self._drop_source(ready.source)


def _take(code: int, name: str) -> None:
    """Refuse an error of the driver."""
    if code:
        raise RuntimeError(f"{name} returned {code}: allowed is 0")


@functools.cache
def _driver() -> _Driver | None:
    """Return the driver; None on AMD, and where it is too old to tell a kernel's parameters."""
    if torch.version.hip is not None:
        return None
    try:
        return _Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None

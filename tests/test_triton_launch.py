"""Launches repeated without Triton's own launch, with stand-ins for the driver and for a kernel."""

import ctypes
from types import SimpleNamespace
from typing import cast

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: not run")

from refsampler.backends.triton import direct
from refsampler.backends.triton.call import Made, Workspace
from refsampler.backends.triton.direct import KernelNode, Plan, Ready

GIVEN, KEPT = torch.zeros(2), torch.zeros(3)
TYPES = {"x": "*fp32", "V": "i32", "one": "constexpr", "work": "*i64", "n": "i64"}


class FakeDriver:
    """Reads the arguments when the real one does, through the addresses it is given."""

    def __init__(self, sizes, code=0):
        self.sizes, self.code, self.seen, self.destroyed = sizes, code, [], []

    def parameter_sizes(self, function):
        assert function == 77
        return self.sizes

    def instantiate(self, kernels):
        self.read = [self._arguments(one) for one in kernels]
        nodes = [ctypes.c_void_p(one) for one in range(1, 1 + len(kernels))]
        return Ready(ctypes.c_void_p(5), ctypes.c_void_p(6), tuple(nodes))

    def update(self, ready, node, kernel):
        assert ready.launched.value == 5
        self.read[node.value - 1] = self._arguments(kernel)

    def launch(self, ready, stream):
        direct._take(self.code, "cuGraphLaunch")
        self.seen.append((ready.launched.value, stream.value, list(self.read)))

    def destroy(self, ready):
        self.destroyed.append(ready)

    def _arguments(self, kernel):
        types = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64)
        addresses = (ctypes.c_void_p * len(self.sizes)).from_address(kernel.arguments)
        values = [
            kind.from_address(address).value
            for kind, address in zip(types, addresses, strict=False)
        ]
        grid = [*kernel.programs, *kernel.threads, kernel.shared]
        return kernel.function, grid, values


class FakeCompiled:
    """What Triton compiled; its own launch records what it gets."""

    src = SimpleNamespace(signature=TYPES)
    function = 77

    def __init__(self, **metadata):
        plain = {"global_scratch_size": 0, "profile_scratch_size": 0, "num_ctas": 1}
        plain |= {"launch_cooperative_grid": False, "num_warps": 4, "shared": 512}
        self.metadata = SimpleNamespace(**{**plain, **metadata})
        self.seen = []

    def __getitem__(self, grid):
        return lambda *arguments, stream: self.seen.append((grid, arguments, stream))


def plan_of(*compiled):
    """Kernels on the same arguments, of 9 programs, 10 and so on."""
    made = [
        Made(one, 9 + place, (GIVEN, 128256, 1, KEPT, -5)) for place, one in enumerate(compiled)
    ]
    work = cast("Workspace", SimpleNamespace())
    return Plan(made, {id(GIVEN): 1}, 33, work, ())


def test_the_driver_gets_each_argument_where_the_kernel_reads_it(monkeypatch):
    driver = FakeDriver([8, 4, 8, 8, 8, 8])
    monkeypatch.setattr(direct, "_driver", lambda: driver)
    compiled = FakeCompiled(), FakeCompiled()
    plan = plan_of(*compiled)
    kept = KEPT.data_ptr()
    for pointer in (2**63 + 16, 4096, 4096):
        plan.run([11, pointer])
        kernels = [
            (77, [programs, 1, 1, 128, 1, 1, 512], [pointer, 128256, kept, -5])
            for programs in (9, 10)
        ]
        assert driver.seen.pop() == (5, 33, kernels)
    assert not driver.seen
    assert compiled[0].seen == compiled[1].seen == []
    del plan
    assert [one.launched.value for one in driver.destroyed] == [5]


def test_a_node_has_the_drivers_layout():
    """A pointer, seven numbers, padding, four pointers."""
    assert ctypes.sizeof(KernelNode) == 72
    assert [getattr(KernelNode, name).offset for name in ("shared", "arguments", "context")] == [
        32,
        40,
        64,
    ]


@pytest.mark.parametrize(
    ("sizes", "metadata"),
    [
        ([8, 4, 8, 8, 8], {}),
        ([8, 8, 8, 8, 8, 8], {}),
        ([8, 4, 8, 8, 8, 8], {"global_scratch_size": 128}),
        ([8, 4, 8, 8, 8, 8], {"num_ctas": 2}),
        (None, {}),
    ],
)
def test_what_the_driver_does_not_confirm_goes_through_triton(monkeypatch, sizes, metadata):
    driver = None if sizes is None else FakeDriver(sizes)
    monkeypatch.setattr(direct, "_driver", lambda: driver)
    first, second = FakeCompiled(), FakeCompiled(**metadata)
    plan_of(first, second).run([11, 4096])
    arguments = (4096, 128256, 1, KEPT.data_ptr(), -5)
    assert first.seen == [((9, 1, 1), arguments, 33)]
    assert second.seen == [((10, 1, 1), arguments, 33)]
    assert driver is None or driver.seen == []


def test_a_launch_that_fails_is_not_lost(monkeypatch):
    monkeypatch.setattr(direct, "_driver", lambda: FakeDriver([8, 4, 8, 8, 8, 8], code=700))
    with pytest.raises(RuntimeError, match="cuGraphLaunch returned 700"):
        plan_of(FakeCompiled()).run([11, 4096])

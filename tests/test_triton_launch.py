"""Launches repeated without Triton's own launch, with stand-ins for the driver and for a kernel."""

import ctypes
from types import SimpleNamespace
from typing import cast

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: not run")

from refsampler.backends.triton import direct
from refsampler.backends.triton.call import Made, Workspace
from refsampler.backends.triton.direct import Plan

GIVEN, KEPT = torch.zeros(2), torch.zeros(3)
TYPES = {"x": "*fp32", "V": "i32", "one": "constexpr", "work": "*i64", "n": "i64"}


class FakeDriver:
    """Reads the arguments as the real one does: through the addresses it is given."""

    def __init__(self, sizes, code=0):
        self.sizes, self.code, self.seen = sizes, code, []

    def parameter_sizes(self, function):
        assert function == 77
        return self.sizes

    def launch(self, function, *rest):
        *grid, stream, addresses, _ = rest
        types = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64)
        values = [
            kind.from_address(address).value
            for kind, address in zip(types, addresses, strict=False)
        ]
        self.seen.append((function.value, [one.value for one in grid], stream.value, values))
        return self.code


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


def plan_of(compiled):
    made = Made(compiled, 9, (GIVEN, 128256, 1, KEPT, -5))
    work = cast("Workspace", SimpleNamespace())
    return Plan([made], {id(GIVEN): 1}, 33, work, ())


def test_the_driver_gets_each_argument_where_the_kernel_reads_it(monkeypatch):
    driver = FakeDriver([8, 4, 8, 8, 8, 8])
    monkeypatch.setattr(direct, "_driver", lambda: driver)
    compiled = FakeCompiled()
    plan = plan_of(compiled)
    plan.run([11, 2**63 + 16])
    plan.run([11, 4096])
    grid = [9, 1, 1, 128, 1, 1, 512]
    kept = KEPT.data_ptr()
    assert driver.seen == [
        (77, grid, 33, [2**63 + 16, 128256, kept, -5]),
        (77, grid, 33, [4096, 128256, kept, -5]),
    ]
    assert compiled.seen == []


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
    compiled = FakeCompiled(**metadata)
    plan_of(compiled).run([11, 4096])
    assert compiled.seen == [((9, 1, 1), (4096, 128256, 1, KEPT.data_ptr(), -5), 33)]
    assert driver is None or driver.seen == []


def test_a_launch_that_fails_is_not_lost(monkeypatch):
    monkeypatch.setattr(direct, "_driver", lambda: FakeDriver([8, 4, 8, 8, 8, 8], code=700))
    with pytest.raises(RuntimeError, match="cuLaunchKernel returned 700"):
        plan_of(FakeCompiled()).run([11, 4096])

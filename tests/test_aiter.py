"""aiter's backend with stand-ins for the operators: no AMD GPU is here, and nothing ran on one."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from refsampler.backends.aiter import AiterKernel
from refsampler.backends.protocol import Kernel
from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import Request
from tests.kernel_calls import equal_rows as rows

INF, NAN = float("inf"), float("nan")


class FakeOperators:
    """The three operators by their documented rule, without noise: the largest kept id is drawn."""

    def __init__(self):
        self.calls = []

    def _record(self, name, probs, *numbers):
        assert probs.is_contiguous()
        assert probs.dtype is torch.float32
        assert not probs.isnan().any()
        self.calls.append((name, *(None if one is None else len(one) for one in numbers)))

    def top_k_top_p_sampling_from_probs(
        self, probs, indices, k, k_val, p, p_val, deterministic=False
    ):
        assert (indices, k_val, p_val, deterministic) == (None, 0, 0, True)
        self._record("k p", probs, k, p)
        above = probs[:, None, :] > probs[:, :, None]
        kept = above.sum(-1) < k[:, None]
        kept &= (above * probs[:, None, :]).sum(-1) < p[:, None]
        ids = torch.arange(probs.shape[1])
        return torch.where(kept, ids, -1).amax(-1).to(torch.int32)

    def top_p_sampling_from_probs(self, probs, indices, p, p_val, deterministic=False):
        assert (indices, p_val, deterministic) == (None, 0, True)
        self._record("p", probs, p)
        return probs.argmax(-1).to(torch.int32)

    def top_k_renorm_probs(self, probs, k, k_val):
        assert k_val == 0
        self._record("k", probs, k)
        return torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[1]).float()


@pytest.fixture
def operators(monkeypatch):
    for name in ("aiter", "aiter.ops", "aiter.ops.sampling"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    fake = FakeOperators()
    monkeypatch.setattr(torch, "ops", SimpleNamespace(aiter=fake))
    return fake


@pytest.fixture
def kernel(operators):
    return AiterKernel("cpu")


@pytest.mark.parametrize(
    ("k", "p", "calls"),
    [
        (3, None, [("k", 4)]),
        (None, 0.5, [("p", 4)]),
        (3, 0.5, [("k p", 4, 4)]),
        (None, None, []),
    ],
)
def test_each_kind_of_batch_gets_vllms_call(kernel, operators, k, p, calls):
    logits = torch.eye(4, 9).log()
    ids = kernel.draw(logits, rows(4, k, p)).ids
    assert ids.tolist() == [0, 1, 2, 3]
    assert ids.shape == (4,)
    assert operators.calls == calls


def test_top_p_is_measured_on_the_whole_row(kernel):
    """.3, .2 and fifty times .01, k = 2, p = .5: 0 lies above id 0 and .3 above id 1, both kept."""
    probs = torch.tensor([0.3, 0.2] + [0.01] * 50)
    assert kernel.draw(probs.log()[None], rows(1, 2, 0.5)).ids.tolist() == [1]
    asked = [Request(SamplingParams(top_k=2, top_p=0.5))]
    declared = target_law(probs.log()[None], asked, kernel.capabilities.semantics)
    assert declared.core.nonzero()[:, 1].tolist() == [0, 1]
    assert target_law(probs.log()[None], asked).core.nonzero()[:, 1].tolist() == [0]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_aiter_cannot_take_goes_to_torch(kernel, operators, bad):
    x = torch.eye(3, 9).log()
    assert kernel.draw(x, rows(3, 3, 0.5, seeded=[1])).ids.tolist() == [0, 1, 2]
    x[1, 4] = bad
    ids = kernel.draw(x, rows(3, 3, 0.5)).ids.tolist()
    assert (ids[0], ids[2]) == (0, 2)
    assert kernel.draw(torch.zeros(0, 9), rows(0, 3)).ids.shape == (0,)
    assert operators.calls == []


def test_other_layouts_and_dtypes_are_copied(kernel, operators):
    logits = torch.eye(9, 4, dtype=torch.bfloat16).t()
    kernel.draw(logits, rows(4, 3, 0.5))
    assert operators.calls == [("k p", 4, 4)]


def test_what_it_declares_and_refuses(kernel):
    assert isinstance(kernel, Kernel)
    assert kernel.capabilities.semantics.top_p_mass == "joint"
    assert "not run" in kernel.capabilities.version
    with pytest.raises(TypeError, match="float64"):
        kernel.draw(torch.zeros(1, 4, dtype=torch.float64), rows(1, 3))
    with pytest.raises(ValueError, match=r"logits.shape = \(4,\)"):
        kernel.draw(torch.zeros(4), rows(1, 3))


def test_a_machine_without_aiter_is_told_where_it_comes_from(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiter", None)
    with pytest.raises(ModuleNotFoundError, match="ROCm images"):
        AiterKernel("cpu")

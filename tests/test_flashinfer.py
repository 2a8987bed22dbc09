"""FlashInfer's backend on a CPU: which call a batch gets and what never reaches FlashInfer.

The stand-in records its calls and returns the argmax; FlashInfer itself runs on the GPU only.
"""

import subprocess
import sys
import zipfile
from types import ModuleType

import pytest
import torch

from refsampler.backends import dispatch, flashinfer
from refsampler.backends.dispatch import Path, Situation, choose
from refsampler.backends.flashinfer import FlashInferKernel, with_logits_sampler
from refsampler.backends.flashinfer_bundle import bundle, reached
from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Drawn, Feature, Fold, Kernel
from tests.kernel_calls import equal_rows as rows

INF, NAN = float("inf"), float("nan")


class FakeSampling(ModuleType):
    """FlashInfer's four calls; refuses what FlashInfer refuses or cannot take."""

    def __init__(self):
        super().__init__("flashinfer.sampling")
        self.calls = []

    def _take(self, name, x, *columns, deterministic):
        assert deterministic
        assert x.shape[0] > 0, "invalid argument"
        assert x.is_contiguous()
        assert x.dtype is torch.float32
        assert not x.isnan().any()
        assert bool(x.amax(-1).isfinite().all())
        if name.endswith("probs"):
            torch.testing.assert_close(x.sum(-1), torch.ones(len(x)))
        assert all(len(one) == len(x) for one in columns)
        self.calls.append((name, len(x)))
        return x.argmax(-1).to(torch.int32)

    def sampling_from_logits(self, x, *, deterministic):
        return self._take("logits", x, deterministic=deterministic)

    def top_k_sampling_from_probs(self, x, k, *, deterministic):
        return self._take("k probs", x, k, deterministic=deterministic)

    def top_p_sampling_from_probs(self, x, p, *, deterministic):
        return self._take("p probs", x, p, deterministic=deterministic)

    def top_k_top_p_sampling_from_logits(self, x, k, p, *, deterministic):
        return self._take("k p logits", x, k, p, deterministic=deterministic)


class Seeded:
    """What samples batches with seeds: id 1 throughout."""

    capabilities = NativeKernel().capabilities

    def draw(self, logits, _rows):
        return Drawn(torch.ones(len(logits), dtype=torch.int64))


@pytest.fixture
def fake(monkeypatch):
    package = ModuleType("flashinfer")
    sampling = FakeSampling()
    vars(package).update(__version__="0.0.test", sampling=sampling)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", sampling)
    return sampling


def made(**options):
    return FlashInferKernel("cpu", fallback=Seeded(), **options)


@pytest.mark.parametrize(
    ("k", "p", "call"),
    [
        (3, None, "k probs"),
        (None, 0.5, "p probs"),
        (3, 0.5, "k p logits"),
    ],
)
def test_each_kind_of_batch_gets_vllms_call(fake, k, p, call):
    ids = made().draw(torch.eye(4, 9) * 5, rows(4, k, p)).ids
    assert fake.calls == [(call, 4)]
    assert ids.tolist() == [0, 1, 2, 3]
    assert ids.dtype is torch.int32


def test_without_a_filter_torch_races_unless_the_logits_sampler_is_asked_for(fake):
    certain = torch.eye(4, 9).log()
    assert made().draw(certain, rows(4)).ids.tolist() == [0, 1, 2, 3]
    assert fake.calls == []
    assert made(logits_sampler=True).draw(certain, rows(4)).ids.tolist() == [0, 1, 2, 3]
    assert fake.calls == [("logits", 4)]


@pytest.mark.parametrize(("k", "p"), [(3, None), (None, 0.5), (3, 0.5), (None, None)])
def test_one_seed_sends_the_whole_batch_to_the_fallback(fake, k, p):
    ids = made(logits_sampler=True).draw(torch.eye(3, 9), rows(3, k, p, seeded=[1])).ids
    assert ids.tolist() == [1, 1, 1]
    assert fake.calls == []


@pytest.mark.parametrize(
    ("installed", "path"), [({Path.TRITON}, Path.TRITON), (set(), Path.NATIVE)]
)
def test_the_fallback_is_the_dispatch_tables(fake, monkeypatch, installed, path):
    monkeypatch.setattr(dispatch, "_is_there", installed.__contains__)
    triton = Seeded()
    monkeypatch.setattr(flashinfer, "resolve", lambda name: {"triton": triton}[name])
    kernel = FlashInferKernel("cuda")
    assert choose(Situation("cuda", seeds=True)).path is path
    ids = kernel.draw(torch.eye(2, 9).log(), rows(2, 3, seeded=[0])).ids
    assert ids.tolist() == ([1, 1] if path is Path.TRITON else [0, 1])


def test_what_the_table_does_not_send_here():
    """Processed modes and float64 are asked of a whole engine, so `opened` decides them."""
    everything = frozenset(Path).__contains__
    plain = Situation("cuda", architecture="sm90")
    assert choose(plain, everything).path is Path.FLASHINFER
    for asked in ("processed", "fp64", "seeds"):
        situation = Situation("cuda", architecture="sm90", **{asked: True})
        assert choose(situation, everything).path is Path.TRITON


def test_zero_rows_do_not_reach_flashinfer(fake):
    ids = made().draw(torch.zeros(0, 9), rows(0, 3, 0.5)).ids
    assert (ids.shape, ids.dtype, fake.calls) == ((0,), torch.int32, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_layouts_and_dtypes_are_copied(fake, dtype):
    logits = torch.eye(9, 4, dtype=dtype).t()
    before = logits.clone()
    assert made().draw(logits, rows(4, 3, 0.5)).ids.tolist() == [0, 1, 2, 3]
    assert torch.equal(logits, before)


@pytest.mark.parametrize(("k", "p"), [(3, None), (None, 0.5), (3, 0.5), (None, None)])
def test_rows_that_are_not_finite_are_replaced(fake, k, p):
    """+inf gives its id, NaN the largest number, nothing finite id 0; others stay."""
    x = torch.eye(5, 9) * 5
    x[0, 6] = INF
    x[1, 0] = NAN
    x[2] = -INF
    x[3] = NAN
    ids = made(logits_sampler=True).draw(x, rows(5, k, p)).ids
    assert ids.tolist() == [6, 1, 0, 0, 4]


def test_large_batches_are_split_by_rows(fake, monkeypatch):
    monkeypatch.setattr(flashinfer, "_MOST_ELEMENTS", 20)
    ids = made().draw(torch.eye(5, 9) * 5, rows(5, 3, 0.5)).ids
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert fake.calls == [("k p logits", 2), ("k p logits", 2), ("k p logits", 1)]


def test_what_it_declares(fake):
    kernel = made()
    assert isinstance(kernel, Kernel)
    declared = kernel.capabilities
    assert (declared.semantics.top_p_ties, declared.semantics.top_k_ties) == ("all", "all")
    assert declared.by_path["native"].top_p_ties == "count"
    assert declared.folds == {Fold.TOP_K, Fold.TOP_P}
    assert Feature.PROCESSED not in declared.features
    assert "0.0.test" in declared.version
    assert made(logits_sampler=True).capabilities.floor > declared.floor


def test_refusals_name_the_value(fake):
    with pytest.raises(TypeError, match=r"float64.*bfloat16, float16, float32"):
        made().draw(torch.zeros(1, 4, dtype=torch.float64), rows(1, 3))
    with pytest.raises(ValueError, match=r"logits.shape = \(4,\)"):
        made().draw(torch.zeros(4), rows(1, 3))


def test_a_machine_without_flashinfer_is_told_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'refsampler\[flashinfer\]'"):
        with_logits_sampler()


def test_importing_the_module_imports_no_flashinfer():
    code = "import sys, refsampler.backends.flashinfer; print('flashinfer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_bundle_holds_what_the_samplers_import_and_nothing_else(tmp_path):
    files = {
        "flashinfer/__init__.py": "from . import everything",
        "flashinfer/everything.py": "import cutlass",
        "flashinfer/version.py": "__version__ = '1'",
        "flashinfer/sampling.py": "from .jit.sampling import a\nimport torch\ndef f():\n import x",
        "flashinfer/jit/__init__.py": "from . import attention",
        "flashinfer/jit/attention.py": "",
        "flashinfer/jit/core.py": "try:\n    from ..deep.one import x\nexcept ImportError: ...",
        "flashinfer/jit/env.py": "",
        "flashinfer/jit/sampling.py": "from . import env\nfrom .core import b",
        "flashinfer/deep/__init__.py": "",
        "flashinfer/deep/one.py": "import flashinfer.deep.two",
        "flashinfer/deep/two.py": "",
        "flashinfer/deep/three.py": "",
        "flashinfer_python-1.dist-info/METADATA": "Version: 1",
    }
    for name, text in files.items():
        path = tmp_path / "flashinfer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    left_behind = {"everything.py", "attention.py", "three.py"}
    wanted = {one for one in files if one.rsplit("/", 1)[1] not in left_behind | {"METADATA"}}
    assert reached(tmp_path / "flashinfer") == wanted
    ffi = tmp_path / "ffi" / "tvm_ffi"
    (ffi / "include").mkdir(parents=True)
    (ffi / "core.so").write_text("ffi")
    (ffi / "include" / "a.h").write_text("")
    (tmp_path / "made.so").write_text("module")
    bundle(tmp_path, tmp_path / "made.so", tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as packed:
        assert set(packed.namelist()) == {
            *wanted,
            "flashinfer_python-1.dist-info/METADATA",
            "tvm_ffi/core.so",
            "flashinfer/data/aot/sampling/sampling.so",
        }
        assert b"everything" not in packed.read("flashinfer/__init__.py")


def test_the_stand_in_refuses_what_it_says(fake):
    """Else the guards above would prove nothing."""
    k = torch.ones(1, dtype=torch.int32)
    for x in (torch.full((1, 4), NAN), torch.zeros(1, 4).double(), torch.zeros(0, 4)):
        with pytest.raises(AssertionError):
            fake.top_k_top_p_sampling_from_logits(x, k, k, deterministic=True)
    assert fake.calls == []

"""From a word to a subject, and what is said when there is none."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch

from refsampler.backends import registry
from refsampler.backends.dlpack import ArrayKernel
from refsampler.backends.native import backend as native
from refsampler.backends.protocol import Capabilities, Kernel, Rows
from refsampler.backends.registry import BackendBroken, BackendNotFound, names, resolve
from refsampler.conformance.case import Case
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.subject import OpenSubject
from refsampler.params import SamplingParams
from refsampler.request import Request

KERNEL = """
from refsampler.backends.protocol import Capabilities
class Greedy:
    def __init__(self, name="mine", level=1, device="cpu"):
        self.capabilities = Capabilities(name=name, version="1", level=level, device=device)
    def draw(self, logits, rows):
        return logits.argmax(-1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder whose modules can be imported and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith("_for_a_test")]:
        del sys.modules[name]


def written(folder, text, name="mine_for_a_test"):
    (folder / f"{name}.py").write_text(text)
    return name


def test_built_in_names_are_those_that_the_package_announces():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"][registry.GROUP] == dict(registry.BUILT_IN)
    extras = set(project["project"]["optional-dependencies"])
    assert set(registry.EXTRAS.values()) <= extras


def test_a_name_is_a_subject():
    assert resolve("native") is native


def test_names_come_first_from_here_then_from_other_packages(monkeypatch):
    points = [
        EntryPoint("zeta", "mine_for_a_test:backend", registry.GROUP),
        EntryPoint("native", "elsewhere:impostor", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda **_: EntryPoints(points))
    assert names() == (*registry.BUILT_IN, "zeta")
    assert resolve("native") is native


def test_an_entry_point_is_loaded(folder, monkeypatch):
    written(folder, f"{KERNEL}\nbackend = Greedy()")
    monkeypatch.syspath_prepend(str(folder))
    points = EntryPoints([EntryPoint("zeta", "mine_for_a_test:backend", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **_: points)
    assert resolve("zeta").capabilities.name == "mine"


@pytest.mark.parametrize("attribute", ["backend", "Greedy", "make", "inner.backend"])
def test_a_module_of_the_current_folder_gives_a_subject_a_class_or_a_factory(folder, attribute):
    module = written(
        folder,
        f"{KERNEL}\nbackend = Greedy()\ndef make(): return Greedy()\n"
        "class inner: backend = Greedy()",
    )
    subject = resolve(f"{module}:{attribute}")
    assert isinstance(subject, Kernel)
    assert not isinstance(subject, type)
    assert subject.capabilities.name == "mine"


def test_an_unknown_name_is_answered_with_the_closest_ones():
    with pytest.raises(BackendNotFound, match=r"'nativ' is not known: allowed are native, or mod"):
        resolve("nativ")
    with pytest.raises(
        BackendNotFound,
        match=r"allowed are aiter, cpu, flashinfer, flashinfer-verifier, llama-cpp, .*, vllm-triton, or mod",
    ):
        resolve("qqqqqq")


def test_a_missing_module_or_attribute_is_named(folder):
    module = written(folder, KERNEL)
    with pytest.raises(BackendNotFound, match="no module 'absent_module'"):
        resolve("absent_module:backend")
    with pytest.raises(BackendNotFound, match="has no attribute 'absent'"):
        resolve(f"{module}:absent")


def test_a_missing_heavy_package_is_answered_with_its_extra(folder):
    module = written(folder, "raise ModuleNotFoundError('gone', name='numba.core')")
    with pytest.raises(BackendBroken, match=r"gone; pip install 'refsampler\[cpu\]'"):
        resolve(f"{module}:backend")
    other = written(folder, "import a_package_nobody_has", "other_for_a_test")
    with pytest.raises(BackendBroken, match=r"No module named 'a_package_nobody_has'$"):
        resolve(f"{other}:backend")


def test_whatever_a_module_or_a_factory_raises_is_reported(folder):
    module = written(folder, "def make(): raise OSError('no device')")
    with pytest.raises(BackendBroken, match="cannot be opened: OSError: no device"):
        resolve(f"{module}:make")
    other = written(folder, "1 / 0", "other_for_a_test")
    with pytest.raises(BackendBroken, match="ZeroDivisionError"):
        resolve(f"{other}:make")


@pytest.mark.parametrize(
    ("made", "lacks"),
    [
        ("object()", "object has capabilities of type NoneType"),
        ("Greedy(level=2)", "Greedy declares level 2 and has no method 'sample'"),
        ("Greedy(level=3)", "Greedy declares level 3 and has no method 'open'"),
        ("Greedy(device='toaster')", "declares device = 'toaster'"),
        ("Greedy(level=4)", "level = 4 is refused"),
    ],
)
def test_an_object_that_is_no_subject_is_told_what_it_lacks(folder, made, lacks):
    module = written(folder, f"{KERNEL}\ndef make(): return {made}")
    with pytest.raises(BackendBroken, match=lacks):
        resolve(f"{module}:make")


def test_heavy_packages_are_not_imported_by_the_registry():
    script = (
        "import sys\n"
        "from refsampler.backends.registry import names, resolve\n"
        "names(), resolve('native')\n"
        "assert not {'transformers', 'triton', 'numba'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])


def test_a_numpy_function_is_a_kernel():
    # The second best id of each row; with processed logits that keep only it.
    def second(logits, rows):
        assert isinstance(logits, np.ndarray)
        assert rows.top_k.tolist() == [2, 2]
        assert rows.top_p is None
        assert rows.seeded.tolist() == [True, False]
        assert rows.seed.tolist() == [5, 0]
        ids = np.argsort(logits)[:, -2]
        kept = np.full_like(logits, -np.inf)
        kept[[0, 1], ids] = logits[[0, 1], ids]
        return ids, kept

    kernel = ArrayKernel(second, Capabilities(name="second", version="1", level=1))
    case = Case(
        logits=LogitsRecipe(
            3, (RowRecipe(ids=(0, 2), values=(2.0, 1.0)), RowRecipe(ids=(1,), values=(9.0,)))
        ),
        requests=(Request(SamplingParams(top_k=2, seed=5)), Request(SamplingParams(top_k=2))),
    )
    draw = OpenSubject(kernel, 0).sample(case, 0, case.id)
    assert draw.ids[0] == 2
    assert draw.ids[1] in (0, 2)
    assert not draw.form
    assert not draw.changed
    assert draw.processed is not None
    assert draw.processed.tolist()[0] == [-np.inf, -np.inf, 1.0]


def test_a_numpy_function_sees_the_callers_memory_and_may_give_ids_alone():
    seen = []

    def first(logits, _):
        seen.append(logits)
        return logits.argmax(-1).astype(np.int32)

    kernel = ArrayKernel(first, Capabilities(name="first", version="1", level=1))
    logits = torch.tensor([[0.0, 1.0]])
    zero = torch.zeros(1, dtype=torch.int64)
    drawn = kernel.draw(logits, Rows(None, None, None, None, zero, zero, zero.bool(), {}))
    assert drawn.ids.dtype == torch.int32
    assert drawn.ids.tolist() == [1]
    assert drawn.processed_logits is None
    assert seen[0].ctypes.data == logits.data_ptr()

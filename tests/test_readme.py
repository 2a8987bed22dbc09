import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
import torch

from tests.documents import empty_folder, run_line

__all__ = ["empty_folder"]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def first_column(heading: str) -> list[str]:
    """The cells below a table's heading cell, without back quotes."""
    table = README.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip().strip("`") for row in table]


def executed(file: str) -> dict[str, Any]:
    """What the README's example with this file name defines."""
    (code,) = re.findall(rf"```python\n(# {re.escape(file)}\n.*?)```", README, re.DOTALL)
    namespace: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    exec(compile(code, "README.md", "exec"), namespace)  # noqa: S102 - the README's own example
    return namespace


@pytest.fixture
def adapter():
    return executed("my_module.py")["backend"]


def rows(top_k=None, top_p=None):
    return SimpleNamespace(
        top_k=None if top_k is None else torch.tensor(top_k, dtype=torch.int32),
        top_p=None if top_p is None else torch.tensor(top_p),
    )


def drawn(adapter, logits, **filters) -> list[set[int]]:
    """The ids that 200 draws reach, row by row. A kept id here has probability 1/4 or more, so each
    misses one with probability (3/4)^200 < 1e-24."""
    seen = [adapter.draw(torch.tensor(logits), rows(**filters)) for _ in range(200)]
    return [set(ids.tolist()) for ids in torch.stack(seen, dim=1)]


def test_the_adapter_is_a_level_one_kernel(adapter):
    from refsampler.backends.protocol import Kernel

    assert isinstance(adapter, Kernel)
    assert adapter.capabilities.level == 1


def test_the_adapter_filters_as_the_contract_says(adapter):
    torch.manual_seed(0)
    flat, steps = [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, -9.0]
    assert drawn(adapter, [flat, flat]) == [{0, 1, 2, 3}] * 2
    assert drawn(adapter, [steps, flat], top_k=[1, 4]) == [{1, 2}, {0, 1, 2, 3}]
    assert [len(ids) for ids in drawn(adapter, [flat, flat], top_p=[0.5, 0.51])] == [2, 3]
    # After top-k the two survivors weigh 1/2 each: p = 1/2 leaves one, p = 1 is no filter.
    assert [len(s) for s in drawn(adapter, [steps] * 2, top_k=[2, 2], top_p=[0.5, 1.0])] == [1, 2]


def test_the_adapter_cuts_nothing_at_one(adapter, monkeypatch):
    # Id 1 has mass e^-50 and would win with this noise; float64 sums of the mass above it are 1.
    noise = torch.tensor([1.0, 1e-30], dtype=torch.float64)
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self: self.copy_(noise))
    logits = torch.tensor([[0.0, -50.0], [0.0, -50.0]])
    assert adapter.draw(logits, rows(top_p=[1.0, 0.5])).tolist() == [1, 0]


def test_the_adapter_survives_what_a_kernel_must(adapter):
    broken = torch.full((2, 3), torch.nan)
    broken[1] = -torch.inf
    assert set(adapter.draw(broken, rows()).tolist()) <= {0, 1, 2}
    assert adapter.draw(torch.zeros(0, 3), rows()).shape == (0,)


def test_a_wrong_kernel_of_ones_own_fails_after_two_commands(empty_folder, monkeypatch):
    check, report = (
        re.search(rf"^\$ (refsampler {name} [^ #]+)", README, re.MULTILINE)[1]  # type: ignore[index]
        for name in ("check", "report")
    )
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    (code,) = re.findall(r"```python\n(# my_module\.py\n.*?)```", README, re.DOTALL)
    wrong = code.replace("values < kth", "values <= kth")
    assert wrong != code
    (empty_folder / "my_module.py").write_text(wrong, "utf-8")
    said = run_line(f"{check} --clause 'top-k.*'  # exit 1")  # of the minute that all clauses take
    assert "FAIL top-k.keep" in said
    assert "replay    refsampler replay" in said
    run_line(report)
    assert "f-top-k.keep" in (empty_folder / "reports/runs/my-kernel/report.html").read_text(
        "utf-8"
    )
    sys.modules.pop("my_module", None)


def test_the_test_file_has_a_test_for_each_clause(adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_module", SimpleNamespace(backend=adapter))
    (mark,) = executed("test_my_module.py")["test_sampler"].pytestmark
    names, parameters = mark.args
    assert names == "check"
    assert {one.id for one in parameters} == {
        *(f"{group}.{rule}" for group in ("top-k", "top-p") for rule in ("keep", "ties", "off")),
        "not-selected",
    }
    assert {one.values[0].wanted.backend for one in parameters} == {"my_module:backend"}


def test_options_exist():
    from refsampler.conformance import plugin
    from refsampler.conformance.commands.check import check

    known: set[str] = set()
    group = SimpleNamespace(addoption=lambda *names, **_: known.update(names))
    parser = SimpleNamespace(getgroup=lambda *_: group)
    plugin.pytest_addoption(cast("pytest.Parser", parser))
    assert set(re.findall(r"`pytest (--[a-z-]+) ", README)) == {"--backend"} <= known
    assert "--junit" in {name for option in check.params for name in option.opts}


def test_statuses_and_exit_codes_are_those_of_the_program():
    from refsampler.conformance.verdict import ExitCode, Status

    assert set(first_column("status")) == {status.name for status in Status}
    codes = [value for name, value in vars(ExitCode).items() if name.isupper()]
    assert first_column("exit code") == [str(code) for code in sorted(codes)]


def test_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(first_column("extra")) == set(project["optional-dependencies"])


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", README + CONTRIBUTING + script))
    assert {"check", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_commands_exist():
    from refsampler.conformance.cli import main

    named = set(re.findall(r"\brefsampler ([a-z][a-z-]*)", README + CONTRIBUTING))
    assert {"check", "clauses", "explain"} <= named
    assert named <= set(main.list_commands(click.Context(main)))

"""The one command for a person with a GPU, without one."""

import importlib.util
import subprocess
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from refsampler.backends.gpu_check import PATHS, main, paths_for
from refsampler.backends.registry import BUILT_IN


def test_every_path_is_a_backend_and_rocm_never_meets_flashinfer():
    assert all(path.spec in BUILT_IN or ":" in path.spec for path in PATHS)
    on_rocm = {"native", "native-fp64", "triton", "triton-verifier", "aiter"}
    assert {path.name for path in paths_for("rocm")} == on_rocm
    assert "aiter" not in {path.name for path in paths_for("cuda")}


def test_without_a_gpu_nothing_runs_and_the_exit_code_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 1
    assert "no GPU: nothing was run" in done.output


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (1, 1)])
def test_what_is_missing_is_named_and_a_failure_is_not_lost(monkeypatch, code, exit_code):
    ran = []

    def run(command, *, check):
        ran.append(command)
        failed = code if "triton" in command else 0
        return SimpleNamespace(returncode=failed)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(subprocess, "run", run)
    installed = {"triton": object()}
    monkeypatch.setattr(importlib.util, "find_spec", installed.get)
    done = CliRunner().invoke(main, ["--no-bench", "--report", "there"])
    assert done.exit_code == exit_code
    assert "flashinfer: not run" in done.output
    assert [command[4] for command in ran] == [
        "refsampler.backends.native:on_gpu",
        "refsampler.backends.native:on_gpu_fp64",
        "triton",
        "triton-verifier",
    ]
    assert str(ran[-1][-1]).endswith("triton-verifier")

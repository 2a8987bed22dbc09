"""The Triton kernels compiled for AMD GPUs, none of which is here: resources only, nothing runs."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed: not run")

from refsampler.backends.triton.targets import TARGETS, Resources, Target


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.arch)
def test_no_kernel_uses_scratch_spills_vectors_or_exceeds_shared_memory(target):
    """In a process of its own: here Triton may have been told to interpret."""
    done = subprocess.run(
        [sys.executable, "-m", "refsampler.backends.triton.targets", target.arch],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if f"| {target.arch} |" in line]
    assert len(table) == 13


def test_each_broken_limit_is_named():
    target = Target("gfx", 64, shared=65536)
    right = Resources(100, 0, 20, 0, 65536, 1)
    assert right.broken_limits(target) == ()
    wrong = Resources(512, 3, 0, 16, 65537, 1)
    assert wrong.broken_limits(target) == (
        "16 bytes of scratch",
        "3 spilled vector registers",
        "65537 of 65536 shared bytes",
    )

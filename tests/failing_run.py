"""A stored run of a wrong backend with a hostile name, in a few seconds."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from refsampler.conformance.cli import main

EVIL = '<script>alert("1")</script>'


def failing_run(folder: Path, backend: str = "HostileName", code: int = 1) -> Path:
    """Check laws of few draws and return the folder of the report; a temperature is 5 % too high."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("refsampler.conformance.plan.LEAST_SECONDS", {"quick": 0.01})
        patch.setattr("refsampler.conformance.plan.SECONDS", {"quick": 0.4})
        words = ["check", f"tests.broken_samplers:{backend}", "--clause", "draw.law"]
        words += ["--seed", "3", "--in-process", "--report", str(folder)]
        ran = CliRunner().invoke(main, words)
    assert ran.exit_code == code, ran.output
    return folder

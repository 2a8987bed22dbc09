"""Settings for all tests: shapes and types of the reference are checked at run time."""

import os
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

from tests import shapes

REFERENCE = Path(__file__).parents[1] / "refsampler"


# Before the first import of a reference module, and only for those that state shapes: the others
# validate their input themselves, which a check in front of them would hide.
SHAPED = [path.stem for path in REFERENCE.glob("*.py") if "jaxtyping" in path.read_text("utf-8")]
jaxtyping.install_import_hook([f"refsampler.{name}" for name in SHAPED], "tests.shapes.checked")

# Triton decides when it is imported; without a GPU numpy interprets its kernels.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples on every run; no deadline, because the machine's load is no property of ours.
hypothesis.settings.register_profile(
    "tests", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Check the shapes of every test's first calls."""
    shapes.switch(on=True)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan laws of a few thousand draws, some of which can be accepted early."""
    monkeypatch.setattr("refsampler.conformance.plan.LEAST_SECONDS", {"quick": 0.01})
    monkeypatch.setattr("refsampler.conformance.plan.SECONDS", {"quick": 0.4})


@pytest.fixture(scope="session")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a failing run of a few laws, by a backend whose name is markup."""
    from tests.failing_run import failing_run

    return failing_run(tmp_path_factory.mktemp("failing"))

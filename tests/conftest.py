"""Settings for all tests: shapes and types of the reference are checked at run time."""

from pathlib import Path

import hypothesis
import jaxtyping

ROOT = Path(__file__).parents[1]

# Before the first import of a reference module. `backends` and `conformance` call third-party code
# through protocols, where a run-time check would only test the checker.
jaxtyping.install_import_hook(
    [f"refsampler.{path.stem}" for path in sorted((ROOT / "refsampler").glob("[a-z]*.py"))],
    "beartype.beartype",
)

# The same examples on every run; no deadline, because the machine's load is no property of ours.
hypothesis.settings.register_profile(
    "tests", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("tests")

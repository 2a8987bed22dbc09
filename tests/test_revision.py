"""The commit that a report names is one of this suite, or none."""

import subprocess
from pathlib import Path

import refsampler
from refsampler.conformance.reporting.stored import read_run
from refsampler.conformance.revision import revision


def test_a_package_in_somebody_elses_repository_names_no_commit(tmp_path, monkeypatch):
    named = ("-c", "user.name=somebody", "-c", "user.email=somebody@else.where")
    for words in (("init", "-q"), (*named, "commit", "-q", "--allow-empty", "-m", "theirs")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    inside = tmp_path / ".venv" / "refsampler" / "__init__.py"
    inside.parent.mkdir(parents=True)
    monkeypatch.setattr(refsampler, "__file__", str(inside))
    assert revision.__wrapped__() == ""


def test_a_report_names_the_commit_of_a_checkout(failing):
    root = Path(refsampler.__file__).parents[1]
    asked = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False).stdout
    named = read_run(failing).header.revision.removesuffix("-dirty")
    assert head.startswith(named)
    assert bool(named) == (root / ".git").exists()

"""Scripts about verifiers: they end with 1 for the wrong adapter and with 0 for a right one.

They run in this process, but for one that a whole check writes.
"""

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from refsampler.backends.native_verifier import NativeVerifier
from refsampler.backends.reference import ReferenceEngine
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import speculative
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.checks.steps import plan_steps
from refsampler.conformance.cli import main
from refsampler.conformance.scripts.drafted import about_drafts, drafted_script
from refsampler.conformance.scripts.steps import steps_script
from refsampler.conformance.sequential import SPLIT
from refsampler.conformance.subject import OpenSubject
from tests import broken_verifiers

SEED = 12
ROOT = Path(__file__).parents[1]
NATIVE = "refsampler.backends.native_verifier:NativeVerifier"
BROKEN = "tests.broken_verifiers:"
BANK = "refsampler.conformance.faults.subjects:"


@pytest.fixture
def ended(tmp_path, capsys):
    def run(text):
        """Return how a script ends and what it prints."""
        path = tmp_path / "script.py"
        path.write_text(text)
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path))
        return end.value.code, capsys.readouterr().out

    return run


def planned(capabilities, name):
    steps = plan_steps(capabilities, "quick", SPLIT, owned_clauses(capabilities))
    (found,) = [one for one in steps if one.check.name == name]
    return found


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("spec", "check", "shown"),
    [
        (f"{BROKEN}RecoversFromTarget", "own-drafts", "no right verifier gives ids [0] for"),
        (
            f"{BROKEN}AlwaysAccepts",
            "own-seeded-drafts",
            "1 drafts, id 0, then id 0: expected 0.0268",
        ),
        (f"{BROKEN}OneRace", "uneven-drafts", " drafts, id "),
        (f"{BROKEN}OneUniform", "certain-drafts", "2 drafts, id 1, then id 2: expected 0.15"),
        (f"{BANK}B052", "draft-laws", " of 16 of the law: expected 0.0625"),
    ],
)
def test_laws_of_steps(ended, spec, check, shown):
    """False alarm of the right one: 1e-6 each, as the scripts say; their seeds are fixed."""
    # a fraction of what a user's script draws
    one = replace(planned(NativeVerifier().capabilities, check), calls=1, rows=512)
    text = steps_script(one, spec, NativeVerifier().capabilities, SEED)
    code, printed = ended(text)
    assert code == 1, printed
    assert shown in printed
    right = text.replace(f"{spec.partition(':')[0]}", NATIVE.partition(":")[0])
    code, printed = ended(right.replace(f'("{spec.partition(":")[2]}")', '("NativeVerifier")'))
    assert code == 0, printed


@pytest.mark.statistical
def test_laws_of_steps_of_an_engine(ended):
    """False alarm: 1e-6, as the script says; its seeds are fixed."""
    engine = ReferenceEngine().capabilities
    one = planned(engine, "own-drafts")
    one = replace(one, calls=1, rows=64)
    text = steps_script(one, "refsampler.backends.reference:engine", engine, SEED)
    code, printed = ended(text)
    assert code == 0, printed
    assert f"drawing {4 * 64} steps at most: its own drafts" in printed


def exact(name, check_name):
    """The script of the first case of an exact check that a broken verifier fails."""
    subject = OpenSubject(getattr(broken_verifiers, name)(), SEED)
    (check,) = [one for one in speculative.CHECKS if one.name == check_name]
    assert about_drafts(check)
    for case in check.cases(subject.capabilities, SEED):
        for found in judge_case(subject, check, case).findings:
            words = {"clause": found.clause, "expected": found.expected, "seen": found.seen}
            return drafted_script(check, case, BROKEN + name, subject.capabilities, SEED, **words)
    raise AssertionError("nothing fails")


@pytest.mark.parametrize(
    ("name", "check", "shown"),
    [
        ("AlwaysAccepts", "disjoint-laws", "request 1: id 0 at position 1, draft 0, is followed"),
        (
            "RecoversFromTarget",
            "disjoint-laws",
            "id 4 at position 1, draft 4, is the last; that may be [5]",
        ),
        ("InPlace", "greedy-drafts", "the logits handed over were changed"),
        ("Backwards", "draft-positions", "request 1 of 3 drafts gets [-1, 2, 5, 7]"),
        ("Raises", "draft-positions", "RuntimeError: empty"),
        ("WrongError", "refused-beside-drafts", "RuntimeError in place of a ValueError: no"),
        ("DrawsFromNeighbours", "seeded-drafts", "beside others"),
        ("SameUniforms", "fresh-steps", "calls 1 and 2 accept the same drafts of all 256"),
        ("SameRaces", "fresh-steps", " ids in place of rejected drafts"),
    ],
)
def test_single_steps(ended, name, check, shown):
    text = exact(name, check)
    code, printed = ended(text)
    assert code == 1, printed
    assert shown in printed
    code, printed = ended(text.replace(f'("{name}")', '("RightVerifier")'))
    assert code == 0, printed


@pytest.mark.parametrize(("name", "clause"), [("B052", "spec.draft-law"), ("B039", "spec.history")])
def test_a_check_writes_a_script_that_runs_alone(tmp_path, monkeypatch, name, clause):
    monkeypatch.chdir(tmp_path)
    words = ["check", BANK + name, "--clause", clause, "--seed", "3", "--in-process"]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 1, ran.output
    (script,) = tmp_path.glob(f"reports/runs/*/repro/{clause}-*.py")
    assert f"refsampler replay {script.stem.rpartition('-')[2]}" in ran.output
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stdout + done.stderr

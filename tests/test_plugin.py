"""The pytest plugin in a folder of its own: `--backend`, `parametrize_with_checks`, JUnit, xdist."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

import refsampler.law
from refsampler.backends.registry import BackendBroken
from refsampler.clauses import ClauseId, Level, UnknownClauseError
from refsampler.conformance import gate_run
from refsampler.conformance.decisions import Decision
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.gate import (
    ClauseFailed,
    ClauseInconclusive,
    Gate,
    RunFailed,
    Wanted,
    settle,
)
from refsampler.conformance.pytest import parametrize_with_checks
from refsampler.conformance.reporting.results import clause_result
from refsampler.conformance.results import ClauseResult, RunResult, properties
from refsampler.conformance.verdict import LogE, Power, Status, Verdict

# A module that an inner session imports first is forgotten after it, and a later import would make
# its classes twice.
import_module("refsampler.conformance.commands.check")

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
QUICK = ("--clause", "top-k.*", "--sampler-seed", "3", "--sampler-in-process")
KERNELS = """
from pathlib import Path
from refsampler.conformance.faults.right import RightKernel
from tests.broken_samplers import OneMore

class CrashingKernel(RightKernel):
    def draw(self, logits, rows):
        raise RuntimeError("no memory <&> \\x1b[31m")

def counted():
    with Path("opened.txt").open("a") as file:
        file.write("opened\\n")
    return OneMore()

wrong = OneMore()
"""


@pytest.fixture
def folder(pytester, monkeypatch):
    """A folder in which pytest finds the plugin by the entry point of the project's file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = "".join(f"{k} = {v}\n" for k, v in project["entry-points"]["pytest11"].items())
    installed = pytester.mkdir("refsampler-0.dist-info")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: refsampler\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{points}")
    pytester.makepyfile(kernels_here=KERNELS)
    pytester.syspathinsert()
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{pytester.path}")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return pytester


def elements_of(path):
    return ET.parse(path).iter("testcase")  # noqa: S314 - a file that the test wrote


def cases_of(path):
    """Name of a test case -> its properties and the name of its outcome."""
    found = {}
    for case in elements_of(path):
        held = {one.get("name"): one.get("value") for one in case.iter("property")}
        outcome = [one.tag for one in case if one.tag != "properties"]
        found[case.get("name")] = (held, outcome)
    return found


def test_a_right_backend_passes_in_a_folder_without_tests(folder):
    ran = folder.runpytest_inprocess("--backend", "native", *QUICK, "--junitxml", "out.xml")
    ran.assert_outcomes(passed=4)
    ran.stdout.fnmatch_lines(
        [
            "refsampler: native: native * on cpu, profile quick, run seed 3, *at most 1e-09",
            "collected 4 items",
            "refsampler/native ....*",
            "native: 4 PASS; run seed 3",
        ]
    )
    found = cases_of("out.xml")
    assert set(found) == {*("top-k.keep", "top-k.ties", "top-k.off", "not-selected")}
    held, outcome = found["top-k.ties"]
    assert held["clause"] == "top-k.ties"
    assert held["status"] == "PASS"
    assert int(held["draws"]) > 0
    assert not outcome
    report = Path("reports/runs/native-top-k/report.jsonl").read_text()
    assert '"run_seed":3' in report
    assert '"clause":"top-k.ties"' in report


def test_a_wrong_backend_fails_with_expected_seen_sure_smallest_replay(folder):
    wrong = "kernels_here:wrong"
    options = ("--backend", wrong, "--backend", "native", "--sampler-report", "out", "-v")
    ran = folder.runpytest_inprocess(*options, *QUICK, "--junitxml", "out.xml")
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    text = ran.stdout.str()
    assert f"refsampler/{wrong}::top-k.keep FAILED" in text
    assert "refsampler/native::top-k.keep PASSED" in text
    failure = text.partition("\nFAIL top-k.keep\n")[2].splitlines()[:6]
    assert [line.split()[0] for line in failure] == [
        *("expected", "seen", "sure", "smallest", "replay", "script")
    ]
    assert failure[-2].endswith("--report out/kernels_here-wrong-top-k")
    script = Path(failure[-1].split()[-1])
    assert script.parent == Path("out/kernels_here-wrong-top-k/repro")
    assert script.is_file()
    assert "Traceback" not in text
    assert Path("out/kernels_here-wrong-top-k/report.jsonl").is_file()
    cases = elements_of("out.xml")
    (failed,) = [
        case
        for case in cases
        if case.get("name") == "top-k.keep" and case.find("failure") is not None
    ]
    assert failed.get("classname") == f"refsampler.{wrong}"
    assert "FAIL top-k.keep" in failed.find("failure").text


def test_a_law_states_its_evidence_and_what_it_would_see():
    power = (Power("temperature +1 %", 0.99999999),)
    verdict = Verdict(
        ClauseId("draw.law"),
        Status.FAIL,
        None,
        "c1",
        LogE(46.25, 21.0),
        "",
        900,
        power,
        2.5,
        "replay c1",
    )
    one = clause_result(Decision(verdict, Level.MUST, expected="a law", seen="another"), " --x")
    assert dict(properties(one)) == {
        "clause": "draw.law",
        "status": "FAIL",
        "log_e": "46.25",
        "draws": "900",
        "detectable_bias": "temperature +1 % with probability >= 0.999999",
    }
    # 46.25 / ln 10 = 20.1 and 21 / ln 10 = 9.1
    assert "sure      e-value 10^20.1, 10^9.1 needed" in one.text
    assert one.text.endswith("replay    replay c1 --x")


def test_what_was_not_tested_is_skipped_with_its_reason_and_counted(folder):
    ran = folder.runpytest_inprocess(
        "--backend",
        "refsampler.conformance.faults.right:RightKernel",
        "--clause",
        "penalty.*",
        "-rs",
        "--sampler-in-process",
    )
    outcomes = ran.parseoutcomes()
    assert outcomes["passed"] == 1  # nothing outside the selection is broken
    ran.stdout.fnmatch_lines([f"*{outcomes['skipped']} INHERITED*", "*INHERITED: *"])


@pytest.mark.parametrize(
    ("source", "words"),
    [("import no_such_library", "no_such_library"), ("1 / 0", "division by zero"), ("", "backend")],
)
def test_a_backend_that_cannot_be_opened_is_an_error_never_a_skip(folder, source, words):
    folder.makepyfile(unusable_here=source)
    ran = folder.runpytest_inprocess("--backend", "unusable_here:backend", *QUICK)
    ran.assert_outcomes(errors=4)
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    ran.stdout.fnmatch_lines([f"refsampler: ERROR: *{words}*", f"*unusable_here*{words}*"])


@pytest.mark.parametrize("ci", ["", "true"])  # pytest cuts its closing summary only outside CI
def test_a_harness_that_breaks_is_an_error_told_in_full_once(folder, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)

    def broken(*_args, **_options):
        raise ZeroDivisionError("planned by nobody")

    monkeypatch.setattr(gate_run, "make_plan", broken)
    ran = folder.runpytest_inprocess("--backend", "native", *QUICK)
    ran.assert_outcomes(errors=4)
    text = ran.stdout.str()
    assert text.count("harness error: planned by nobody") >= 4
    assert text.count("Traceback") == 1


def test_a_clause_broken_outside_the_selection_fails_too(folder):
    ran = folder.runpytest_inprocess(
        "--backend",
        "kernels_here:CrashingKernel",
        "--clause",
        "top-k.off",
        "--junitxml",
        "o.xml",
    )
    ran.assert_outcomes(failed=2)
    ran.stdout.fnmatch_lines(["INCONCLUSIVE: its cases crashed*", "FAIL output.returns"])
    assert cases_of("o.xml")["top-k.off"][0]["status"] == "INCONCLUSIVE"
    skipping = ("--sampler-inconclusive", "skip", "-k", "top-k.off", "--sampler-in-process")
    again = folder.runpytest_inprocess(
        "--backend", "kernels_here:CrashingKernel", "--clause", "top-k.off", *skipping
    )
    again.assert_outcomes(skipped=1, deselected=1)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("--clause", "no.such", "no clause matches"),
        ("--sampler-seed", "-1", "allowed is a whole number of at least 0"),
    ],
)
def test_options_are_checked(folder, name, value, allowed):
    ran = folder.runpytest_inprocess("--backend", "native", f"{name}={value}")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert name in ran.stderr.str()
    assert value in ran.stderr.str()
    assert allowed in ran.stderr.str()


USER_FILE = """
import pytest
from refsampler.conformance.pytest import parametrize_with_checks
from kernels_here import wrong

@parametrize_with_checks(
    wrong, clause="top-k.*", expected_failures={{"top-k.{expected}": "one id too many, issue 12"}}
)
def test_sampler(check):
    check()
"""


def test_checks_in_a_file_of_the_user(folder):
    folder.makepyfile(test_user=USER_FILE.format(expected="keep"))
    ran = folder.runpytest_inprocess("-rx", "-v", "--sampler-seed", "3", "--junitxml", "out.xml")
    outcomes = ran.parseoutcomes()
    assert outcomes["xfailed"] == 1
    ran.stdout.fnmatch_lines(
        [
            "*::test_sampler?top-k.keep? XFAIL (one id too many, issue 12)*",
            "kernels_here:wrong: *",
        ]
    )
    held, outcome = cases_of("out.xml")["test_sampler[top-k.keep]"]
    assert held["status"] == "FAIL"
    assert held["run_seed"] == "3"
    assert outcome == ["skipped"]  # pytest's word for an expected failure


def test_an_expected_failure_that_passes_fails(folder):
    folder.makepyfile(
        test_user=USER_FILE.format(expected="off").replace("wrong, clause", "'native', clause")
    )
    ran = folder.runpytest_inprocess()
    ran.assert_outcomes(passed=3, failed=1)
    ran.stdout.fnmatch_lines(["*XPASS(strict)*one id too many, issue 12*"])


def test_two_workers_share_each_run(folder):
    by_name = USER_FILE.format(expected="keep").replace(
        "wrong, clause", "'kernels_here:counted', clause"
    )
    folder.makepyfile(test_user=by_name.replace("from kernels_here import wrong", ""))
    options = ("--backend", "kernels_here:counted", "-n", "2", "--junitxml", "out.xml", "-v")
    # Without the header the controller opens no backend.
    ran = folder.runpytest_subprocess(*options, "--no-header", *QUICK)
    ran.assert_outcomes(failed=1, passed=6, xfailed=1)
    text = ran.stdout.str()
    assert "[gw0]" in text
    assert "[gw1]" in text
    # Once for the file, which has expectations of its own, and once for --backend.
    assert Path("opened.txt").read_text() == "opened\n" * 2
    assert cases_of("out.xml")["top-k.keep"][0]["run_seed"] == "3"
    folders = {path.parent.name for path in Path("reports/runs").glob("*/report.jsonl")}
    assert folders == {"kernels_here-counted-top-k", "kernels_here-counted-top-k.-in-tests"}
    assert "kernels_here:counted: 6 PASS, 2 FAIL; run seed 3" in text


def test_expected_failures_of_a_file_and_stale_ones(folder):
    Path("known.toml").write_text(
        '[[expect]]\nclause = "top-k.keep"\nstatus = "fail"\nreason = "one id too many"\n'
        '[[expect]]\nclause = "top-k.off"\nstatus = "fail"\nreason = "long ago"\n'
    )
    options = ("--backend", "kernels_here:wrong", "-rx", "--expectations")
    ran = folder.runpytest_inprocess(*options, "known.toml", *QUICK)
    ran.assert_outcomes(passed=3, xfailed=1)
    ran.stdout.fnmatch_lines(
        [
            "kernels_here:wrong: stale expectation of top-k.off: the clause passes",
            "XFAIL *top-k.keep - expected: one id too many*",
        ]
    )
    Path("empty.toml").write_text('[[expect]]\nclause = "top-k.keep"\nstatus = "fail"\n')
    refused = folder.runpytest_inprocess(*options, "empty.toml", *QUICK)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "reason" in refused.stderr.str()


def test_processes_share_a_run_and_do_not_repeat_one_that_died(tmp_path, monkeypatch):
    made = []

    def killed(*_others, **_options):
        raise KeyboardInterrupt

    def run_backend(wanted, _profile, run_seed, _folder, **_options):
        made.append(wanted.backend)
        return RunResult(backend=wanted.backend, run_seed=run_seed, headline="conforms")

    monkeypatch.setattr(gate_run, "run_backend", run_backend)
    first, second = Gate(run_seed=1, shared=tmp_path), Gate(run_seed=1, shared=tmp_path)
    assert first.result(Wanted("a")) == second.result(Wanted("a"))
    second.result(Wanted("a", "top-k.*"))
    assert made == ["a", "a"]
    monkeypatch.setattr(gate_run, "run_backend", killed)
    with pytest.raises(KeyboardInterrupt):
        first.result(Wanted("b"))
    monkeypatch.setattr(gate_run, "run_backend", run_backend)
    with pytest.raises(RunFailed, match="ended without a result"):
        second.clause(Wanted("b"), "top-k.keep")
    assert made == ["a", "a"]


def result(status, *, must=True, needed=False):
    return ClauseResult(
        clause="a.b",
        status=status,
        must=must,
        needed=needed,
        text=f"{status.name} of a.b",
        log_e=None,
        draws=1,
        detectable="",
        seconds=0.0,
    )


@pytest.mark.parametrize(
    ("status", "options", "ends"),
    [
        (Status.PASS, {}, None),
        (Status.FAIL, {}, ClauseFailed),
        (Status.FAIL, {"must": False}, pytest.xfail.Exception),
        (Status.INCONCLUSIVE, {}, ClauseInconclusive),
        (Status.INCONCLUSIVE, {"must": False}, pytest.skip.Exception),
        (Status.INHERITED, {}, pytest.skip.Exception),
        (Status.UNSUPPORTED, {}, pytest.skip.Exception),
        (Status.UNSUPPORTED, {"needed": True}, ClauseInconclusive),
        (Status.NOT_RUN, {}, pytest.skip.Exception),
    ],
)
def test_every_status_ends_a_test_its_own_way(status, options, ends):
    one = result(status, **options)
    if ends is None:
        settle(one, "fail")
        return
    with pytest.raises(ends, match=r"of a\.b"):
        settle(one, "fail")
    if ends is ClauseInconclusive:
        with pytest.raises(pytest.skip.Exception):
            settle(one, "skip")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"clause": "no.such"}, ValueError, "no clause matches"),
        ({"expected_failures": {"top-k.kep": "why"}}, UnknownClauseError, "top-k.keep"),
        ({"expected_failures": {"top-k.keep": " "}}, ValueError, "expected a reason"),
        (
            {"clause": "greedy.*", "expected_failures": {"top-k.keep": "why"}},
            ValueError,
            "not selected",
        ),
    ],
)
def test_wrong_expectations_are_named(options, error, words):
    with pytest.raises(error, match=words):
        parametrize_with_checks("native", **options)


def test_objects_without_a_name_are_runs_of_their_own():
    def wanted(backend):
        mark = parametrize_with_checks(backend)
        assert isinstance(mark, pytest.MarkDecorator)
        return mark.args[1][0].values[0].wanted

    unnamed = SimpleNamespace(capabilities=RightKernel.capabilities)
    assert wanted(unnamed) != wanted(unnamed)
    assert wanted("native") == wanted("native")


@pytest.mark.parametrize(
    ("wanted", "in_process", "isolate"),
    [
        (Wanted("m:backend"), False, None),  # what suits the backend, as for `refsampler check`
        (Wanted("m:backend"), True, False),
        (Wanted("m:backend", subject=RightKernel()), False, False),
    ],
)
def test_a_name_is_asked_as_check_asks_and_an_object_here(
    wanted, in_process, isolate, tmp_path, monkeypatch
):
    def guarded(spec, run_seed, **options):
        raise BackendBroken(f"{spec} {run_seed} {options}")

    monkeypatch.setattr(gate_run, "guarded", guarded)
    made = gate_run.run_backend(wanted, "quick", 3, tmp_path, in_process=in_process)
    assert made.failure == f"m:backend 3 {{'isolate': {isolate}}}"


def test_the_plugin_imports_nothing_heavy():
    program = (
        "import sys, refsampler.conformance.plugin\n"
        "print({'torch', 'numpy', 'msgspec'} & sys.modules.keys())"
        "print([m for m in sys.modules if m.startswith('refsampler')])"
    )
    program = program.replace(")print", ")\nprint")
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    heavy, ours = ran.stdout.splitlines()
    assert heavy == "set()"
    assert len(ours.split(",")) == 3  # refsampler, refsampler.conformance and the plugin


def test_the_plugin_leaves_the_shape_checks_of_our_tests_on():
    assert type(refsampler.law.__loader__).__module__.startswith("jaxtyping")

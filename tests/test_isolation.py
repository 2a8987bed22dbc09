"""A subject that crashes, hangs, allocates or returns rubbish fails its cases and nothing else."""

import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from refsampler.backends.limits import CAN_LIMIT_MEMORY
from refsampler.backends.native import NativeKernel
from refsampler.backends.process import SubjectDidNotOpen
from refsampler.conformance import isolation, memory, replicas
from refsampler.conformance.case import Hazard
from refsampler.conformance.checks import all_checks
from refsampler.conformance.cli import main
from refsampler.conformance.commands.progress import seconds_left
from refsampler.conformance.costs import expected_seconds, left_out, total_seconds
from refsampler.conformance.decisions import exit_code
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.isolation import GuardedSubject, Limits, guarded, isolated_by_default
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.subject import SubjectError
from refsampler.conformance.verdict import ExitCode, Status

# Right but for batches over 8 ids, which one case of the plan below asks for; Always never answers.
WRONG = """
import ctypes, dataclasses, os, sys, time
from refsampler.backends.protocol import Drawn
from refsampler.backends.native import NativeKernel

class Right(NativeKernel):
    def draw(self, logits, rows):
        ids = super().draw(logits, rows)
        return self.spoilt(ids) if logits.shape[1] == 8 else ids
    def spoilt(self, ids):
        return ids

class Segfaults(Right):
    def spoilt(self, ids):
        ctypes.string_at(0)

class Sleeps(Right):
    def spoilt(self, ids):
        time.sleep(60)

class Allocates(Right):
    def spoilt(self, ids):
        kept = []
        while True:
            kept.append(b"x" * 2**24)

class Rubbish(Right):
    def spoilt(self, ids):
        return Drawn(ids, "no logits")

class Always(Right):
    def draw(self, logits, rows):
        os._exit(5)

class Empty(Right):
    def draw(self, logits, rows):
        if (logits == -float("inf")).all(dim=-1).any() or logits.isnan().any():
            ctypes.string_at(0)
        return super().draw(logits, rows)
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A folder with the wrong kernels, which the child finds as this process does."""
    where = tmp_path_factory.mktemp("wrong")
    (where / "wrong_in_isolation.py").write_text(WRONG)
    sys.path.insert(0, str(where))
    yield where
    sys.path.remove(str(where))


def outcome_of(name, glob, *, isolate=True, timeout_s=30.0, memory_bytes=2**30, most=None):
    limits = Limits(timeout_s, memory_bytes)
    with guarded(f"wrong_in_isolation:{name}", 3, isolate=isolate, limits=limits) as subject:
        plan = make_plan(subject.capabilities, glob=glob, run_seed=3)
        plan = replace(plan, cases=plan.cases[:most])
        outcome = run(subject, plan, ReportWriter(None), stop=lambda: subject.spent)
        return plan, outcome, subject.spent


@pytest.mark.parametrize(
    ("name", "clause", "words"),
    [
        ("Segfaults", "output.returns", "the process died: SIGSEGV"),
        ("Sleeps", "output.returns", "no answer within 2 s"),
        pytest.param(
            "Allocates",
            "output.returns",
            "out of memory (limit 1.00 GiB)",
            marks=pytest.mark.skipif(not CAN_LIMIT_MEMORY, reason="memory is limited on Linux"),
        ),
        ("Rubbish", "output.form", "processed_logits: str in place of a tensor"),
    ],
)
def test_one_bad_case_fails_its_clause_and_the_rest_is_measured(name, clause, words):
    timeout_s = 2.0 if name == "Sleeps" else 30.0
    plan, outcome, spent = outcome_of(name, "top-k.*", timeout_s=timeout_s)
    found = {str(one.verdict.clause): one for one in outcome.decisions}
    assert [name for name, one in found.items() if one.verdict.status is Status.FAIL] == [clause]
    assert words in found[clause].seen.splitlines()[0]
    assert outcome.cases == len(plan.cases)
    assert not outcome.errors
    assert not spent
    for other in ("top-k.keep", "top-k.off"):
        assert found[other].verdict.status is Status.PASS
    # its case showed nothing about top-k where there was no answer
    lost = Status.PASS if name == "Rubbish" else Status.INCONCLUSIVE
    assert found["top-k.ties"].verdict.status is lost
    assert exit_code(outcome.decisions, outcome.errors) == ExitCode.DOES_NOT


def test_hazardous_cases_are_asked_in_a_child_even_in_process(folder):
    _, outcome, _ = outcome_of("Empty", "nonfinite.*", isolate=False, most=1)
    found = {str(one.verdict.clause): one for one in outcome.decisions}
    assert found["nonfinite.contained"].verdict.status is Status.FAIL
    assert "SIGSEGV" in found["nonfinite.contained"].seen


def test_large_batches_may_use_what_a_right_backend_needs_for_them(monkeypatch):
    opened: list[tuple[float, int]] = []

    class Child:
        capabilities = NativeKernel().capabilities

        def __init__(self, _spec, _run_seed, *, timeout_s, memory_bytes):
            opened.append((timeout_s, memory_bytes))

        def sample(self, *_):
            raise SubjectError("asked")

        def close(self):
            opened.append((0.0, 0))

    monkeypatch.setattr(isolation, "IsolatedSubject", Child)
    monkeypatch.setattr(memory, "ELEMENTS", 10**9)
    case = batch(4, [(row({0: 1.0}), request())], "input.large")
    with guarded("native", 3, limits=Limits(60.0, 10**9)) as subject:
        for hazard in (Hazard.HANG, Hazard.MEMORY, Hazard.MEMORY):
            with pytest.raises(SubjectError, match="asked"):
                subject.sample(replace(case, hazard=hazard), 0, "key")
    # 2 10^9 logits at 0.2 us, and seven float32 tensors of them
    assert opened == [(60.0, 10**9), (460.0, 57 * 10**9), (0.0, 0), (0.0, 0)]


def test_what_a_run_expects_is_started_once_and_used(monkeypatch):
    opened = []

    class Child:
        capabilities = NativeKernel().capabilities

        def __init__(self, _spec, run_seed, **_limits):
            opened.append(run_seed)

        def sample(self, *_):
            raise SubjectError("asked")

        def ask(self, *_):
            raise SubjectError("asked side by side")

        def close(self):
            opened.append(-1)

    monkeypatch.setattr(isolation, "IsolatedSubject", Child)
    monkeypatch.setattr(replicas, "IsolatedSubject", Child)
    check = next(one for one in all_checks() if one.name == "processes-agree")
    case = batch(4, [(row({0: 1.0}), request())], "input.large", hazard=Hazard.CRASH)
    with guarded("native", 3) as subject:
        subject.expect(2)
        for _ in range(2):
            with pytest.raises(SubjectError, match="asked"):
                subject.sample(case, 0, "key")
            with pytest.raises(SubjectError, match="side by side"):
                subject.ask(check, case)
    # the child of hazardous cases and two with run seeds of their own, each closed
    assert sorted(opened) == [-1, -1, -1, 3, 3, 3 + 2**20]


def test_who_never_answers_is_soon_left_alone_and_the_run_ends_normally(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["check", "wrong_in_isolation:Always", "--clause", "top-k.*", "--seed", "3"]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 1, ran.output
    assert "asked in a process of its own: 60 s a call, 4.00 GiB" in ran.output
    assert "the process died: exit code 5" in ran.output
    assert "INCONCLUSIVE top-k.keep" in ran.output
    report = (folder / "reports" / "runs" / "native" / "report.jsonl").read_text()
    assert report.count('"record":"case"') == 3


def test_what_cannot_be_opened_again_is_an_error_of_every_case_that_is_left(monkeypatch):
    def gone(*_):
        raise SubjectDidNotOpen("not opened again")

    with guarded("native", 3) as subject:
        plan = make_plan(subject.capabilities, glob="draw.law", run_seed=3)
        monkeypatch.setattr(GuardedSubject, "sample_many", gone)
        outcome = run(subject, plan, ReportWriter(None))
    assert len(outcome.errors) == len(plan.laws)
    assert exit_code(outcome.decisions, outcome.errors) == ExitCode.HARNESS


def test_what_ships_here_is_asked_in_process():
    assert not isolated_by_default("native")
    assert isolated_by_default("my_kernel:backend")
    assert isolated_by_default("somebody-elses")


def test_the_same_ids_wherever_it_is_asked():
    plans = [outcome_of("Right", "top-k.ties", isolate=isolate) for isolate in (True, False)]
    shown = [[one.verdict.status for one in outcome.decisions] for _, outcome, _ in plans]
    assert shown[0] == shown[1] == [Status.PASS]


def test_time_left_and_what_time_leaves_out():
    # a quarter of the expected work took 30 s: the rest takes 90 s, or what the budget still has
    assert seconds_left(5.0, 20.0, 30.0, None) == 90.0
    assert seconds_left(5.0, 20.0, 30.0, 100.0) == 70.0
    assert seconds_left(5.0, 20.0, 30.0, 20.0) == 0.0
    with guarded("native", 3) as subject:
        plan = make_plan(subject.capabilities, glob="top-k.*", run_seed=3)
        law = make_plan(subject.capabilities, glob="draw.law", run_seed=3)
    plan = replace(plan, laws=law.laws, standings=(*plan.standings, *law.standings))
    assert left_out(plan, 2 * total_seconds(plan)) == ()
    everything = left_out(plan, 0.0)
    assert {"top-k.keep", "draw.law"} <= set(everything)
    # cases come before laws, so time for the cases leaves out the law alone
    cases = sum(expected_seconds(plan)[: len(plan.cases)])
    assert left_out(plan, cases) == ("draw.law",)

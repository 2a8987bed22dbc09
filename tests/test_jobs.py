"""A run divided among processes says what it says in one; a process that dies loses only its own."""

import json
import os

import pytest
from click.testing import CliRunner

from refsampler.backends.registry import resolve
from refsampler.conformance.audit.catches import Watch
from refsampler.conformance.case import Hazard
from refsampler.conformance.cli import main
from refsampler.conformance.costs import expected_seconds
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import make_plan
from refsampler.conformance.portions import divide
from refsampler.conformance.runner import run
from refsampler.conformance.shards import Share
from refsampler.conformance.subject import OpenSubject

RIGHT = "tests.broken_samplers:RightKernel"
WRONG = "tests.broken_samplers:OneMore"
MORTAL = "tests.test_jobs:Mortal"


@pytest.fixture
def cli(tmp_path, monkeypatch, few_draws):
    monkeypatch.chdir(tmp_path)

    def check(backend, name, *words):
        fixed = ("check", backend, "--seed", "5", "--report", name, "--in-process")
        return CliRunner().invoke(main, [*fixed, *words])

    return check


def records(folder):
    """The records of a report without what no two runs share."""
    kept = []
    for line in (folder / "report.jsonl").read_text().splitlines():
        one = json.loads(line)
        for name in ("seconds", "started", "jobs"):
            one.pop(name, None)
        kept.append(one)
    return kept


def judged(folder):
    """The records of cases; those of another process come last."""
    found = [x for x in records(folder) if x["record"] == "case"]
    return sorted(found, key=lambda x: json.dumps(x, sort_keys=True))


def verdicts(folder):
    """Verdicts without the largest log E of the laws' looks, which come in another order."""
    kept = [one for one in records(folder) if one["record"] == "verdict"]
    return [{**one, "log_e": None} if one["clause"] == "draw.law" else one for one in kept]


@pytest.mark.parametrize(("backend", "glob"), [(RIGHT, "draw.law"), (WRONG, "top-k.*")])
def test_two_processes_say_what_one_says_killed_or_not(cli, tmp_path, backend, glob):
    one = cli(backend, "one", "--clause", glob, "--jobs", "1")
    two = cli(backend, "two", "--clause", glob, "--jobs", "2")
    assert one.exit_code == (backend == WRONG), one.output
    assert two.exit_code == one.exit_code, two.output
    assert verdicts(tmp_path / "two") == verdicts(tmp_path / "one")
    assert judged(tmp_path / "two") == judged(tmp_path / "one")
    files = [{path.name for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]
    finished = _kill(tmp_path / "two", tmp_path / "killed", backend, glob)
    words = ("check", backend, "--resume", "--report", str(tmp_path / "killed"), "--in-process")
    again = CliRunner().invoke(main, words)
    assert again.exit_code == one.exit_code, again.output
    assert verdicts(tmp_path / "killed") == verdicts(tmp_path / "one")
    lines = (tmp_path / "killed" / "report.jsonl").read_bytes().splitlines()
    seconds = {x["id"]: x["seconds"] for x in map(json.loads, lines) if x.get("id") in finished}
    # not asked again: they still show the seconds of the first run
    assert seconds == finished
    assert not list((tmp_path / "killed").glob("*.part*"))


def _kill(whole, killed, backend, glob):
    """Leave what a kill leaves: both files without their ends, the last line torn."""
    killed.mkdir()
    lines = (whole / "report.jsonl").read_bytes().splitlines(keepends=True)
    plan = make_plan(resolve(backend).capabilities, glob=glob, run_seed=5)
    _, other = divide(plan, 2)
    theirs = {plan.cases[number].id for number in other.cases}
    laws = [*(law.case.id for law in plan.laws), *(one.case.id for one in plan.mixed)]
    theirs |= {case for number, case in enumerate(laws) if other.has_law(number)}
    asked = [line for line in lines[1:] if json.loads(line)["record"] in ("case", "law", "mixed")]
    asked = [line for line in asked if json.loads(line).get("shrunk_from") is None]
    mine = [line for line in asked if json.loads(line)["id"] not in theirs]
    others = [line for line in asked if json.loads(line)["id"] in theirs]
    (killed / "report.jsonl").write_bytes(b"".join([lines[0], *mine[:-1]]) + mine[-1][:40])
    (killed / "report.jsonl.part2").write_bytes(b"".join(others[:3]) + others[3][:40])
    return {x["id"]: x["seconds"] for x in map(json.loads, (*mine[:-1], *others[:3]))}


@pytest.mark.parametrize("part", ["portion", "shard"])
def test_a_part_of_the_evidence_ends_no_law(few_draws, part):
    """What seems enough in one part need not be so together: only there a law may end for it."""
    plan = make_plan(Hot().capabilities, glob="draw.law", run_seed=3)
    share = divide(plan, 2)[1] if part == "portion" else Share(1, 2)
    watch = Watch()
    run(OpenSubject(Hot(), 3), plan, watch, share=share, minimise=False)
    asked = {law.case.id: law for number, law in enumerate(plan.laws) if share.has_law(number)}
    found = {case: record for case, record in watch.finished().laws.items() if case in asked}
    assert len(asked) > 3
    assert {*found} == {*asked}
    assert all(record.draws >= asked[case].least for case, record in found.items())


class Hot(RightKernel):
    """Twice the temperature, which a few hundred draws show."""

    def draw(self, logits, rows):
        return super().draw(logits / 2, rows)


class Mortal(RightKernel):
    """Ends every process but the one that opened this module."""

    _home = os.getpid()

    def draw(self, logits, rows):
        if os.getpid() != self._home:
            os._exit(7)
        return super().draw(logits, rows)


def test_a_process_that_dies_is_an_error_and_the_rest_counts(cli, tmp_path):
    died = cli(MORTAL, "died", "--clause", "top-k.*", "--jobs", "2")
    assert died.exit_code == 4, died.output
    assert "ended early, status 7" in died.output
    assert {one["status"] for one in verdicts(tmp_path / "died")} >= {"inconclusive"}
    plan = make_plan(RightKernel().capabilities, glob="top-k.*", run_seed=5)
    asked = [one for one in records(tmp_path / "died") if one["record"] == "case"]
    assert len(asked) == len(divide(plan, 2)[0].cases)


def test_a_plan_is_divided_into_equal_seconds_and_every_case_has_one_process(monkeypatch):
    monkeypatch.setattr("refsampler.conformance.checks.generated.COUNT", 5)
    plan = make_plan(RightKernel().capabilities, run_seed=5)
    seconds, cases = expected_seconds(plan), len(plan.cases)
    before_laws = cases + len(plan.sequential.pairs)
    laws = len(plan.laws) + len(plan.mixed)
    undivided = sum(seconds[cases:before_laws]) + sum(seconds[before_laws + laws :])
    for processes in (1, 2, 3):
        portions = divide(plan, processes)
        assert sorted(n for one in portions for n in one.cases) == list(range(cases))
        assert sorted(n for one in portions for n in one.laws) == list(range(laws))
        assert [one.first and one.last for one in portions] == [True] + [False] * (processes - 1)
        hazardous = {n for n, one in enumerate(plan.cases) if one.case.hazard is not Hazard.NONE}
        assert hazardous
        assert hazardous <= portions[0].cases
        spent = [
            sum(seconds[n] for n in one.cases)
            + sum(seconds[before_laws + n] for n in one.laws)
            + (undivided if one.first else 0.0)
            for one in portions
        ]
        assert max(spent) - min(spent) <= max(seconds)
    assert divide(plan, 2) == divide(plan, 2)


def test_shards_have_one_process(cli):
    refused = cli(RIGHT, "r", "--shard", "1/2", "--jobs", "2")
    assert refused.exit_code == 2
    assert "--jobs = 2 is refused: allowed is 1 with --shard" in refused.output

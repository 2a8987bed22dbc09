"""A killed run goes on and ends as if nobody had killed it; other runs are refused."""

import json
import math

import msgspec
import pytest
from click.testing import CliRunner

from refsampler.conformance.audit.catches import Watch
from refsampler.conformance.cli import main
from refsampler.conformance.evidence.law import CaseEvidence, Component
from refsampler.conformance.evidence.pool import ClausePool, PlannedCase
from refsampler.conformance.finished import checkpoint, gather
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import Checkpoint, ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.shards import EVERYTHING, Share
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status
from tests.broken_samplers import OneMore

RIGHT = "tests.broken_samplers:RightKernel"
WRONG = "tests.broken_samplers:OneMore"


@pytest.fixture
def cli(tmp_path, monkeypatch, few_draws):
    monkeypatch.chdir(tmp_path)

    def invoke(command, *words):
        return CliRunner().invoke(main, [command, *words, "--in-process"])

    return invoke


def lines_of(folder):
    return [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]


def without_seconds(folder):
    """The records of a report without what no two runs share."""
    kept = lines_of(folder)
    for one in kept:
        for name in ("seconds", "started"):
            one.pop(name, None)
    return kept


@pytest.mark.parametrize(("backend", "glob"), [(RIGHT, "draw.law"), (WRONG, "top-k.*")])
def test_a_killed_run_ends_as_it_would_have(cli, tmp_path, backend, glob):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ("check", backend, "--clause", glob, "--seed", "5")
    ended = cli(*options, "--report", str(whole))
    lines = (whole / "report.jsonl").read_bytes().splitlines(keepends=True)
    counted = [place for place, line in enumerate(lines) if b'"record":"law"' in line]
    # killed behind the second law, or behind the fourth case, in the middle of a line
    cut = counted[1] + 1 if counted else 5
    killed.mkdir()
    (killed / "report.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][:40])
    again = cli("check", backend, "--resume", "--report", str(killed))
    assert again.exit_code == ended.exit_code, again.output
    assert without_seconds(killed) == without_seconds(whole)
    # the finished cases were not asked again: they still show the seconds of the first run
    assert lines_of(killed)[1:cut] == lines_of(whole)[1:cut]
    assert not list(killed.glob("*.before"))
    # what came to its end is not resumed
    assert cli("check", backend, "--resume", "--report", str(killed)).exit_code == 2


@pytest.mark.parametrize(
    ("name", "glob"), [("Independent", "draw.tail"), ("Reseeded", "independence.calls")]
)
def test_tails_and_pairs_are_asked_again(cli, tmp_path, name, glob):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    backend = f"tests.broken_streams:{name}"
    ended = cli("check", backend, "--clause", glob, "--seed", "5", "--report", str(whole))
    lines = (whole / "report.jsonl").read_bytes().splitlines(keepends=True)
    killed.mkdir()
    # killed behind the first of them
    (killed / "report.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])
    again = cli("check", backend, "--resume", "--report", str(killed))
    assert again.exit_code == ended.exit_code, again.output
    assert without_seconds(killed) == without_seconds(whole)


def test_another_plan_is_not_resumed(cli, tmp_path):
    folder = tmp_path / "r"
    cli("check", RIGHT, "--clause", "top-k.*", "--seed", "5", "--report", str(folder))
    path = folder / "report.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    refused = cli("check", WRONG, "--resume", "--report", str(folder))
    assert refused.exit_code == 2
    assert "backend = " in refused.output
    assert path.read_bytes() == b"".join(lines[:5])
    header = json.loads(lines[0])
    path.write_bytes(json.dumps({**header, "plan": "0"}).encode() + b"\n" + b"".join(lines[1:5]))
    assert cli("check", RIGHT, "--resume", "--report", str(folder)).exit_code == 2
    assert cli("check", RIGHT, "--resume").exit_code == 2
    assert cli("check", RIGHT, "--resume", "--report", str(tmp_path / "none")).exit_code == 2


def test_a_law_comes_back_bit_by_bit_infinities_too():
    best = Component("b", -math.inf, 0.1 + 0.2)
    evidence = CaseEvidence("a", 1 / 3, (-math.inf, 2 / 3), best, 7, 1, 0)
    pool = ClausePool((PlannedCase("a", 1.0),), (), 20.0)
    pool.log_e_max, pool.best = 4.25, best
    said = checkpoint(evidence, pool)
    back = msgspec.json.decode(msgspec.json.encode(said), type=Checkpoint)
    assert back == said
    assert back.components == (None, 2 / 3)
    assert gather(()).laws == {}


def test_what_is_known_counts_without_any_time_left():
    kernel, watch = OneMore(), Watch()
    plan = make_plan(kernel.capabilities, glob="top-k.keep", run_seed=5, evidence=False)
    whole = run(OpenSubject(kernel, 5), plan, watch, minimise=False)
    again = run(
        OpenSubject(kernel, 5), plan, ReportWriter(None), time_budget=0.0, finished=watch.finished()
    )
    assert again.cases == whole.cases == len(plan.cases)
    assert [one.verdict.status for one in again.decisions] == [
        one.verdict.status for one in whole.decisions
    ]
    assert any(one.verdict.status is Status.FAIL for one in again.decisions)


def test_every_case_belongs_to_one_shard():
    shares = [Share.parse(f"{one}/3") for one in (1, 2, 3)]
    for number in range(20):
        assert sum(share.has_case(number) for share in shares) == 1
    assert [share.first for share in shares] == [True, False, False]
    assert [share.last for share in shares] == [False, False, True]
    assert EVERYTHING.has_law(7)
    for text in ("0/2", "3/2", "1", "a/b", "-1/2", "1/0", "1.5/2"):
        with pytest.raises(ValueError, match="allowed is i/n"):
            Share.parse(text)

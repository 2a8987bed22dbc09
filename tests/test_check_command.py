"""The commands smoke, plan, check and replay on small backends of this repository."""

import json

import pytest
from click.testing import CliRunner

from refsampler.conformance.caserun import Judged
from refsampler.conformance.cli import main
from refsampler.conformance.commands import replay

WRONG = "tests.broken_samplers:OneMore"
RIGHT = "tests.broken_samplers:RightKernel"


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(command, *words):
        # what a process of its own adds is tested elsewhere; it takes seconds to start
        here = ["--in-process"] if command in ("check", "plan", "replay", "smoke") else []
        return CliRunner().invoke(main, [command, *(str(word) for word in words), *here])

    return invoke


def test_a_right_backend_conforms_and_leaves_a_report(cli, tmp_path):
    ran = cli("check", RIGHT, "--clause", "top-p.*", "--seed", 3, "--report", tmp_path / "r")
    assert ran.exit_code == 0, ran.output
    assert "PASS         top-p.keep" in ran.output
    assert "run seed 3" in ran.output
    lines = [
        json.loads(line) for line in (tmp_path / "r" / "report.jsonl").read_text().splitlines()
    ]
    kinds = [line["record"] for line in lines]
    assert kinds[0] == "header"
    assert kinds[-1] == "footer"
    assert lines[-1]["exit_code"] == 0
    assert lines[0]["run_seed"] == 3
    assert {line["clause"] for line in lines if line["record"] == "verdict"} == {
        "top-p.keep",
        "top-p.ties",
        "top-p.off",
    }
    assert "| `top-p.keep` | MUST | PASS |" in (tmp_path / "r" / "verdicts.md").read_text()


def test_a_failure_says_expected_seen_sure_smallest_replay_and_replays(cli, tmp_path):
    ran = cli("check", WRONG, "--clause", "top-k.keep", "--seed", 3)
    assert ran.exit_code == 1, ran.output
    words = [line.split()[0] for line in ran.output.partition("FAIL top-k.keep\n")[2].splitlines()]
    assert words[:5] == ["expected", "seen", "sure", "smallest", "replay"]
    case = ran.output.partition("refsampler replay ")[2].split()[0]
    again = cli("replay", case)
    assert again.exit_code == 1, again.output
    assert "FAIL top-k.keep" in again.output
    # what OneMore breaks, the right kernel does not
    right = cli("replay", case, "--backend", RIGHT)
    assert right.exit_code == 0, right.output
    assert "nothing wrong was seen" in right.output


def test_a_case_file_is_replayed(cli, tmp_path):
    from refsampler.conformance.case import encode_case
    from refsampler.conformance.designed.build import batch, request, row

    rows = [(row({1: 0.0, 3: -0.01, 4: -0.02}), request(top_k=1))] * 64
    (tmp_path / "case.json").write_bytes(encode_case(batch(8, rows, "top-k.keep")))
    ran = cli("replay", "case.json", "--backend", WRONG, "--check", "top-k-rows")
    assert ran.exit_code == 1, ran.output
    assert cli("replay", "case.json").exit_code == 2
    assert cli("replay", "case.json", "--backend", WRONG, "--check", "none").exit_code == 2


def test_a_case_that_could_not_be_asked_again_is_not_called_right(cli, tmp_path, monkeypatch):
    from refsampler.conformance.case import encode_case
    from refsampler.conformance.designed.build import batch, request, row

    (tmp_path / "case.json").write_bytes(encode_case(batch(8, [(row({1: 0.0}), request())])))
    unasked = Judged((), 0, unasked="it does not open twice")
    monkeypatch.setattr(replay, "judge_case", lambda *_: unasked)
    ran = cli("replay", "case.json", "--backend", RIGHT, "--check", "top-k-rows")
    assert ran.exit_code == 5, ran.output
    assert "not run: it does not open twice" in ran.output
    assert "nothing wrong" not in ran.output


def test_json_and_markdown(cli):
    shown = cli("check", RIGHT, "--clause", "top-k.off", "--format", "json")
    assert json.loads(shown.stdout)["verdicts"][0]["status"] == "pass"
    page = cli("check", RIGHT, "--clause", "top-k.off", "--format", "markdown")
    assert page.stdout.startswith("# right: verdicts")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("check", "no-such-backend"), 4),
        (("check", "tests.broken_samplers:nothing"), 4),
        (("check", RIGHT, "--clause", "no.such"), 2),
        (("check", RIGHT, "--profile", "slow"), 2),
        (("check", RIGHT, "--clause", "top-k.off", "--time-budget", "0"), 3),
        (("check", RIGHT, "--clause", "batch.state"), 5),
        (("replay", "000000000000"), 2),
    ],
)
def test_exit_codes(cli, words, code):
    ran = cli(*words)
    assert ran.exit_code == code, ran.output
    assert "Traceback" not in ran.output


def test_smoke_and_plan(cli):
    ran = cli("smoke", RIGHT, "--seed", 1)
    assert ran.exit_code == 0, ran.output
    assert ran.output.count(" ok\n") == 4
    planned = cli("plan", RIGHT, "--clause", "draw.law", "--seed", 1)
    assert planned.exit_code == 0, planned.output
    assert "whole run at most 1e-9" in planned.output
    assert "temperature +1 %" in planned.output


def test_smoke_finds_ids_of_the_wrong_shape(cli):
    ran = cli("smoke", "tests.broken_samplers:ColumnOfIds", "--seed", 1)
    assert ran.exit_code == 1
    assert "int64 [" in ran.output

"""Shards of one plan are judged as one run; anything else is refused."""

import json

import pytest
from click.testing import CliRunner

from refsampler.conformance.cli import main
from tests.broken_streams import Independent

WRONG = "tests.broken_samplers:OneMore"


@pytest.fixture
def cli(tmp_path, monkeypatch, few_draws):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, words)


def check(cli, name, *words, backend=WRONG, seed="5"):
    fixed = ("--seed", seed, "--report", name, "--in-process")
    return cli("check", backend, "--clause", "top-k.*", *fixed, *words)


def verdicts(folder):
    lines = (json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines())
    kept = ("clause", "status", "cases", "draws", "log_e")
    return [{key: one[key] for key in kept} for one in lines if one["record"] == "verdict"]


def test_two_shards_say_what_the_whole_run_says(cli, tmp_path, monkeypatch):
    whole = check(cli, "whole")
    parts = [check(cli, f"part{one}", "--shard", f"{one}/2") for one in (1, 2)]
    assert whole.exit_code == 1
    # by itself a shard does not pass a clause whose other cases it has not seen
    assert all("PASS" not in part.output for part in parts), parts[0].output
    merged = cli("merge", "part1", "part2", "--report", "merged")
    assert merged.exit_code == 1, merged.output
    assert verdicts(tmp_path / "merged") == verdicts(tmp_path / "whole")
    # a shard that died counts as far as its report reaches
    path = tmp_path / "part2" / "report.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    fewer = cli("merge", "part1", "part2", "--report", "fewer")
    assert fewer.exit_code == 1
    assert "INCONCLUSIVE top-k.off" in fewer.output
    assert "::error" not in fewer.output
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    alone = cli("merge", "part1", "--report", "alone")
    assert "shards without a report: 2" in alone.output
    assert "::error title=top-k.keep FAIL::" in alone.output
    assert summary.read_text("utf-8") == (tmp_path / "alone" / "verdicts.md").read_text("utf-8")


def test_laws_of_two_shards_multiply(cli, tmp_path):
    right = "tests.broken_samplers:RightKernel"
    words = ("check", right, "--clause", "draw.law", "--seed", "5", "--in-process")
    assert cli(*words, "--report", "whole").exit_code == 0
    for one in (1, 2):
        shard = cli(*words, "--report", f"part{one}", "--shard", f"{one}/2")
        assert shard.exit_code == 3, shard.output
    merged = cli("merge", "part2", "part1", "--report", "merged")
    assert merged.exit_code == 0, merged.output
    (law,) = [one for one in verdicts(tmp_path / "merged") if one["clause"] == "draw.law"]
    (exact,) = [one for one in verdicts(tmp_path / "whole") if one["clause"] == "draw.law"]
    # merged looks come once a law, those of the whole run after every batch
    assert law["log_e"] <= exact["log_e"]
    assert (law["draws"], law["cases"]) == (exact["draws"], exact["cases"])


def test_what_is_not_one_plan_is_refused(cli):
    check(cli, "part1", "--shard", "1/2")
    check(cli, "again", "--shard", "1/2")
    check(cli, "third", "--shard", "2/3")
    check(cli, "seed6", "--shard", "2/2", seed="6")
    check(cli, "other", "--shard", "2/2", backend="tests.broken_samplers:TiesCut")
    check(cli, "whole")
    for names, words in (
        (("part1", "again"), "the same shard twice"),
        (("part1", "third"), "another number of shards"),
        (("part1", "seed6"), "run_seed is not that of"),
        (("part1", "other"), "spec is not that of"),
        (("part1", "whole"), "not a shard"),
        (("part1", "nowhere"), "No such file"),
    ):
        refused = cli("merge", *names, "--report", "merged")
        assert refused.exit_code == 2
        assert words in " ".join(refused.output.split()), refused.output
    without = cli("check", WRONG, "--shard", "1/2", "--in-process")
    assert without.exit_code == 2
    assert "--shard needs --seed" in without.output


@pytest.mark.parametrize(
    ("name", "glob", "code"),
    [
        ("Independent", "draw.tail", 0),
        ("TailDropped", "draw.tail", 1),
        ("Independent", "independence.calls", 0),
        ("Reseeded", "independence.calls", 1),
    ],
)
def test_tails_and_pairs_keep_the_verdict_of_the_shard_that_asked(cli, tmp_path, name, glob, code):
    words = ("check", f"tests.broken_streams:{name}", "--clause", glob, "--seed", "5")
    assert cli(*words, "--in-process", "--report", "whole").exit_code == code
    for one in (1, 2):
        cli(*words, "--in-process", "--report", f"part{one}", "--shard", f"{one}/2")
    merged = cli("merge", "part1", "part2", "--report", "merged")
    assert merged.exit_code == code, merged.output
    assert verdicts(tmp_path / "merged") == verdicts(tmp_path / "whole")


def test_what_a_pair_of_calls_shows_beside_its_evidence_is_merged(cli):
    words = ("check", "tests.test_merge:Raises", "--clause", "independence.calls", "--seed", "5")
    for one in (1, 2):
        cli(*words, "--in-process", "--report", f"part{one}", "--shard", f"{one}/2")
    merged = cli("merge", "part1", "part2", "--report", "merged")
    assert merged.exit_code == 1, merged.output
    assert "FAIL output.returns" in merged.output


class Raises(Independent):
    """Has no noise to give."""

    def uniforms(self, rows):
        raise RuntimeError(f"no noise for {rows} rows")


def test_expected_failures_of_shards_are_read_as_by_check(cli, tmp_path):
    for one in (1, 2):
        check(cli, f"part{one}", "--shard", f"{one}/2")
    known = tmp_path / "known.toml"
    entry = '[[expect]]\nclause = "{}"\nstatus = "fail"\nreason = "one id too many"\n'
    known.write_text(entry.format("top-k.keep") + entry.format("top-k.off"))
    words = ("merge", "part1", "part2", "--report", "merged", "--expectations", str(known))
    merged = cli(*words)
    assert merged.exit_code == 0, merged.output
    assert "matches expectations" in merged.output
    assert "stale expectation of top-k.off" in merged.output
    known.write_text("[[expect]]")
    assert cli(*words).exit_code == 2

"""Shards of a fuzzing run: declared with seeds of their own, merged, and no finding lost with a worker."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from refsampler.conformance.cli import main
from refsampler.conformance.evidence.hetero import HeteroProcess
from refsampler.conformance.fuzz.crew import Crew
from refsampler.conformance.fuzz.law import LOG_THRESHOLD
from refsampler.conformance.fuzz.loop import Progress
from refsampler.conformance.fuzz.shard import Broken, Shard, State, declared, fuzz_shard, read_told
from refsampler.conformance.isolation import Limits
from refsampler.conformance.records import (
    CaseRecord,
    Footer,
    Header,
    VerdictRecord,
    read_report,
)

BETS = len(HeteroProcess("fuzz").bets)


def a_run(folder, spec="native", seed=3, count=2, seconds=1.0):
    return Shard(0, count, folder, spec, seed, seconds, False, Limits())


def state(shard, log_e, batches=3):
    pairs = ((f"a{shard}", "b"),)
    return State(shard, batches, 10, 0.5, pairs, 9, (), 5, np.full(BETS, log_e).tobytes())


def test_shards_have_seeds_and_folders_of_their_own_and_the_same_again():
    run = a_run(Path("runs/one"), count=4)
    shards = declared(run)
    assert shards == declared(run)
    assert [str(one.folder) for one in shards] == [f"runs/one.{number}" for number in range(4)]
    others = declared(replace(run, run_seed=4))
    assert len({one.run_seed for one in (*shards, *others)} - {3, 4}) == 8


def test_evidence_of_shards_multiplies_and_the_last_checkpoint_counts():
    crew = Crew(declared(a_run(Path("runs/one"))))
    crew.take(state(0, 4.0))
    assert math.isclose(crew.largest, 4.0, abs_tol=1e-6)
    crew.take(state(1, 7.0))
    crew.take(state(1, 6.0, batches=8))
    # every bet alike: 4 + 7 once, and what was largest stays
    assert math.isclose(crew.largest, 11.0, abs_tol=1e-6)
    assert not crew.failed
    crew.take(state(0, LOG_THRESHOLD - 5.5))
    assert crew.law_failed
    crew.take(state(0, -50.0))
    assert crew.law_failed
    done = crew.progress(2.0)
    assert (done.batches, done.draws, done.pairs) == (11, 20, {("a0", "b"), ("a1", "b")})
    assert [one.clause for one in crew.verdicts()] == ["draw.law"]


def test_a_cause_is_told_once_and_replayed_from_the_report_of_its_shard():
    told: list[Broken] = []
    crew = Crew(declared(a_run(Path("runs/one"))), told.append)
    one = Broken(1, "top-k.keep", ("top-k",), "words", "others", 0.0, "abc")
    for shard in (1, 0):
        crew.take(Broken(shard, "top-k.keep", ("top-k",), "words", "others", 0.0, "abc"))
    assert told == [one]
    (verdict,) = crew.verdicts()
    assert (verdict.cases, verdict.replay) == (2, "refsampler replay abc --report runs/one.1")


def test_a_shard_writes_its_own_report_and_spends_its_own_share(tmp_path, monkeypatch):
    shares: list[float] = []

    def asked(*_args, share, **_others):
        shares.append(share)
        return Progress(batches=7)

    monkeypatch.setattr("refsampler.conformance.fuzz.shard.fuzz", asked)
    told: list[bytes] = []
    _, shard = declared(a_run(tmp_path / "one"))
    fuzz_shard(shard, told.append)
    assert shares == [0.5]
    last = read_told(told[-1])
    assert isinstance(last, State)
    assert (last.shard, last.batches, len(last.bets)) == (1, 7, BETS)
    (header,) = read_report(tmp_path / "one.1" / "report.jsonl")
    assert isinstance(header, Header)
    assert (header.run_seed, header.charge) == (shard.run_seed, 0.5e-10)


# The first row has an id beyond the vocabulary until that stands in the shard's report.  Whoever asks
# shard 0 once more is killed, and shard 1 ends when it has gone on for long enough.
WRONG = """
import multiprocessing, os, pathlib, signal
from refsampler.backends.native import NativeKernel

HERE = pathlib.Path(__file__).parent

def found(shard):
    report = HERE / f"run.{shard}" / "report.jsonl"
    return report.is_file() and b'"findings":[{' in report.read_bytes()

class Dies(NativeKernel):
    def draw(self, logits, rows):
        name = multiprocessing.current_process().name
        if name == "shard 0" and found(0):
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "shard 1" and found(0) and (HERE / "enough").exists():
            raise KeyboardInterrupt
        ids = super().draw(logits, rows)
        if not found(name[-1]):
            ids[:1] = logits.shape[1]
        return ids
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_a_killed_worker_loses_no_finding_and_stops_no_other(tmp_path, monkeypatch):
    def noting(message):
        told = read_told(message)
        if isinstance(told, State) and told.shard == 1 and told.batches >= 5:
            (tmp_path / "enough").touch()
        return told

    monkeypatch.setattr("refsampler.conformance.commands.fuzz_shards.read_told", noting)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wrong_in_shards.py").write_text(WRONG)
    command = ["fuzz", "wrong_in_shards:Dies", "--workers", "2", "--seed", "4", "--in-process"]
    command += ["--time-budget", "60", "--report", str(tmp_path / "run")]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 1, ended.output
    assert "shard 0 ended with code -9" in ended.output
    assert "rows of 2 shards" in ended.output
    for shard in (0, 1):
        report = read_report(tmp_path / f"run.{shard}" / "report.jsonl")
        assert any(one.findings for one in report if isinstance(one, CaseRecord))
    records = list(read_report(tmp_path / "run" / "report.jsonl"))
    verdicts = [one for one in records if isinstance(one, VerdictRecord)]
    assert verdicts
    assert isinstance(records[-1], Footer)
    assert records[-1].cases >= 5
    assert records[-1].error == "shard 0 ended with code -9"
    case, place = verdicts[0].replay.removeprefix("refsampler replay ").split(" --report ")
    again = CliRunner().invoke(main, ["replay", case, "--report", place, "--in-process"])
    assert again.exit_code == 1, again.output

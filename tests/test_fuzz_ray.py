"""Shards of a fuzzing run on a Ray cluster of two nodes: whoever is killed, no finding is lost.

`make ray-check` runs this file; it is skipped where Ray is not installed.  Seen with Ray 2.60.0.
"""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from refsampler.conformance.fuzz.shard import declared
from refsampler.conformance.records import (
    CaseRecord,
    Footer,
    Header,
    VerdictRecord,
    read_report,
)
from tests.test_fuzz_workers import a_run

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `ray`"),
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).parents[1]

# Wrong until there is a file `right`: the first row gets an id beyond the vocabulary.  With a file
# `killed` it says that it was asked, with `enough` it ends its process, thrice of which ends a shard.
WRONG = """
import os, pathlib
from refsampler.backends.native import NativeKernel

HERE = pathlib.Path(__file__).parent

class Wrong(NativeKernel):
    def draw(self, logits, rows):
        if (HERE / "enough").exists():
            os._exit(3)
        if (HERE / "killed").exists():
            (HERE / "asked").touch()
        drawn = super().draw(logits, rows)
        if not (HERE / "right").exists():
            drawn.ids[:1] = logits.shape[1]
        return drawn
"""


def until(condition, what, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
    return found


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def started(command, folder, log, stdin=subprocess.DEVNULL):
    with log.open("wb") as stream:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=stdin,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


class Nodes:
    """The cluster."""

    def __init__(self, log):
        command = [sys.executable, "-m", "tests.ray_nodes"]
        self.process = started(command, ROOT, log, subprocess.PIPE)
        self.address = until(
            lambda: re.findall(r"^address (\S+)$", log.read_text(), re.MULTILINE), "Ray"
        )[0]

    def kill_second(self):
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def close(self):
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    cluster = Nodes(tmp_path_factory.mktemp("nodes") / "log")
    yield cluster
    cluster.close()


class Driver:
    """`refsampler fuzz B --ray` in a folder of its own: two shards of a wrong backend."""

    def __init__(self, folder, address):
        self.folder, self.log = folder, folder / "log"
        (folder / "wrong_on_ray.py").write_text(WRONG)
        command = [sys.executable, "-m", "refsampler", "fuzz", "wrong_on_ray:Wrong", "--isolate"]
        command += ["--ray", address, "--seed", "4", "--report", str(folder / "run")]
        self.process = started(command, folder, self.log)

    def finds(self):
        """Wait until both shards have found the fault."""
        until(lambda: all(map(self.found, (0, 1))), "findings of both shards")
        place = re.compile(r"^shard (\d) on \S+, process (\d+), (\S+)$", re.MULTILINE)
        self.places = {int(n): (int(pid), Path(at)) for n, pid, at in place.findall(self.words())}

    def words(self):
        return self.log.read_text()

    def found(self, shard, folder=None):
        report = (folder or self.folder / f"run.{shard}") / "report.jsonl"
        records = read_report(report) if report.is_file() else ()
        return [one for one in records if isinstance(one, CaseRecord) and one.findings]

    def mark(self, name):
        (self.folder / name).touch()

    def replayed(self, case, folder):
        command = [sys.executable, "-m", "refsampler", "replay", case, "--report", str(folder)]
        command += ["--in-process"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=self.folder, env=env, check=False).returncode

    def ends_without(self, dead):
        """Wait for the end of a run of which a shard was killed, and look at its one report."""
        self.mark("right")
        self.mark("killed")
        until(lambda: f"shard {dead} ended (" in self.words(), "the death to be noticed")
        until((self.folder / "asked").exists, "the other shard to go on")
        self.mark("enough")
        assert self.process.wait(120) == 1, self.words()
        records = list(read_report(self.folder / "run" / "report.jsonl"))
        verdicts = [one for one in records if isinstance(one, VerdictRecord)]
        named = {one.clause for one in verdicts}
        for one in (one for record in self.found(dead) for one in record.findings):
            assert named & {one.clause, *one.candidates}
        last = records[-1]
        assert isinstance(last, Footer)
        assert last.exit_code == 1
        assert last.error is not None
        assert last.error.startswith(f"shard {dead} ended (")
        assert f"shard {1 - dead} ended (" not in last.error
        # whoever ended by itself leaves nothing on its node
        folders = {shard: folder for shard, (_, folder) in self.places.items()}
        assert (folders[dead].exists(), folders[1 - dead].exists()) == (True, False)
        for name in ("enough", "right"):
            (self.folder / name).unlink()
        verdict = next(one for one in verdicts if one.clause != "output.returns")
        place = Path(verdict.replay.partition(" --report ")[2])
        assert self.replayed(verdict.case, place) == 1


@pytest.fixture
def driver(nodes, tmp_path):
    one = Driver(tmp_path, nodes.address)
    try:
        one.finds()
        yield one
    finally:
        one.process.kill()
        one.process.wait()


def on_second_node(places):
    """The number of the shard whose raylet is not the head's: the one with the later process id."""

    def raylet(pid):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"^PPid:\s+(\d+)$", status, re.MULTILINE)[0])

    return max(places, key=lambda shard: raylet(places[shard][0]))


def test_a_right_backend_passes_on_all_nodes_with_the_declared_seeds(nodes, tmp_path):
    command = [sys.executable, "-m", "refsampler", "fuzz", "native", "--ray", nodes.address]
    command += ["--seed", "3", "--time-budget", "4", "--report", str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "nothing wrong was seen" in ended.stdout
    assert "rows of 2 shards" in ended.stdout
    shards = declared(a_run(tmp_path / "run"))
    for shard in shards:
        (header,) = read_report(shard.folder / "report.jsonl")
        assert isinstance(header, Header)
        assert (header.run_seed, header.charge) == (shard.run_seed, 0.5e-10)
    last = list(read_report(tmp_path / "run" / "report.jsonl"))[-1]
    assert isinstance(last, Footer)
    assert (last.exit_code, last.error) == (0, None)
    assert last.cases > 0


def test_a_killed_worker_loses_no_finding_and_stops_no_other(driver):
    pid, folder = driver.places[0]
    os.kill(pid, signal.SIGKILL)
    driver.ends_without(0)
    assert driver.found(0, folder)


def test_a_killed_driver_loses_no_finding_and_its_shards_end(driver):
    driver.process.kill()
    driver.process.wait()
    for shard, (pid, folder) in driver.places.items():
        until(lambda pid=pid: gone(pid), "the shard to end")
        here, there = driver.found(shard), driver.found(shard, folder)
        assert here
        assert here == there[: len(here)]
        # what the driver did not live to take is on the node
        assert driver.replayed(there[-1].id, folder) == 1
        assert driver.replayed(here[0].id, driver.folder / f"run.{shard}") == 1


def test_a_killed_node_loses_no_finding_and_stops_no_other(driver, nodes):
    dead = on_second_node(driver.places)
    nodes.kill_second()
    driver.ends_without(dead)
    until(lambda: gone(driver.places[dead][0]), "the node's worker to end")

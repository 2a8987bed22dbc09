"""Faults that the suite has killed stay killed: a part of the bank that takes a minute or two.

`refsampler audit` runs the suite on all of them.  Here are some of every kind whose own checks are
quick, each asked with the checks of its clauses only, in processes of their own: the shape checks that
our tests switch on would make it take ten times as long.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from refsampler.conformance.faults.registry import all_faults

ROOT = Path(__file__).parents[1]
KILLED = [
    "B023",
    "B027",
    "B030",
    "B032",
    "B034",
    "B038",
    "B039",
    "B040",
    "B041",
    "B042",
    "B046",
    "B050",
    "B052",
    "B053",
    "B055",
    "B072",
    "B076",
    "B077",
    "B082",
    "B088",
    "B093",
    "B096",
    "B101",
    "B106",
    "B114",
    "B115",
    "B116",
    "B117",
    "B119",
    "B126",
    "B127",
    "B128",
    "B137",
    "B144",
    "B155",
    "B156",
    "B163",
    "B169",
    "B175",
    "B182",
    "B187",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict[str, object]]:
    out = tmp_path_factory.mktemp("audit")
    chosen = [word for one in KILLED for word in ("--fault", one)]
    program = [sys.executable, "-m", "refsampler", "audit", *chosen, "--named-only"]
    # charged: what the plan of each run is, 1e-9 at most; that is for right samplers, here are none
    subprocess.run(
        [*program, "--seed", "20250", "--workers", "2", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    document = json.loads((out / "quick.json").read_text())
    return {one["id"]: one for one in document["results"]}


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_fault_does_not_come_back(found, name):
    assert found[name]["found"] == "caught", found[name]


def test_the_list_names_faults_that_exist():
    assert {*KILLED} <= {one.id for one in all_faults()}

"""Faults that the suite has killed stay killed: a part of the bank that takes a minute or two.

`refsampler audit` runs the suite on all of them.  Here are some of every kind whose own checks are
quick, each asked with the checks of its clauses only.
"""

import pytest

from refsampler.conformance.audit.one import Found, audit_fault
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.faults.registry import fault
from tests.shapes import unchecked

PLANNER = Planner()
KILLED = [
    "B023",
    "B024",
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
    "B066",
    "B072",
    "B073",
    "B076",
    "B077",
    "B082",
    "B085",
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
    "greedy-0.1",
]


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_fault_does_not_come_back(name):
    # charged: what the plan of each run is, 1e-9 at most; that is for right samplers, here are none
    with unchecked():
        result = audit_fault(fault(name), "quick", 20250, named_only=True, planner=PLANNER)
    assert result.found is Found.CAUGHT, result

"""The audit: what it says of faults that are caught, that survive, and that are not asked."""

import json
from dataclasses import replace

import msgspec
import pytest
from click.testing import CliRunner

from refsampler.conformance.audit.matrix import headline, in_order, make_audit, markdown
from refsampler.conformance.audit.one import FaultResult, Found, audit_fault
from refsampler.conformance.cli import main
from refsampler.conformance.faults.base import State
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.right import RightKernel

SEED = 4711


def test_a_caught_fault_names_its_clause_and_where_it_showed():
    result = audit_fault(fault("B114"), "quick", SEED, named_only=True)
    assert result.found is Found.CAUGHT
    assert result.first is not None
    assert result.first.clause == "top-p.keep"
    assert result.first.check == "top-p-rows"
    assert 0 < result.first.draws <= result.draws


def test_a_right_subject_survives():
    right = replace(fault("B114"), make=RightKernel)
    result = audit_fault(right, "quick", SEED, named_only=True)
    assert result.found is Found.SURVIVED
    assert result.caught == ()


def test_what_cannot_be_asked_says_why():
    waits = next(one for one in (fault("B023"),) if one.state is State.WAITS)
    result = audit_fault(waits, "quick", SEED)
    assert (result.found, result.reason) == (Found.WAITS, "waits for the verifier")


def results() -> list[FaultResult]:
    def one(name: str, found: Found) -> FaultResult:
        return FaultResult(
            id=name, kind="order", engine="e", thread="o/r#1", summary="s", clauses=(), found=found
        )

    return [one("A", Found.CAUGHT), one("B", Found.WRONG_CLAUSE), one("C", Found.SURVIVED)]


def test_survivors_come_first_then_wrong_clauses():
    assert [one.id for one in in_order(results())] == ["C", "B", "A"]
    assert headline(results()) == (
        "1 of 3 faults caught and named by the right clause; 1 survived, 1 wrong clause"
    )


def test_the_document_and_the_page_hold_every_fault():
    made = make_audit(
        results(), command="c", profile="quick", run_seed=1, limit_s=60, workers=2, seconds=3
    )
    assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made
    page = markdown(made)
    assert page.index("| C |") < page.index("| B |") < page.index("| A |")


@pytest.mark.slow
def test_the_command_asks_in_processes_of_its_own(tmp_path):
    arguments = ["audit", "--fault", "B114", "--fault", "B023", "--named-only", "--workers", "1"]
    result = CliRunner().invoke(main, [*arguments, "--seed", str(SEED), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "1 of 1 faults caught and named by the right clause; 1 waits" in result.output
    document = json.loads((tmp_path / "quick.json").read_text())
    assert [one["found"] for one in document["results"]] == ["caught", "waits"]

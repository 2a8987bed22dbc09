"""The audit: what it says of faults that are caught, that survive, and that are not asked."""

import json
import math
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from refsampler.clauses import ClauseId
from refsampler.conformance.audit.log import AuditLog, LogMismatchError, Settings
from refsampler.conformance.audit.matrix import headline, in_order, make_audit, markdown
from refsampler.conformance.audit.one import PLANNING_S, FaultResult, Found, audit_fault
from refsampler.conformance.audit.plans import Planner, _rows_for
from refsampler.conformance.audit.pool import audit_faults
from refsampler.conformance.cli import main
from refsampler.conformance.evidence.independence import PairProcess
from refsampler.conformance.evidence.pairings import call_lags
from refsampler.conformance.evidence.tail import TAIL_BETS, TailCase, TailProcess
from refsampler.conformance.faults.registry import fault, select
from refsampler.conformance.faults.right import RightKernel
from refsampler.semantics import Semantics

SEED = 4711


def test_a_caught_fault_names_its_clause_and_where_it_showed():
    result = audit_fault(fault("B114"), "quick", SEED, named_only=True)
    assert result.found is Found.CAUGHT
    assert result.first is not None
    assert result.first.clause == "top-p.keep"
    assert result.first.check == "top-p-rows"
    assert 0 < result.first.draws <= result.draws


def test_the_full_profile_ends_with_the_case_that_shows_the_right_clause():
    result = audit_fault(fault("B114"), "full", SEED)
    assert result.found is Found.CAUGHT
    assert result.first is not None
    assert (result.first.clause, result.first.draws) == ("top-p.keep", result.draws)
    assert not result.complete


def test_a_right_subject_survives():
    right = replace(fault("B114"), make=RightKernel)
    result = audit_fault(right, "quick", SEED, named_only=True)
    assert result.found is Found.SURVIVED
    assert result.caught == ()


class _AboveTheSmallest(RightKernel):
    """The search for the k-th value begins at the smallest one, and keeps what lies above it."""

    def kept_top_k(self, x, top_k):
        smallest = torch.where(x > -torch.inf, x, torch.inf).amin(dim=-1, keepdim=True)
        # a row of equals stays whole: one that has lost everything is drawn from as a greedy one
        lost = (top_k[:, None] < x.shape[-1]) & (x == smallest) & (x > smallest).any(-1, True)
        return super().kept_top_k(x, top_k) & ~lost


class _ExactlyK(_AboveTheSmallest):
    capabilities = replace(RightKernel.capabilities, semantics=Semantics(top_k_ties="exactly_k"))


@pytest.mark.parametrize("make", [_AboveTheSmallest, _ExactlyK])
@pytest.mark.parametrize("clause", ["top-k.keep", "top-k.ties"])
def test_a_threshold_that_never_keeps_the_smallest_value_breaks_top_k(make, clause):
    """As vLLM's Triton filter was found to do; ids above the smallest value are right.

    Among equals it looks like a k that is one too small, whose name is as good.
    """
    broken = replace(fault("B114"), make=make, clauses=(ClauseId(clause),))
    result = audit_fault(broken, "quick", SEED, named_only=True)
    assert [one.clause for one in result.caught] in (["top-k.keep"], [clause])


def test_what_cannot_be_asked_says_why():
    outside = fault("B173")
    result = audit_fault(outside, "quick", SEED)
    assert (result.found, result.reason) == (Found.OUT_OF_SCOPE, outside.reason)
    assert outside.reason


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
    settings = Settings(profile="quick", run_seed=1, limit_s=60.0)
    made = make_audit(results(), settings, bank=(fault("B114"),), command="c", workers=2)
    assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made
    page = markdown(made)
    assert page.index("| C |") < page.index("| B |") < page.index("| A |")
    assert "1 faults were not run: B114." in page


def test_a_log_that_was_cut_off_keeps_what_had_ended(tmp_path):
    path = tmp_path / "quick.jsonl"
    settings = Settings(profile="quick", run_seed=1, limit_s=60.0)
    log = AuditLog(path, settings)
    for one in results():
        log.add(one)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # killed in the middle of the third result
    again = AuditLog(path, settings)
    assert [one.id for one in again.results] == ["A", "B"]
    again.add(results()[2])
    assert path.read_bytes() == whole
    assert AuditLog.seed_of(path) == 1
    with pytest.raises(LogMismatchError, match="run_seed = 1, asked for is 2"):
        AuditLog(path, msgspec.structs.replace(settings, run_seed=2))


def test_a_log_with_a_broken_line_inside_is_refused(tmp_path):
    path = tmp_path / "quick.jsonl"
    log = AuditLog(path, Settings(profile="quick", run_seed=1, limit_s=60.0))
    log.add(results()[0])
    path.write_bytes(path.read_bytes() + b"{\n{}\n")
    with pytest.raises(LogMismatchError, match="line 3 cannot be read"):
        AuditLog(path, log.settings)


@pytest.mark.slow
def test_a_fault_that_hangs_is_ended_at_its_limit():
    settings = Settings(profile="quick", run_seed=SEED, limit_s=3.0, named_only=True)
    started = time.monotonic()
    # its checks hang 5 s a call, in a process that the worker started
    (result,) = audit_faults([fault("B069")], settings, 1)
    assert result.found is Found.ERROR
    assert result.reason == "no answer after 3 s"
    assert time.monotonic() - started < PLANNING_S


def test_results_are_told_one_after_the_other():
    """Two that ended together wrote the tables at once, and one renamed the other's file away."""
    out_of_scope = [one for one in select() if one.reason][:4]
    inside, most = 0, 0

    def tell(_result):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.05)
        inside -= 1

    settings = Settings(profile="quick", run_seed=SEED, limit_s=3.0)
    told = audit_faults(out_of_scope, settings, 4, tell)
    assert [one.id for one in told] == [one.id for one in out_of_scope]
    assert most == 1


def test_a_bet_that_is_left_out_bets_on_nothing():
    mass = np.array([0.0, math.log(1e-3)])
    tail, core = np.array([False, True]), np.array([True, True])
    case = TailCase.build("t", mass, tail, core=core, hull=core)
    missing = [one.name for one in TAIL_BETS].index("tail is missing")
    for without, silent in (((), False), (("tail is missing",), True)):
        process = TailProcess(replace(case, without=without))
        process.add(0, 10**5)  # a hundred were expected
        assert bool(process.log_components[missing] == 0) is silent
        # the next bet, on a tenth of the mass, still sees it
        assert process.log_components[missing + 1] > 10
    flat, ids = np.full(64, 1 / 64), np.arange(64)
    for without, silent in (((), False), (("same*",), True)):
        pairs = PairProcess(flat, call_lags()[:1], 0.0, calls=2, without=without)
        pairs.update(np.stack([ids, ids]))  # the second call repeats the first
        assert bool(pairs.log_e < 1) is silent


def test_rows_that_were_made_for_a_bet_are_left_out_with_it():
    made = _rows_for(fault("temperature-1"))
    # one id against a flat sea: V = 64 at T = 1/2, and V = 4096
    assert [(one.logits.vocab, one.requests[0].params.temperature) for one in made] == [
        (64, 0.5),
        (4096, 1.0),
    ]
    assert _rows_for(fault("B114")) == ()


def test_neither_the_corpus_nor_what_was_designed_for_a_fault_is_asked_without_it():
    made, planner = fault("B148"), Planner()
    assert made.make is not None
    capabilities = made.make().capabilities
    asked = planner.exact(capabilities, "quick", SEED)

    left = planner.left_out(asked, capabilities, made)

    gone = {one.check.name for one in asked.cases} - {one.check.name for one in left.cases}
    assert {"corpus-batches", "noise-ends", "running-sums-given"} <= gone
    assert all(one in made.designed or one.startswith("corpus-") for one in gone)


@pytest.mark.slow
def test_the_command_asks_in_processes_of_its_own(tmp_path):
    arguments = ["audit", "--fault", "B114", "--fault", "B173", "--named-only", "--workers", "1"]
    result = CliRunner().invoke(main, [*arguments, "--seed", str(SEED), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "1 of 1 faults caught and named by the right clause; 1 out of scope" in result.output
    document = json.loads((tmp_path / "quick.json").read_text())
    assert [one["found"] for one in document["results"]] == ["caught", "out of scope"]
    # a second time nothing is asked: what was known is shown
    log = (tmp_path / "quick.jsonl").read_bytes()
    again = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert "1 of 1 faults caught" in again.output
    assert (tmp_path / "quick.jsonl").read_bytes() == log

"""Rows far apart: a counter that comes round shares noise between rows that no small batch holds."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from refsampler.conformance import memory
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.checks.independence import (
    PlannedPairs,
    plan_pairs,
    unplanned_pairs,
)
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import SPLIT
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status
from tests.broken_streams import Independent

SEED = 20263
ROWS = frozenset(clause_ids("independence.rows"))


class ComesRound(Independent):
    """Noise of a counter that comes round after so many logits, or rows where a row is one step."""

    def __init__(self, period: int, *, by_row: bool) -> None:
        self.period, self.by_row = period, by_row

    def sample(self, logits, metadata):
        self.after = self.period if self.by_row else self.period // logits.shape[1]
        return super().sample(logits, metadata)

    def uniforms(self, rows):
        return super().uniforms(rows)[torch.arange(rows) % self.after]


def planned(profile: str = "full") -> tuple[PlannedPairs, ...]:
    return plan_pairs(Independent.capabilities, profile, SPLIT, ROWS)


def failing(sampler: Independent) -> Iterator[str]:
    """The checks of far rows whose case fails the clause by itself."""
    pairs = planned()
    for one in pairs[1:]:
        assert one.check.ask is not None
        process = one.process()
        for call in one.calls_of(one.check.ask(OpenSubject(sampler, SEED), one.case)):
            process.update(call)
        weights = equal_weights(pair.name for pair in pairs)
        pool = ClausePool(weights, (), SPLIT.log_threshold(one.clause))
        pool.update(process.evidence())
        if pool.failed:
            yield one.check.name


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("sampler", "checks"),
    [
        # false alarm of a right one: 1.5e-10
        (Independent(), []),
        (ComesRound(2**15, by_row=True), ["independent-many-rows"]),
        (ComesRound(2**16, by_row=True), ["independent-many-rows"]),
        (ComesRound(2**24, by_row=False), ["independent-far-rows"]),
    ],
)
def test_a_counter_that_comes_round_is_seen_where_it_does(sampler, checks):
    assert list(failing(sampler)) == checks


def test_what_the_pairs_are_sure_to_see_rests_on_the_lag_with_the_fewest():
    # 73,728 rows at a lag of 2^16 are 8,192 pairs; 192 at a lag of 128 are 64
    pairs = {one.check.name: one for one in planned()}
    fewest = {
        name: min(len(lag.within(torch.arange(one.rows).numpy())[0]) for lag in one.lags)
        for name, one in pairs.items()
    }
    assert fewest["independent-many-rows"] == 8192
    assert fewest["independent-far-rows"] == 64
    assert all(one.seen.probability >= 1 - 1e-6 for one in pairs.values())


def test_rows_that_cannot_be_had_are_named_with_the_reason(monkeypatch):
    capabilities = Independent.capabilities
    words = [one.words for one in unplanned_pairs(capabilities, "full", ROWS)]
    slow = "take minutes on a CPU, and more memory than a call may use"
    assert words == [f"rows 2^31 and 2^32 logits apart: 4.3e+09 logits {slow}"]
    small = replace(capabilities, max_elements=2**24)
    assert [one.words.partition(": ")[2] for one in unplanned_pairs(small, "full", ROWS)] == [
        "2.5e+07 logits are more than the backend takes in a call",
        "4.3e+09 logits are more than the backend takes in a call",
    ]
    assert all(one.rows * one.law.size <= 2**24 for one in plan_pairs(small, "full", SPLIT, ROWS))
    engine = replace(capabilities, level=3)
    assert [one.words for one in unplanned_pairs(engine, "full", ROWS)] == [
        "rows 2^8 to 2^16 rows apart: an engine would admit 73,728 requests",
        "rows 2^31 and 2^32 logits apart: an engine would admit 32,832 requests",
    ]
    card = replace(capabilities, device="cuda")
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 80_000_000_000)
    (left,) = unplanned_pairs(card, "full", ROWS)
    # 7 tensors of 32,832 rows of 2^17 float32: 17.2 GB each
    assert left.words.endswith(
        "80.0 GB are free on cuda, 120 GB are wanted for 7 tensors of 17.2 GB"
    )
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 140_000_000_000)
    assert unplanned_pairs(card, "full", ROWS) == ()
    pairs = plan_pairs(card, "full", SPLIT, ROWS)
    # both wide rows are one case, asked of other rows
    assert len({one.name for one in pairs}) == len(pairs) == len({one.case.id for one in pairs}) + 1
    (far,) = (one for one in pairs if one.check.name == "independent-farthest-rows")
    assert [lag.rows * far.law.size for lag in far.lags] == [2**31, 2**32]


def test_a_pass_names_the_rows_that_were_not_paired():
    sampler = Independent()
    plan = make_plan(sampler.capabilities, glob="independence.rows", run_seed=SEED)
    (decision,) = run(OpenSubject(sampler, SEED), plan, ReportWriter(None)).decisions
    assert decision.verdict.status is Status.PASS
    assert decision.reason.split("; ")[0] == "not run: rows 2^24 logits apart"
    assert decision.reason.count("not run: ") == 2

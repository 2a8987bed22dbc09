"""Rows of many laws in `draw.law`: a right kernel passes, a row that takes its neighbour's does not."""

import io
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from refsampler.backends.native import NativeKernel
from refsampler.conformance.checks.mixed import WRONG, mixed_power, plan_mixed, stray_power
from refsampler.conformance.evidence.guarantees import BETA
from refsampler.conformance.finished import gather
from refsampler.conformance.plan import LAW, make_plan, sure
from refsampler.conformance.records import MixedRecord, Record, ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import Sequential
from refsampler.conformance.shards import NONE
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status

SEED = 20251
PER_ROW = ("temperature", "top_k", "top_p", "min_p")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plan():
    """Only the mixed rows; the clause is finished when they are."""
    made = make_plan(NativeKernel().capabilities, glob="draw.law", run_seed=SEED)
    return replace(made, cases=(), laws=(), sequential=Sequential(), planned={LAW: 1})


class Stale(NativeKernel):
    """In some rows the parameters, or the logits, are those of the row before."""

    def __init__(self, what, rate):
        super().__init__()
        self.what, self.rate, self.noise = what, rate, np.random.default_rng(7)

    def draw(self, logits, rows):
        stale = torch.from_numpy(self.noise.random(len(logits)) < self.rate)
        if self.what == "logits":
            return super().draw(torch.where(stale[:, None], logits.roll(1, 0), logits), rows)
        fields = {name: getattr(rows, name) for name in PER_ROW}
        taken = {
            name: torch.where(stale, one.roll(1), one)
            for name, one in fields.items()
            if one is not None
        }
        return super().draw(logits, replace(rows, **taken))


def asked(kernel, plan, **options):
    stream = io.BytesIO()
    subject = OpenSubject(kernel or NativeKernel(), SEED)
    outcome = run(subject, plan, ReportWriter(stream), **options)
    assert outcome.errors == ()
    decoder = msgspec.json.Decoder(Record)
    records = tuple(decoder.decode(line) for line in stream.getvalue().splitlines())
    return {one.verdict.clause: one for one in outcome.decisions}, records


def test_native_passes_and_repeats_and_comes_back(plan):
    decisions, records = asked(NativeKernel(), plan)
    assert {name: one.verdict.status for name, one in decisions.items()} == {LAW: Status.PASS}
    assert decisions[LAW].verdict.draws == 8 * 256
    assert "8 calls of 256 rows" in decisions[LAW].reason
    (record,) = (one for one in records if isinstance(one, MixedRecord))
    # rounding leaves few ids of filtered rows open
    assert (record.outside, record.draws) == (0, 2048)
    assert record.skipped < 20
    # as a merge of shards sees it, which asks nobody
    merged, _ = asked(None, plan, finished=gather(records, latched=False), share=NONE)
    assert merged[LAW].verdict.status is Status.PASS
    assert merged[LAW].verdict.draws == 2048


def test_the_same_seed_draws_the_same(plan):
    (one,) = plan.mixed
    short = replace(plan, mixed=(replace(one, case=replace(one.case, calls=1)),))
    first, again = (
        [
            record.ids
            for record in asked(NativeKernel(), short)[1]
            if isinstance(record, MixedRecord)
        ]
        for _ in range(2)
    )
    assert first == again
    assert len(first) == 1


@pytest.mark.parametrize("what", ["logits", "parameters"])
def test_a_row_in_fifty_takes_its_neighbours(plan, what):
    # six of the eight calls are enough
    (one,) = plan.mixed
    short = replace(plan, mixed=(replace(one, case=replace(one.case, calls=6)),))
    decisions, records = asked(Stale(what, 0.02), short)
    # each filter explains some of the impossible ids; one clause explains them all
    failed = {name for name, one in decisions.items() if one.verdict.status is Status.FAIL}
    assert failed == {"batch.isolation"}
    (record,) = (one for one in records if isinstance(one, MixedRecord))
    assert record.outside > 0


class Unfiltered(NativeKernel):
    """Filters nothing, so that each filter explains some wrong ids and a neighbour's row all."""

    def draw(self, logits, rows):
        return super().draw(logits, replace(rows, top_k=None, top_p=None, min_p=None))


def test_rows_that_are_wrong_by_themselves_do_not_blame_their_neighbours(plan):
    (one,) = plan.mixed
    short = replace(plan, mixed=(replace(one, case=replace(one.case, calls=3)),))
    decisions, _ = asked(Unfiltered(), short)
    failed = {name for name, one in decisions.items() if one.verdict.status is Status.FAIL}
    assert failed
    assert failed <= {"top-k.keep", "top-p.keep", "min-p.keep"}


def test_the_law_itself_fails_where_no_filter_tells(plan):
    (one,) = plan.mixed
    # every id may come: only how often tells
    free = replace(one, hull=np.ones_like(one.hull))
    decisions, records = asked(Stale("logits", 0.1), replace(plan, mixed=(free,)))
    assert {name: one.verdict.status for name, one in decisions.items()} == {LAW: Status.FAIL}
    (record,) = (one for one in records if isinstance(one, MixedRecord))
    assert record.best.startswith(WRONG[0])


def test_the_power_is_planned_and_grows_with_the_calls(plan):
    (one,) = plan.mixed
    assert "law of the row before in 10% of mixed rows" in [power.bias for power in sure(plan)]
    fewer = replace(one, case=replace(one.case, calls=1))
    few = mixed_power(fewer, plan.log_threshold, 10).probability
    assert few < 0.9 < 1 - BETA <= mixed_power(one, plan.log_threshold, 10).probability
    # to first order in the rate, which the logarithm leaves by a hundredth at most
    outside = (np.exp(one.logprobs[np.arange(-1, 255)]) * ~one.hull).sum()
    missed = -math.log1p(-stray_power(fewer).probability)
    assert missed == pytest.approx(0.02 * outside, rel=0.011)
    assert stray_power(one).probability > 0.99999


def test_no_two_rows_are_alike_and_the_tolerance_is_a_laws(plan):
    (one,) = plan.mixed
    pairs = list(zip(one.case.logits.rows, one.case.requests, strict=True))
    assert len(set(pairs)) == len(pairs) == 256
    assert (one.core.any(axis=1)).all()
    assert not (one.core & ~one.hull).any()
    wider = replace(plan.capabilities, delta=plan.capabilities.delta + 1e-3)
    ((other,), _) = plan_mixed(wider, "full")
    assert other.delta - one.delta == pytest.approx(1e-3)
    # M is at least the largest |logit| / T
    cold = min(request.params.temperature for request in one.case.requests)
    assert one.delta.max() >= 2.0**-23 * 0.75 * math.log2(one.core.shape[1]) / cold


def test_engines_are_told_that_it_is_not_planned(plan):
    none, why = plan_mixed(replace(plan.capabilities, level=3), "quick")
    assert none == ()
    assert "engine" in why
    none, why = plan_mixed(replace(plan.capabilities, max_elements=2**20 - 1), "quick")
    assert (none, "1048576 logits" in why) == ((), True)

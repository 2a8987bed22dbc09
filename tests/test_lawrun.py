"""Laws that end early: where every declared alternative is refuted, never before the least draws."""

import io
from dataclasses import replace

import msgspec
import pytest

from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.finished import gather
from refsampler.conformance.plan import LAW, make_plan
from refsampler.conformance.records import LawRecord, Record, ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import Sequential
from refsampler.conformance.shards import NONE
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status
from tests.broken_samplers import Warmer

SEED = 5


@pytest.fixture
def plan(few_draws):
    made = make_plan(RightKernel.capabilities, glob="draw.law", run_seed=SEED)
    alone = replace(made, cases=(), mixed=(), sequential=Sequential())
    return replace(alone, planned={LAW: len(made.laws)})


def asked(kernel, plan, **options):
    stream = io.BytesIO()
    outcome = run(OpenSubject(kernel, SEED), plan, ReportWriter(stream), **options)
    decoder = msgspec.json.Decoder(Record)
    records = [decoder.decode(line) for line in stream.getvalue().splitlines()]
    (law,) = (one for one in outcome.decisions if one.verdict.clause == LAW)
    return law, [one for one in records if isinstance(one, LawRecord)]


def test_a_right_kernel_is_accepted_early_and_says_so(plan):
    law, records = asked(RightKernel(), plan)
    assert law.verdict.status is Status.PASS
    assert law.cases == len(plan.laws)
    early = [one for one in records if one.refuted]
    assert early
    for one, planned in zip(records, plan.laws, strict=True):
        assert planned.least <= one.draws <= planned.draws == one.planned
        assert one.refuted == (planned.carried if one.draws < planned.draws else ())
        # each of them is refuted by the draws of this row: 5e-7 = e^-14.5087
        assert one.checkpoint is not None
        for name, log_e in zip(
            (alternative.name for alternative in planned.law.alternatives),
            one.checkpoint.components,
            strict=True,
        ):
            assert name not in one.refuted or log_e is None or log_e <= -14.5
    drawn, most = sum(one.draws for one in early), sum(one.planned for one in early)
    assert f"{len(early)} laws accepted early, after {drawn:,} of {most:,} draws" in law.reason
    assert drawn < most / 2
    # as a merge sees it, which asks nobody
    again, _ = asked(RightKernel(), plan, finished=gather(records, latched=False), share=NONE)
    assert (again.reason, again.verdict.draws, again.cases) == (
        law.reason,
        law.verdict.draws,
        law.cases,
    )
    assert again.verdict.status is Status.PASS


def test_what_a_row_carries_is_shown_if_it_is_there(plan):
    # 5 % too warm, which the plan says it shows
    assert "temperature +5 %" in {name for one in plan.laws for name in one.carried}
    law, records = asked(Warmer(), plan)
    assert law.verdict.status is Status.FAIL
    assert all("temperature +5 %" not in one.refuted for one in records)

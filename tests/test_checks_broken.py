"""Small wrong samplers fail the clause that they break, and no clause that they obey."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest

from refsampler.conformance.case import decode_case
from refsampler.conformance.checks import generated
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import Plan, PlannedCase, make_plan
from refsampler.conformance.records import CaseRecord, ReportWriter, read_report
from refsampler.conformance.runner import Outcome, run
from refsampler.conformance.sequential import Sequential
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import Status
from tests import broken_samplers
from tests.shapes import unchecked

# what fails beside the clause because of the same mistake, on inputs where that clause is broken too
CONSEQUENCES = {
    "effect.parameters": {
        "NoTemperature",
        "AllowListIgnored",
        "BadWordsIgnored",
        "PenaltyFlipped",
    },
    "greedy.argmax": {"PastTheEnd"},
    "mask.flagged": {"AllowListIgnored", "BadWordsIgnored"},
    "seed.batch": {"SeedIgnored", "NeighboursFilters"},
    "logprobs.gather": {"ProcessedLogprobs"},
    "temperature.scale": {"Warmer"},
    "determinism.repeat": {"SeedIgnored"},
}


WITH_LAWS = ("RightKernel", "Warmer")
SEED = 20250
MOST_CASES = 8
MOST_BATCHES = 3
BATCH_CHECKS = ("rows-beside-others", "rows-permuted", "batch-sizes", "sizes-beside-alone")
SEED_CHECKS = (
    "seeds-again",
    "seeds-repeated",
    "seeds-under-load",
    "seeds-surrounded",
    "seeds-differ",
)


def few_of_each(cases: Iterable[PlannedCase]) -> tuple[PlannedCase, ...]:
    """At most eight cases of a check, spread over those that it has: what they show, more repeat.

    Of large batches three do: they differ in their sizes, of which Crashing alone minds any, all over 8.
    """
    by_check: dict[str, list[PlannedCase]] = {}
    for one in cases:
        by_check.setdefault(one.check.name, []).append(one)
    most = {name: MOST_BATCHES if name in BATCH_CHECKS else MOST_CASES for name in by_check}
    return tuple(
        one
        for name, many in by_check.items()
        for one in many[:: max(1, -(-len(many) // most[name]))]
    )


@cache
def small_plan(level: int, widest: int = 140) -> Plan:
    """A plan of the cases over small vocabularies; wide rows only show faults at block edges."""
    right = RightKernel() if level == 1 else broken_samplers.RightSampler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "COUNT", 20)
        plan = make_plan(right.capabilities, run_seed=SEED)
    cases = few_of_each(
        one
        for one in plan.cases
        if one.case.logits.vocab <= widest or one.check.name in SEED_CHECKS
    )
    laws = tuple(one for one in plan.laws if one.case.logits.vocab < 100 and not one.carried)[:3]
    return replace(plan, cases=cases, laws=laws, mixed=(), sequential=Sequential())


def failures(name: str) -> list[str]:
    """The clauses that fail, or the errors of the harness."""
    sampler = getattr(broken_samplers, name)()
    with one_thread(), unchecked():
        plan = small_plan(sampler.capabilities.level)
        plan = replace(plan, laws=plan.laws if name in WITH_LAWS else ())
        outcome = run(OpenSubject(sampler, SEED), plan, ReportWriter(None), minimise=False)
    return [*failing(outcome), *outcome.errors]


def failing(outcome: Outcome) -> list[str]:
    verdicts = [one.verdict for one in outcome.decisions]
    return [str(one.clause) for one in verdicts if one.status is Status.FAIL]


@pytest.mark.parametrize(
    ("sampler", "clause"),
    [
        ("OneMore", "top-k.keep"),
        ("TiesCut", "top-k.ties"),
        ("CrossingDropped", "top-p.keep"),
        ("MassFirst", "order.pipeline"),
        ("NoTemperature", "temperature.scale"),
        ("PastTheEnd", "output.range"),
        ("NeighboursFilters", "batch.isolation"),
        ("SeedIgnored", "seed.reproducible"),
        ("OneSeed", "seed.effect"),
        ("LastTie", "greedy.tie"),
        ("LastIdDropped", "relabel.equivariance"),
        ("InputMutated", "input.untouched"),
        ("ColumnOfIds", "output.form"),
        ("Crashing", "output.returns"),
        ("NanSpreads", "nonfinite.contained"),
        ("AbsoluteMinP", "min-p.keep"),
        ("AllowListIgnored", "mask.allowed"),
        ("BadWordsIgnored", "mask.bad-words"),
        ("PromptCounts", "penalty.frequency"),
        ("PenaltyFlipped", "penalty.repetition"),
        ("WrongRank", "logprobs.rank"),
        ("ProcessedLogprobs", "logprobs.raw"),
        # planned power for 5 %: 1 - 1e-6 and more
        ("Warmer", "draw.law"),
    ],
)
def test_a_wrong_sampler_fails_the_clause_that_it_breaks_and_no_other(sampler, clause):
    found = {*failures(sampler)}
    consequences = {name for name, samplers in CONSEQUENCES.items() if sampler in samplers}
    assert clause in found
    assert found <= {clause} | consequences


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", ["RightKernel", "RightSampler"])
def test_a_right_sampler_fails_nothing(sampler):
    # false alarm: at most 1e-9 by the plan
    assert failures(sampler) == []


def test_a_smaller_case_of_a_generated_batch_changes_no_verdict(tmp_path):
    plan = small_plan(1)
    cases = tuple(one for one in plan.cases if one.check.name == "generated-batches")
    plan = replace(plan, cases=cases, laws=())
    sampler = broken_samplers.InputMutated()
    with one_thread(), unchecked(), ReportWriter((tmp_path / "r.jsonl").open("wb")) as writer:
        shown = run(OpenSubject(sampler, SEED), plan, writer)
        known = run(OpenSubject(sampler, SEED), plan, ReportWriter(None), minimise=False)
    assert failing(shown) == failing(known) == ["input.untouched"]
    records = [one for one in read_report(tmp_path / "r.jsonl") if isinstance(one, CaseRecord)]
    (smaller,) = [one for one in records if one.shrunk_from is not None]
    assert smaller.shrunk_from in {one.id for one in cases}
    assert len(decode_case(bytes(smaller.case)).requests) == 1

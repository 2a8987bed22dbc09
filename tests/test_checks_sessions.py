"""Checks that hold a conversation: sessions, admission, metadata, modes, refusals, size, cost."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.backends.reference import ReferenceEngine, ReferenceSampler, ReferenceSession
from refsampler.clauses import load
from refsampler.conformance import memory
from refsampler.conformance.case import Case, SessionStep, decode_case, encode_case
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import admission, cost, large, refusals
from refsampler.conformance.checks import sessions as session_checks
from refsampler.conformance.checks.standing import standing
from refsampler.conformance.cli import main
from refsampler.conformance.designed import processors, ragged
from refsampler.conformance.designed import sessions as designed
from refsampler.conformance.designed.build import batch, flat, peak, request
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.reporting.records import header_record
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import Sequential
from refsampler.conformance.session_cases import sessions
from refsampler.conformance.sessions import drive, sample_fresh, step_cases
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import Status
from refsampler.params import SamplingParams
from refsampler.request import Request
from tests import broken_sessions
from tests.shapes import unchecked

SEED = 4711
EVERYTHING = frozenset(Feature)

# what fails beside the clause because of the same mistake, on inputs where that clause is broken too
CONSEQUENCES = {
    "NeighboursLogprobs": {"logprobs.finite"},
}


GLOBS = {
    2: ("batch.flags", "mask.*", "bias.*", "penalty.*", "greedy.*", "logprobs.*", "refuse.*"),
    3: ("batch.state", "history.*", "input.validated", "mask.*", "penalty.*", "logprobs.*"),
}
"""Level -> clauses that these mistakes might touch."""


PLANS: list[Plan] = []


def small_plan(capabilities: Capabilities) -> Plan:
    """A plan of the exact cases over small vocabularies, about all that these mistakes touch."""
    known = [one for one in PLANS if one.capabilities == capabilities]
    if known:
        return known[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_checks, "COUNT", 12)
        plans = [
            make_plan(capabilities, glob=glob, run_seed=SEED) for glob in GLOBS[capabilities.level]
        ]
    cases = {
        (one.check.name, one.id): one
        for plan in plans
        for one in plan.cases
        if one.case.logits.vocab <= 140 or one.check.ask is not None
    }
    merged = tuple(cases.values())
    PLANS.append(replace(plans[0], cases=merged, laws=(), sequential=Sequential()))
    return PLANS[-1]


def failures(name: str) -> list[str]:
    """The clauses that fail, or the errors of the harness."""
    subject = getattr(broken_sessions, name)()
    with one_thread(), unchecked():
        plan = small_plan(subject.capabilities)
        outcome = run(OpenSubject(subject, SEED), plan, ReportWriter(None), minimise=False)
    failed = [
        str(one.verdict.clause) for one in outcome.decisions if one.verdict.status is Status.FAIL
    ]
    return [*failed, *outcome.errors]


@pytest.mark.parametrize(
    ("subject", "clause"),
    [
        ("PenaltyOfTheRowAbove", "penalty.history"),
        ("PlaceholderIsTheLastId", "penalty.history"),
        ("PrefixInThePrompt", "mask.bad-words"),
        ("OneTokenLate", "mask.min-tokens"),
        ("BothFlags", "batch.flags"),
        ("MaskBroadcast", "mask.width"),
        ("StrictRank", "logprobs.rank"),
        ("ListForEverybody", "logprobs.gather"),
        ("NeighboursLogprobs", "logprobs.raw"),
        ("NanForEmptyRows", "logprobs.finite"),
        ("FilteredGreedyRows", "logprobs.raw"),
        ("AskingReseeds", "logprobs.neutral"),
        ("PenaltiesDropped", "refuse.unsupported"),
        ("SeedsDroppedBesideLists", "refuse.unsupported"),
        ("NothingChecked", "input.validated"),
        ("RefusedStays", "input.validated"),
        ("HistoryStays", "batch.state"),
        ("ParameterStays", "batch.state"),
        ("EmittedLate", "penalty.history"),
        ("ForgetsWaiting", "history.preempt"),
        ("RecordsLate", "logprobs.step"),
    ],
)
def test_a_wrong_subject_fails_the_clause_that_it_breaks_and_no_other(subject, clause):
    found = {*failures(subject)}
    assert clause in found
    assert found <= {clause} | CONSEQUENCES.get(subject, set())


@pytest.mark.parametrize("subject", ["RightSampler", "RightEngine"])
def test_a_right_subject_fails_nothing(subject):
    assert failures(subject) == []


class Recorded(ReferenceSession):
    calls: list[tuple[object, ...]]

    def add(self, id, request):  # noqa: A002 - the protocol's name
        self.calls.append(("add", id, request.output))
        super().add(id, request)

    def remove(self, id):  # noqa: A002 - the protocol's name
        self.calls.append(("remove", id))
        super().remove(id)

    def sample(self, ids, logits):
        self.calls.append(("sample", *ids))
        return super().sample(ids, logits)

    def accept(self, ids, tokens):
        self.calls.append(("accept", *ids, *map(tuple, tokens)))
        super().accept(ids, tokens)


class RecordedEngine(ReferenceEngine):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, ...]] = []

    def open(self, vocab, seed):
        session = Recorded(vocab, seed)
        session.calls = self.calls
        return session


def test_a_script_becomes_the_calls_of_a_session():
    script = designed.Script(vocab=16)
    script.add(4, (peak(3), request()))
    script.add(9, (peak(5), request(prompt=(1,))))
    script.step([9, 4], {9: (5,), 4: (3, 3)})
    script.step([4], {4: (7,)})
    script.remove(4)
    script.add(2, (flat(), request(output=(8,))))
    script.step([2, 9])
    case = script.case("batch.state")
    engine = RecordedEngine()
    drawn = drive(OpenSubject(engine, 1), case, 3)
    assert engine.calls == [
        ("add", 9, ()),
        ("add", 4, ()),
        ("sample", 9, 4),
        ("accept", 4, (3, 3)),
        ("sample", 4),
        ("accept", 9, (5,)),
        ("remove", 4),
        ("add", 2, (8,)),
        ("sample", 2, 9),
    ]
    assert [one.ids.tolist() for one in drawn[:2]] == [[5, 3], [3]]
    assert [one.output for one in case.requests] == [(), (), (3, 3), (8,), (5,)]


def test_one_request_can_be_driven_by_itself():
    script = designed.Script(vocab=16)
    for name in (0, 1):
        script.add(name, (peak(3 + name), request()))
    script.step([0, 1], {1: (4,)})
    script.step([0])
    script.step([1, 0])
    engine = RecordedEngine()
    drawn = drive(OpenSubject(engine, 1), script.case("batch.state"), 3, only=1)
    assert [one.ids.tolist() for one in drawn] == [[4], [4]]
    assert {call[1] for call in engine.calls} == {1}


def test_steps_travel_in_the_case_and_must_match_the_rows():
    case = batch(8, [(flat(), request())] * 3, "batch.state")
    stepped = replace(case, steps=(SessionStep((0, 1)), SessionStep((1,), removed=(0,))))
    assert decode_case(encode_case(stepped)) == stepped
    assert stepped.id != case.id
    assert [len(part.requests) for part in step_cases(stepped)] == [2, 1]
    with pytest.raises(ValueError, match="steps: 2 rows are sampled"):
        replace(case, steps=(SessionStep((0, 1)),))


@settings(max_examples=12)
@given(sessions("batch.state", features=EVERYTHING, waiting=True))
def test_generated_sessions_can_be_driven_and_have_one_right_id_a_row(case: Case):
    subject = OpenSubject(ReferenceEngine(), 5)
    here, fresh = drive(subject, case, 1), sample_fresh(subject, case)
    assert [len(one.ids) for one in here] == [len(step.ids) for step in case.steps]
    assert all(np.array_equal(one.ids, two.ids) for one, two in zip(here, fresh, strict=True))


def made(fields) -> Request | SamplingParams:
    return request(**fields) if {"prompt", "output"} & {*fields} else SamplingParams(**fields)


@pytest.mark.parametrize(
    "bad", admission.bad_requests(64, EVERYTHING), ids=lambda one: f"{one.field}={one.value}"
)
def test_what_is_called_bad_is_out_of_range(bad):
    # the ranges of SamplingParams were read off the engine's documentation, not off this list
    fields = {bad.field: bad.value}
    with pytest.raises((ValueError, TypeError), match=bad.field):
        made(fields).verify(64)


def test_unchecked_requests_leave_the_default_parameters_alone():
    assert admission.unchecked("temperature", -1.0).params.temperature == -1.0
    assert SamplingParams().temperature == 1.0


class Counting(ReferenceEngine):
    added = 0

    def open(self, vocab, seed):
        engine = self

        class Session(ReferenceSession):
            def add(self, id, request):  # noqa: A002 - the protocol's name
                engine.added += 1
                super().add(id, request)

        return Session(vocab, seed)


def test_an_engines_law_is_drawn_from_a_few_hundred_requests():
    engine = Counting()
    subject = OpenSubject(engine, 5)
    case = batch(8, [(flat(), request())], "draw.law")
    first, second = (subject.sample_many(case, 3000, call) for call in (0, 1))
    assert engine.added == 256
    assert len(first) == len(second) == 3000
    assert {*first} == set(range(8))
    # other noise at every step: equal ids with probability 8^-256 a step
    assert not np.array_equal(first[:256], first[256:512])
    assert not np.array_equal(first, second)
    again = OpenSubject(Counting(), 5)
    assert np.array_equal(again.sample_many(case, 3000, 0), first)


@pytest.fixture
def small_index(monkeypatch):
    monkeypatch.setattr(memory, "ELEMENTS", 2**17 * 4)
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 2**40)


class Wraps(NativeKernel):
    """Row offsets wrap around at the end of the index."""

    def draw(self, logits, rows):
        end = memory.ELEMENTS // logits.shape[1]
        return super().draw(logits[torch.arange(len(logits)) % end], rows)


@pytest.mark.parametrize(("kernel", "wrong"), [(NativeKernel, False), (Wraps, True)])
def test_a_row_offset_that_wraps_is_seen(small_index, kernel, wrong):
    check, _ = large.CHECKS
    subject = OpenSubject(kernel(), 5)
    judged = [judge_case(subject, check, case) for case in check.cases(subject.capabilities, 5)]
    found = [[one.clause for one in case.findings] for case in judged]
    assert found == ([["input.large"]] if wrong else [[]]) * 3
    # 4 rows to the signed end, asked with top-k too, 8 to the unsigned one, and 8 beyond each
    assert [case.draws for case in judged] == [12, 12, 16]


class Faults(NativeKernel):
    """The kernel faults beyond the end of the index."""

    def draw(self, logits, rows):
        if logits.numel() > memory.ELEMENTS:
            raise RuntimeError("an illegal memory access was encountered")
        return super().draw(logits, rows)


def test_a_large_batch_that_raises_breaks_its_own_clause_too(small_index):
    check, _ = large.CHECKS
    subject = OpenSubject(Faults(), 5)
    case = next(iter(check.cases(subject.capabilities, 5)))
    found = {str(one.clause): one.seen for one in judge_case(subject, check, case).findings}
    assert found.keys() == {"output.returns", "input.large"}
    assert "illegal memory access" in found["input.large"]


def test_the_unsigned_end_is_not_asked_for_where_memory_is_short(small_index, monkeypatch):
    check, _ = large.CHECKS
    # enough for 7 tensors of 2^19 float32, not for tensors twice as large
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 20_000_000)
    subject = OpenSubject(NativeKernel(), 5)
    asked = [judge_case(subject, check, case) for case in check.cases(subject.capabilities, 5)]
    assert [bool(one.unasked) for one in asked] == [False, False, True]


def test_large_batches_are_not_run_where_memory_is_short(monkeypatch):
    check, _ = large.CHECKS
    capabilities = NativeKernel().capabilities
    clause = next(one for one in load().clauses if one.id == "input.large")
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 23_000_000_000)
    stands = standing(clause, capabilities)
    assert stands.status is Status.NOT_RUN
    # 7 tensors of 2^31 float32
    assert "23.0 GB are free on cpu, 60 GB are wanted for 7 tensors of 8.6 GB" in stands.reason
    assert tuple(check.cases(capabilities, 0)) == ()
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 61_000_000_000)
    assert standing(clause, capabilities).status is None
    assert len(tuple(check.cases(capabilities, 0))) == 3
    # in the quick profile it would take too long
    assert make_plan(capabilities, glob="input.large", run_seed=1).cases == ()
    assert len(make_plan(capabilities, profile="full", glob="input.large", run_seed=1).cases) == 3


@pytest.mark.parametrize(
    ("device", "elements", "ends"),
    [("cuda", 2**31, [1, 2]), ("cpu", 2**31, []), ("cpu", 2**22, [1, 2])],
)
def test_the_quick_profile_asks_for_large_batches_where_they_take_a_second(
    monkeypatch, device, elements, ends
):
    monkeypatch.setattr(memory, "ELEMENTS", elements)
    monkeypatch.setattr(memory, "free_bytes", lambda _device="cpu": 140_000_000_000)
    capabilities = replace(NativeKernel().capabilities, device=device)
    cases = make_plan(capabilities, glob="input.large", run_seed=1).cases
    # 2^32 logits on a core take 90 s; the batch beyond the signed end has top-k
    assert [len(one.case.requests) for one in cases] == ends
    assert [one.case.requests[0].params.top_k for one in cases] == [20, 0][: len(ends)]


def test_a_plan_is_made_again_as_it_was_made_where_more_or_less_memory_was_free():
    capabilities = NativeKernel().capabilities
    plans = {
        free: make_plan(
            capabilities, profile="full", glob="input.large", run_seed=1, free_bytes=free
        )
        for free in (23_000_000_000, 61_000_000_000)
    }
    assert [len(plan.cases) for plan in plans.values()] == [0, 3]
    assert [plan.free_bytes for plan in plans.values()] == [*plans]
    # a report keeps the figure, so that shards can be merged and a killed run resumed elsewhere
    assert header_record(plans[61_000_000_000], "native", None).free_bytes == 61_000_000_000


def test_an_engine_has_no_metadata_to_contradict_itself():
    found = {str(one.id): standing(one, ReferenceEngine().capabilities) for one in load().clauses}
    assert found["batch.flags"].status is found["mask.width"].status is Status.NOT_RUN
    assert "never metadata" in found["batch.flags"].reason
    assert found["batch.state"].status is None


def test_coverage_has_a_check_for_every_must_that_can_run_here():
    result = CliRunner().invoke(main, ["clauses", "--coverage"])
    assert result.exit_code == 0, result.stdout
    assert "not available yet" not in result.stdout


def test_cost_is_reported_beside_a_pass():
    sampler = ReferenceSampler()
    plan = make_plan(sampler.capabilities, glob="cost.*", run_seed=1)
    (decision,) = run(OpenSubject(sampler, 1), plan, ReportWriter(None)).decisions
    assert decision.verdict.status is Status.PASS
    assert "takes" in decision.reason
    assert {one.check for one in plan.cases} == {*cost.CHECKS}


class Refuses(ReferenceSampler):
    """Declares nothing and names what it refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = Capabilities("refuses", "1", 2)

    def sample(self, logits, metadata, *, logprobs_mode=None):
        if metadata.generators:
            raise ValueError("seed is not supported")
        if not metadata.no_penalties:
            raise ValueError("penalties are not supported")
        return super().sample(logits, metadata, logprobs_mode=logprobs_mode)


def test_a_named_refusal_is_as_good_as_a_right_result():
    (check,) = refusals.CHECKS
    subject = OpenSubject(Refuses(), 5)
    cases = tuple(check.cases(subject.capabilities, 5))
    assert len(cases) == 9
    assert [judge_case(subject, check, case).findings for case in cases] == [()] * 9


def test_exchanging_the_ends_twice_gives_the_same_cases():
    cases = (*processors.mask_cases(), *processors.bias_cases(), *processors.penalty_cases())
    once = ragged.swapped(cases)
    assert ragged.swapped(once) == cases
    assert {one.id for one in once}.isdisjoint(one.id for one in cases)
    assert once[0].logits.rows[0].ids == (11, 5, 0)


def test_ragged_batches_put_long_histories_beside_empty_ones():
    first, backwards = ragged.ragged(processors.penalty_cases(), "penalty.history")
    assert first.requests == backwards.requests[::-1]
    lengths = [len(one.output) + len(one.prompt) for one in first.requests]
    assert max(lengths) == 100
    assert min(lengths) == 0

"""The run: statuses, exit codes, records on disk, time budgets, crashes, replays."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Capabilities, DType, Fold
from refsampler.clauses import ClauseId, Level, load
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import Check, Finding, Kind
from refsampler.conformance.checks.standing import owned_clauses, standing
from refsampler.conformance.decisions import Decision, Tally, decide, exit_code, headline
from refsampler.conformance.designed.build import batch, masses, request, row
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.findings import finding_of, finding_record
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.records import CaseRecord, Header, ReportWriter, read_report
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject, SubjectError, derived_seed
from refsampler.conformance.verdict import Exact, ExitCode, Status, Verdict
from tests.broken_samplers import RightSampler

SEED = 11


def small(plan: Plan, *names: str) -> Plan:
    return replace(plan, cases=tuple(one for one in plan.cases if one.check.name in names), laws=())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(RightKernel.capabilities, glob="top-k.*", run_seed=SEED)


def statuses(outcome) -> dict[str, Status]:
    return {str(one.verdict.clause): one.verdict.status for one in outcome.decisions}


def test_a_glob_plans_and_decides_only_its_clauses(plan):
    outcome = run(OpenSubject(RightKernel(), SEED), plan, ReportWriter(None))
    assert statuses(outcome) == dict.fromkeys(
        ("top-k.keep", "top-k.ties", "top-k.off"), Status.PASS
    )
    assert {one.check.name for one in plan.cases} == {"top-k-rows"}


def test_a_time_budget_of_nothing_is_inconclusive(plan):
    outcome = run(OpenSubject(RightKernel(), SEED), plan, ReportWriter(None), time_budget=0)
    assert set(statuses(outcome).values()) == {Status.INCONCLUSIVE}
    assert exit_code(outcome.decisions, outcome.errors) == ExitCode.INCONCLUSIVE


def test_a_fault_of_the_harness_is_an_error_and_costs_only_its_case(plan):
    def broken(trial):
        raise ZeroDivisionError("ours")

    first = plan.cases[0]
    spoilt = replace(first, check=replace(first.check, judge=broken))
    outcome = run(
        OpenSubject(RightKernel(), SEED),
        replace(plan, cases=(spoilt, *plan.cases[1:])),
        ReportWriter(None),
    )
    assert statuses(outcome)["top-k.keep"] is Status.ERROR
    assert statuses(outcome)["top-k.off"] is Status.PASS
    assert exit_code(outcome.decisions, outcome.errors) == ExitCode.HARNESS


class Crashes(RightKernel):
    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def draw(self, logits, rows):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return super().draw(logits, rows)


def test_records_are_on_disk_before_the_next_case(plan, tmp_path):
    path = tmp_path / "report.jsonl"
    with path.open("wb") as stream:
        with pytest.raises(KeyboardInterrupt):
            run(OpenSubject(Crashes(at=4), SEED), plan, ReportWriter(stream))
        # as another process sees it while this one still holds the file
        records = list(read_report(path))
    ids = [one.id for one in records if isinstance(one, CaseRecord)]
    assert ids == [one.id for one in plan.cases[:3]]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "report.jsonl"
    record = CaseRecord(
        check="c", id="1", case=msgspec.Raw(b"{}"), clauses=(), draws=0, seconds=0.0
    )
    with ReportWriter(path.open("wb")) as writer:
        writer.write(record)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    (kept,) = read_report(path)
    assert isinstance(kept, CaseRecord)
    assert kept.id == "1"


def test_unsupported_inherited_and_not_run_have_reasons():
    bare = Capabilities("bare", "1", 1)
    found = {one.id: standing(one, bare) for one in load().clauses}
    assert found[ClauseId("greedy.argmax")].status is Status.INHERITED
    assert found[ClauseId("min-p.keep")].status is Status.INHERITED
    assert found[ClauseId("seed.batch")].status is Status.UNSUPPORTED
    assert "seed" in found[ClauseId("seed.batch")].reason
    assert found[ClauseId("input.large")].status is Status.NOT_RUN
    assert found[ClauseId("top-k.keep")].status is None


def test_a_fold_is_owned():
    folding = replace(RightKernel.capabilities, folds=frozenset({Fold.TEMPERATURE, Fold.GREEDY}))
    owned = owned_clauses(folding)
    assert {"temperature.scale", "greedy.argmax", "greedy.threshold"} <= owned
    assert "min-p.keep" not in owned


def decision(clause: str, status: Status, level: Level = Level.MUST) -> Decision:
    verdict = Verdict(ClauseId(clause), status, None, None, Exact(), "", 0, (), 0.0, "")
    return Decision(verdict, level)


@pytest.mark.parametrize(
    ("decisions", "errors", "code"),
    [
        ([("top-k.keep", Status.PASS)], [], 0),
        ([("top-k.keep", Status.PASS), ("top-p.keep", Status.FAIL)], ["broken"], 1),
        ([("top-k.keep", Status.PASS), ("top-p.keep", Status.INCONCLUSIVE)], [], 3),
        ([("top-k.keep", Status.PASS), ("draw.law", Status.UNSUPPORTED)], [], 3),
        ([("top-k.keep", Status.PASS), ("seed.batch", Status.UNSUPPORTED)], [], 0),
        ([("top-k.keep", Status.PASS), ("top-p.keep", Status.ERROR)], [], 4),
        ([("top-k.keep", Status.PASS)], ["broken"], 4),
        ([("top-k.keep", Status.INHERITED), ("top-p.keep", Status.NOT_RUN)], [], 5),
        ([], [], 5),
    ],
)
def test_exit_codes(decisions, errors, code):
    made = [decision(clause, status) for clause, status in decisions]
    assert exit_code(made, errors) == code


def test_a_should_does_not_gate():
    made = [
        decision("top-k.keep", Status.PASS),
        decision("draw.resolution", Status.FAIL, Level.SHOULD),
    ]
    assert exit_code(made, []) == ExitCode.CONFORMS


def test_the_headline_counts_clauses_without_a_check_apart():
    unchecked = replace(decision("draw.tail", Status.NOT_RUN), unchecked=True)
    line = headline([decision("top-k.keep", Status.PASS), unchecked], ExitCode.CONFORMS)
    assert line.startswith("conforms")
    assert "1 pass" in line
    assert "1 owned MUSTs have no check yet" in line


def test_blame_falls_on_the_clause_that_explains_most():
    case = batch(3, [(row({0: 1.0}), request())], "top-k.keep")
    k, p, effect = (ClauseId(one) for one in ("top-k.keep", "top-p.keep", "effect.parameters"))
    tally = Tally()
    tally.book(case, (Finding(p, "", "1", candidates=(p, k)), Finding(k, "", "2", candidates=(k,))))
    tally.book(case, (Finding(effect, "", "3", given=p), Finding(effect, "", "4", given=k)))
    blamed = tally.blamed()
    assert {clause: len(found) for clause, found in blamed.items()} == {k: 2, effect: 1}


def test_what_never_came_says_nothing_where_noise_is_not_fresh():
    case = batch(3, [(row({0: 1.0}), request())], "batch.size")
    size, fresh, k = (ClauseId(one) for one in ("batch.size", "seed.effect", "top-k.keep"))
    rests = Finding(size, "", "1", 1e-16, candidates=(size, k), unless=fresh)
    tally = Tally()
    tally.book(case, (rests, Finding(k, "", "impossible", candidates=(k,))))
    # with k for both: an unexplained id that never came counts as long as noise is fresh
    assert {clause: len(found) for clause, found in tally.blamed().items()} == {k: 2}
    tally.book(case, (Finding(fresh, "", "ids as in every other call"),))
    assert {clause: len(found) for clause, found in tally.blamed().items()} == {fresh: 1, k: 1}
    assert tally.withheld == {size: fresh}
    assert finding_of(finding_record(rests)) == rests


def test_a_clause_whose_findings_are_withheld_is_not_called_right():
    plan = make_plan(NativeKernel().capabilities, glob="batch.size", run_seed=1)
    case, fresh = plan.cases[0].case, ClauseId("seed.effect")
    tally = Tally()
    tally.book(case, (Finding(ClauseId("batch.size"), "", "1", 1e-16, unless=fresh),))
    tally.book(case, (Finding(fresh, "", "ids as in every other call"),))
    decided = {one.verdict.clause: one for one in decide(plan, tally, {})}
    assert decided[ClauseId("batch.size")].verdict.status is Status.INCONCLUSIVE
    assert decided[ClauseId("batch.size")].reason == "consequence of seed.effect"
    assert decided[fresh].verdict.status is Status.FAIL


def test_unseeded_rows_repeat_only_with_the_run_seed():
    case = batch(512, [(row({}, base=0.0), request())] * 64)
    same, again, other = (
        OpenSubject(NativeKernel(), seed).sample(case, 0, "k").ids for seed in (1, 1, 2)
    )
    assert np.array_equal(same, again)
    # 64 equal ids among 512 have probability 512^-64
    assert not np.array_equal(same, other)
    assert derived_seed(1, "a", 2) != derived_seed(1, "a", 3)


def test_the_callers_generator_is_left_alone():
    case = batch(4, [(row({}, base=0.0), request())])
    before = torch.get_rng_state()
    OpenSubject(NativeKernel(), 1).sample(case, 0, "k")
    assert torch.equal(before, torch.get_rng_state())


def test_a_subjects_exception_keeps_its_words():
    case = batch(4, [(row({}, base=0.0), request())])

    class Fails(RightKernel):
        def draw(self, logits, rows):  # noqa: ARG002 - the protocol's names
            raise RuntimeError("no kernel image")

    with pytest.raises(SubjectError, match="RuntimeError: no kernel image"):
        OpenSubject(Fails(), 1).sample(case, 0, "k")


class Engine:
    """The reference sampler as a level-3 engine."""

    capabilities = replace(RightSampler.capabilities, name="engine", level=3)

    def open(self, vocab, seed):  # noqa: ARG002 - the protocol's name
        return Session(vocab)


class Session:
    def __init__(self, vocab):
        self.vocab, self.requests = vocab, {}

    def add(self, id, request):  # noqa: A002 - the protocol's name
        self.requests[id] = request

    def sample(self, ids, logits):
        from refsampler.metadata import SamplingMetadata

        asked = [self.requests[one] for one in ids]
        return RightSampler().sample(logits, SamplingMetadata.from_requests(asked, self.vocab))

    def close(self):
        self.requests.clear()


def test_an_engine_gets_rows_as_requests_with_their_history():
    recipe = row({0: 150.0, 11: 200.0}, base=-2000.0)
    penalised = request(output=(11,) * 100, frequency_penalty=2.0)
    case = batch(12, [(recipe, penalised), (recipe, request())])
    assert OpenSubject(Engine(), 1).sample(case, 0, "k").ids.tolist() == [0, 11]
    many = OpenSubject(Engine(), 1).sample_many(batch(12, [(recipe, request())]), 5, 0)
    assert many.tolist() == [11] * 5


@pytest.mark.statistical
def test_a_law_case_draws_from_its_law():
    # Chernoff: 4e4 draws of 0.2 leave [0.18, 0.22] with probability below 1e-22
    case = batch(3, [(masses({0: 0.2, 2: 0.8}), request())])
    ids = OpenSubject(NativeKernel(), 3).sample_many(case, 40_000, 0)
    assert 0.18 < (ids == 0).mean() < 0.22
    assert set(ids) == {0, 2}


def test_rows_without_a_law_may_be_refused_by_name():
    lawless = batch(4, [(row({1: float("nan")}, base=0.0), request())], "nonfinite.contained")
    check = Check("any", lawless.clauses, Kind.EXACT, lambda _capabilities, _seed: ())

    class Refuses(RightKernel):
        error: Exception = ValueError("logits: row 0 has no law")

        def draw(self, logits, rows):  # noqa: ARG002 - the protocol's names
            raise self.error

    class Chokes(Refuses):
        error = RuntimeError("probability tensor contains nan")

    assert judge_case(OpenSubject(Refuses(), 1), check, lawless).findings == ()
    found = judge_case(OpenSubject(Chokes(), 1), check, lawless)
    assert [one.clause for one in found.findings] == ["nonfinite.contained"]
    assert found.crashed


def test_the_plan_stays_inside_its_promise(plan):
    assert plan.charge <= 1e-10
    full = make_plan(RightKernel.capabilities, run_seed=SEED)
    generated = [one for one in full.cases if one.check.name == "generated-batches"]
    assert len(generated) >= 200
    assert full.charge <= 1e-10
    seen = {one.bias for one in full.would_see if one.probability >= 1 - 1e-6}
    assert {"temperature -1 %", "temperature +1 %", "greedy mixture +1 %"} <= seen


class _Narrow(NativeKernel):
    """Takes so many logits a call, and keeps one id more than top-k says."""

    def __init__(self, most: int, more: int = 0) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, max_elements=most)
        self.most, self.more = most, more

    def draw(self, logits, rows):
        assert logits.numel() <= self.most, f"{tuple(logits.shape)}"
        if rows.top_k is not None:
            rows = replace(rows, top_k=(rows.top_k + self.more).clamp(max=logits.shape[-1]))
        return super().draw(logits, rows)


def _judged(kernel: NativeKernel, glob: str, profile: str = "quick") -> dict[str, Decision]:
    plan = make_plan(
        kernel.capabilities, profile=profile, glob=glob, run_seed=5, evidence=False, free_bytes=0
    )
    subject, tally = OpenSubject(kernel, 5), Tally()
    for one in plan.cases:
        judged = judge_case(subject, one.check, one.case)
        tally.book(one.case, judged.findings)
        tally.count(one.case.clauses, judged.draws, 0.0)
    return {one.verdict.clause: one for one in decide(plan, tally, {})}


@pytest.mark.parametrize("glob", ["relabel.*", "determinism.*", "batch.size", "top-?.*"])
def test_no_call_has_more_logits_than_the_backend_takes(glob):
    decisions = _judged(_Narrow(2**12), glob)
    assert decisions
    assert not [one for one in decisions.values() if one.verdict.status is Status.FAIL]


def test_a_clause_that_lost_all_its_cases_to_the_limit_is_no_pass():
    wrong = _judged(_Narrow(2**10, more=1), "top-k.keep")["top-k.keep"]
    assert wrong.verdict.status is Status.INCONCLUSIVE
    assert wrong.reason.endswith("more logits in a call than the 1024 that the backend takes")
    assert exit_code([wrong], []) == ExitCode.INCONCLUSIVE


def test_a_clause_that_lost_some_says_so():
    kept = _judged(_Narrow(2**18), "relabel.equivariance")["relabel.equivariance"]
    assert kept.verdict.status is Status.PASS
    assert "1 case not run: more logits in a call than the 262144" in kept.reason


def test_dtypes_that_are_not_declared_are_not_asked():
    plain = replace(
        RightKernel.capabilities, dtypes=frozenset({DType.FLOAT32}), features=frozenset()
    )
    typed = make_plan(plain, glob="input.dtypes", run_seed=1)
    assert {one.case.dtype for one in typed.cases} == {DType.FLOAT32}
    laid = make_plan(plain, glob="input.layout", run_seed=1)
    assert {one.params.seed for planned in laid.cases for one in planned.case.requests} == {None}


def test_header_is_json_with_the_seed(tmp_path: Path):
    header = Header(
        backend="b", backend_version="1", spec="m:b", level=1, device="cpu", semantics="vllm",
        delta=1e-4, floor=1e-6, refsampler="0", torch="2", python="3", machine="x", contract="1.0",
        contract_digest="d", profile="quick", clauses="*", run_seed=5, time_budget=None, alpha=1e-9,
        charge=0.0, planned={}, started="now",
    )  # fmt: skip
    path = tmp_path / "report.jsonl"
    with ReportWriter(path.open("wb")) as writer:
        writer.write(header)
    assert json.loads(path.read_text())["run_seed"] == 5
    assert list(read_report(path)) == [header]

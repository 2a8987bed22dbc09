"""Processes side by side: what one process cannot show fails its clause, and right ones pass."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from refsampler.backends.protocol import Capabilities
from refsampler.backends.reference import ReferenceEngine, ReferenceSampler
from refsampler.conformance.case import Case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.base import Asked, Check, clause_ids
from refsampler.conformance.checks.independence import Pairing, plan_pairs
from refsampler.conformance.evidence.independence import PairProcess
from refsampler.conformance.evidence.pairings import stream_lags
from refsampler.conformance.evidence.pool import ClausePool, equal_weights
from refsampler.conformance.evidence.stream_pairs import StreamPairs
from refsampler.conformance.finished import gather
from refsampler.conformance.isolation import guarded
from refsampler.conformance.plan import Plan, make_plan
from refsampler.conformance.records import CaseRecord, ReportWriter, read_report
from refsampler.conformance.runner import Outcome, run
from refsampler.conformance.sequential import SPLIT
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status
from refsampler.sampler import SamplerOutput
from tests import broken_processes as broken
from tests.broken_streams import Independent

SEED = 20262
APART = 2**20
STREAMS = frozenset(clause_ids("independence.streams"))


def in_processes(plan: Plan) -> Plan:
    """The plan's cases of processes alone."""
    cases = tuple(one for one in plan.cases if one.check.beside is not None)
    pairs = tuple(one for one in plan.sequential.pairs if one.check.beside is not None)
    planned = dict.fromkeys((one.clause for one in pairs), len(pairs))
    planned |= {clause: len(cases) for one in cases for clause in one.case.clauses}
    return replace(
        plan,
        cases=cases,
        laws=(),
        mixed=(),
        planned=planned,
        sequential=replace(plan.sequential, pairs=pairs, tails=()),
    )


def planned(capabilities: Capabilities) -> Plan:
    globs = ("independence.streams", "seed.reproducible", "parallel.ranks")
    first, *others = (
        in_processes(make_plan(capabilities, glob=glob, run_seed=SEED)) for glob in globs
    )
    return replace(
        first,
        cases=tuple({one.id: one for plan in others for one in plan.cases}.values()),
        standings=tuple(one for plan in (first, *others) for one in plan.standings),
        planned={key: n for plan in (first, *others) for key, n in plan.planned.items()},
    )


def statuses(outcome: Outcome) -> dict[str, Status]:
    assert outcome.errors == ()
    return {str(one.verdict.clause): one.verdict.status for one in outcome.decisions}


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "failing"),
    [
        # false alarm: at most 1.5e-10 by the plan
        ("reference-engine", set()),
        ("tests.broken_processes:ConstantSeed", {"independence.streams"}),
        ("tests.broken_processes:HashedSeeds", {"seed.reproducible", "parallel.ranks"}),
    ],
)
def test_processes_show_what_one_of_them_cannot(name, failing):
    with guarded(name, SEED, isolate=False) as subject:
        plan = planned(subject.capabilities)
        found = statuses(run(subject, plan, ReportWriter(None)))
    seedable = "seed" in subject.capabilities.features
    assert {clause for clause, status in found.items() if status is Status.FAIL} == failing
    passing = {clause for clause, status in found.items() if status is Status.PASS}
    assert passing == {"independence.streams", "parallel.ranks"} - failing | (
        {"seed.reproducible"} - failing if seedable else set()
    )


def shown_together(check: Check, case: Case, kind, number: int) -> Asked:
    """What fresh objects with other run seeds show, in place of processes."""
    assert check.ask is not None
    assert check.beside is not None
    asked = [check.ask(OpenSubject(kind(), SEED + place * APART), case) for place in range(number)]
    return check.beside.together(case, tuple(asked))


def streams(kind, number: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Log e of the clause over its threshold, by the case of processes alone."""
    profile = "full" if number == 3 else "quick"
    pairing = Pairing.SEEDED_PROCESSES if issubclass(kind, broken.Seeded) else Pairing.PROCESSES
    pairs = plan_pairs(kind.capabilities, profile, SPLIT, STREAMS)
    (one,) = (pair for pair in pairs if pair.pairing is pairing)
    assert one.streams == number
    pids = iter(range(4242, 4242 + number))
    monkeypatch.setattr(os, "getpid", lambda: next(pids))
    process = one.process()
    for call in one.calls_of(shown_together(one.check, one.case, kind, number)):
        process.update(call)
    pool = ClausePool(
        equal_weights(pair.name for pair in pairs), (), SPLIT.log_threshold(one.clause)
    )
    return pool.update(process.evidence()) - pool.log_threshold


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kind", "number", "seen"),
    [
        # false alarm of a right one: 1.5e-10
        (Independent, 3, False),
        (broken.Seeded, 2, False),
        (broken.NowAndThen, 2, True),
        (broken.TwentyBits, 2, True),
        # of three processes two have the same parity; of two neighbours none
        (broken.PidParity, 3, True),
        (broken.PidParity, 2, False),
    ],
)
def test_streams_of_processes(kind, number, seen, monkeypatch):
    assert (streams(kind, number, monkeypatch) >= 0) is seen


@pytest.mark.parametrize("kind", [broken.Seeded, broken.TiesByChance, ReferenceSampler])
def test_greedy_ties_are_the_same_everywhere(kind):
    (check,) = (one for one in all_checks() if one.name == "processes-agree")
    (case,) = check.cases(kind().capabilities, SEED)
    found = {str(one.clause) for one in shown_together(check, case, kind, 2).findings}
    # 8 steps of 40 equal logits: chance agrees in all with probability 40^-8
    assert found == ({"parallel.ranks"} if kind is broken.TiesByChance else set())


def test_what_a_backend_does_not_own_is_not_asked_for():
    (check,) = (one for one in all_checks() if one.name == "processes-agree")
    unseeded, kernel = Independent.capabilities, Capabilities("kernel", "1", 1)
    (case,) = check.cases(unseeded, SEED)
    assert case.clauses == ("parallel.ranks",)
    assert {one.params.temperature for one in case.requests} == {0.0}
    assert check.cases(kernel, SEED) == ()
    (seeded,) = check.cases(replace(kernel, features=broken.Seeded.capabilities.features), SEED)
    assert seeded.clauses == ("seed.reproducible",)


def test_an_object_without_a_name_is_not_run_and_says_why(tmp_path):
    plan = planned(broken.Seeded.capabilities)
    with ReportWriter((tmp_path / "report.jsonl").open("wb")) as writer:
        outcome = run(OpenSubject(broken.Seeded(), SEED), plan, writer)
    for one in outcome.decisions:
        assert one.verdict.status is Status.NOT_RUN
        assert one.reason == "the backend has no name by which another process could open it"
        # nothing would have been seen of what was not asked
        assert one.verdict.would_see == ()
    records = tuple(read_report(tmp_path / "report.jsonl"))
    assert [one.unasked[:11] for one in records if isinstance(one, CaseRecord)] == ["the backend"]
    again = run(
        OpenSubject(broken.Seeded(), SEED), plan, ReportWriter(None), finished=gather(records)
    )
    assert statuses(again) == statuses(outcome)


def test_a_clause_that_rests_on_other_cases_too_names_what_was_not_run():
    sampler = Independent()
    plan = make_plan(sampler.capabilities, glob="independence.streams", run_seed=SEED)
    kept = tuple(one for one in plan.sequential.pairs if one.pairing is not Pairing.UNIFORMS)[-2:]
    plan = replace(
        plan,
        planned=dict.fromkeys(STREAMS, 2),
        sequential=replace(plan.sequential, pairs=kept),
    )
    assert [one.pairing for one in kept] == [Pairing.THREADS, Pairing.PROCESSES]
    (decision,) = run(OpenSubject(sampler, SEED), plan, ReportWriter(None)).decisions
    assert decision.verdict.status is Status.PASS
    assert decision.reason.startswith("1 case not run: the backend has no name")
    assert [one.bias.partition(":")[0] for one in decision.verdict.would_see] == ["two threads"]


def test_a_backend_that_opens_only_once_is_not_run(monkeypatch, tmp_path):
    lock = tmp_path / "opened"
    (tmp_path / "opens_once.py").write_text(
        "from pathlib import Path\n"
        "from tests.broken_processes import Seeded\n"
        f"def backend():\n    Path({str(lock)!r}).touch(exist_ok=False)\n    return Seeded()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with guarded("opens_once:backend", SEED, isolate=False) as subject:
        found = run(subject, planned(subject.capabilities), ReportWriter(None))
    assert {*statuses(found).values()} == {Status.NOT_RUN}
    assert found.decisions[0].reason.startswith("2 processes could not be opened side by side")


def counted(seeds, steps, vocab):
    """Uniform ids that are a function of seed and step alone."""
    made = (np.random.Philox(key=[seed, step]) for seed, step in zip(seeds, steps, strict=True))
    return torch.tensor([int(np.random.Generator(one).integers(vocab)) for one in made])


class CountedKernel:
    capabilities = replace(ReferenceSampler().capabilities, level=1)

    def draw(self, logits, rows):
        return counted(rows.seed.tolist(), rows.step.tolist(), logits.shape[1])


class CountedEngine:
    capabilities = ReferenceEngine().capabilities

    def open(self, _vocab, _seed):
        self.seeds, self.steps = {}, {}
        return self

    def add(self, one, request):
        self.seeds[one], self.steps[one] = request.params.seed, len(request.output)

    def remove(self, one):
        del self.seeds[one], self.steps[one]

    def sample(self, ids, logits):
        seeds, steps = ([kept[one] for one in ids] for kept in (self.seeds, self.steps))
        return SamplerOutput(
            counted(seeds, steps, logits.shape[1]).int()[:, None],
            None,
            torch.ones(len(logits), dtype=torch.bool),
        )

    def accept(self, ids, tokens):
        for one, more in zip(ids, tokens, strict=True):
            self.steps[one] += len(more)

    def close(self):
        pass


def test_successive_calls_of_a_seed_go_on_with_their_seeds_or_steps():
    from refsampler.conformance.series import SeriesSubject

    for backend in (ReferenceEngine(), ReferenceSampler(), CountedKernel(), CountedEngine()):
        (one,) = (
            pair
            for pair in plan_pairs(backend.capabilities, "quick", SPLIT, STREAMS)
            if pair.pairing is Pairing.SEEDED_PROCESSES
        )
        first, again, other = (
            SeriesSubject(backend, seed).own_stream(one.case, 4, 3, explicit=True)
            for seed in (SEED, SEED, SEED + APART)
        )
        assert first.shape == (3, 4)
        assert np.array_equal(first, again)
        # 12 flat ids of 1,024: two in common with probability 6e-5, by these seeds none
        assert not (first == other).any()
        assert len(np.unique(first)) > 8


def test_three_streams_are_three_pairs_whose_evidence_is_averaged():
    law = np.full(64, 1 / 64)
    rng = np.random.default_rng(5)
    one, two = rng.integers(64, size=(2, 40, 32))
    together = StreamPairs(3, law, stream_lags(1), 0.0, "three", calls=40)
    alone = PairProcess(law, stream_lags(1), 0.0, "two", calls=80)
    for here, there in zip(one, two, strict=True):
        for stream in (here, there, here):
            together.update(stream)
        alone.update_streams(here, here)
    evidence = together.evidence()
    # the pair of copies carries it all: a third of its e-value
    assert evidence.log_e == pytest.approx(alone.log_e - np.log(3), abs=1e-6)
    assert evidence.best.name.endswith("streams 1 and 3")
    assert evidence.draws == 3 * 40 * 32
    with pytest.raises(ValueError, match=r"streams = 1 is refused"):
        StreamPairs(1, law, stream_lags(1), 0.0, "one", calls=1)

"""Simulated draws of a control: the counts follow its law, and nothing else is simulated."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from refsampler.conformance.audit.catches import Watch
from refsampler.conformance.audit.simulated import OwnLaws, SimulatedSubject, simulated_plan
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.designed.build import batch, masses, request, row
from refsampler.conformance.faults.controls import CONTROLS
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import make_plan, reseeded
from refsampler.conformance.runner import run
from refsampler.conformance.verdict import Status

ALPHA = 1e-9
DRAWS = 40_000


@pytest.fixture(scope="module")
def pairs_plan():
    return make_plan(RightKernel.capabilities, glob="independence.*", run_seed=3)


def _subject(plan, case, *, name="Gumbel", mixed=False):
    """Let one case be that of the plan's only law, or of its only mixed batch."""
    laws = () if mixed else (_of(case),)
    batches = (_of(case),) if mixed else ()
    planned = replace(plan, laws=laws, mixed=batches)
    return SimulatedSubject(name, CONTROLS[name](), planned, 3, OwnLaws())


def _of(case) -> Any:
    return SimpleNamespace(case=case)


def _silence(subject, draw):
    """Let the control answer something else, or not at all."""
    subject.backend.draw = draw


@pytest.mark.parametrize("name", [*CONTROLS])
def test_counts_follow_the_law_after_filters(pairs_plan, name):
    """Masses 1/2, 1/4, 1/8, 1/16, 1/16; T = 1/2 squares them, and top-k keeps three: 16 : 4 : 1."""
    row_ = masses({3: 0.5, 0: 0.25, 5: 0.125, 1: 0.0625, 7: 0.0625})
    case = batch(8, [(row_, request(temperature=0.5, top_k=3))], "draw.law")
    subject = _subject(pairs_plan, case, name=name)
    ids = subject.sample_many(case, DRAWS, 0)
    counts = np.bincount(ids, minlength=8)
    assert counts[[1, 2, 4, 6, 7]].sum() == 0
    right, wrong = np.array([16, 4, 1]) / 21, np.array([16, 4.5, 1]) / 21.5
    assert chisquare(counts[[3, 0, 5]], DRAWS * right).pvalue > ALPHA
    # power: an odds ratio 12 % off is as good as never taken for the right one
    assert chisquare(counts[[3, 0, 5]], DRAWS * wrong).pvalue < ALPHA
    assert subject.simulated == DRAWS


def test_calls_seeds_and_controls_have_ids_of_their_own(pairs_plan):
    case = batch(64, [(row({}, base=0.0), request())], "draw.law")
    subject = _subject(pairs_plan, case)
    first = subject.sample_many(case, 512, 0)
    np.testing.assert_array_equal(first, _subject(pairs_plan, case).sample_many(case, 512, 0))
    other = _subject(pairs_plan, case, name="alias table")
    for ids in (subject.sample_many(case, 512, 1), other.sample_many(case, 512, 0)):
        # 512 pairs of 64 ids: 8 agree
        assert binomtest(int((ids == first).sum()), 512, 1 / 64).pvalue > ALPHA


def test_each_row_of_a_mixed_batch_follows_its_own_law(pairs_plan):
    case = batch(8, [(row({place: 0.0}), request()) for place in range(8)], "draw.law", calls=1)
    subject = _subject(pairs_plan, case, mixed=True)
    assert subject.sample(case, 0, f"{case.id}/mixed").ids.tolist() == [*range(8)]
    assert subject.simulated == 8
    # any other call is the control's
    assert subject.sample(case, 0, f"{case.id}/0").ids.tolist() == [*range(8)]
    assert subject.simulated == 8


def test_what_no_law_of_the_plan_asks_is_drawn_by_the_control(pairs_plan):
    planned = batch(8, [(row({}, base=0.0), request())], "draw.law")
    other = batch(9, [(row({}, base=0.0), request())], "draw.law")
    subject = _subject(pairs_plan, planned)
    _silence(subject, lambda logits, _rows: logits.argmax(-1))
    assert (subject.sample_many(other, 5, 0) == 0).all()
    assert subject.simulated == 0


def test_pairs_are_simulated_as_planned_and_found_independent(pairs_plan):
    planned = simulated_plan(pairs_plan)
    subject = SimulatedSubject("Gumbel", CONTROLS["Gumbel"](), planned, 3, OwnLaws())
    _silence(subject, None)
    outcome = run(subject, planned, Watch(), minimise=False)
    assert {one.verdict.status for one in outcome.decisions} == {Status.PASS}
    pairs = [one for one in planned.sequential.pairs if isinstance(one, PlannedPairs)]
    here = sum(one.draws for one in pairs if not one.pairing.in_processes)
    assert outcome.draws == subject.simulated == here > 0


def test_two_streams_meet_as_often_as_chance_has_it(pairs_plan):
    threads = next(one for one in pairs_plan.sequential.pairs if one.pairing == "two threads")
    subject = SimulatedSubject("Gumbel", CONTROLS["Gumbel"](), pairs_plan, 3, OwnLaws())
    calls = np.array([*threads.calls_of(subject.pairs(threads))])
    assert calls.shape == (2 * threads.calls, threads.rows)
    pairs = threads.calls * threads.rows
    meetings = int((calls[::2] == calls[1::2]).sum())
    assert binomtest(meetings, pairs, 1 / threads.law.size).pvalue > ALPHA
    assert len(np.unique(calls)) > threads.law.size / 2


def test_a_plan_under_another_seed_is_the_plan_of_that_seed():
    # seeds and independence: cases that depend on the run seed beside pairs that do not
    kernel, glob = RightKernel.capabilities, "[is][ne][de]*"
    first = make_plan(kernel, glob=glob, run_seed=3)
    exact = make_plan(kernel, glob=glob, run_seed=4, evidence=False)
    found, made = reseeded(first, exact), make_plan(kernel, glob=glob, run_seed=4)
    assert [one.id for one in first.cases] != [one.id for one in made.cases]
    assert (found.run_seed, found.planned, found.charge) == (4, made.planned, made.charge)
    assert [one.id for one in found.cases] == [one.id for one in made.cases]
    assert found.draws == made.draws > 0
    bare = reseeded(first, replace(exact, cases=(), charge=0.0))
    assert (bare.planned, bare.charge) == (first.sequential.counts, 0.0)
    assert bare.planned != first.planned
    assert first.charge > 0

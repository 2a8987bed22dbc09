"""Blame: which clause a wrong id is laid to, and which ones it is not laid to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from refsampler.backends.protocol import DType
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks.attribution import Seen, attribute
from refsampler.conformance.checks.base import Check, Finding, Kind, clause_ids
from refsampler.conformance.checks.standing import owned_clauses
from refsampler.conformance.checks.twins import CHARGE, tame
from refsampler.conformance.decisions import Tally
from refsampler.conformance.designed.build import batch, copies, masses, request, row
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.conformance.logits import RowRecipe
from refsampler.conformance.subject import OpenSubject
from refsampler.semantics import Semantics

K, P, ORDER, RANGE = clause_ids("top-k.keep", "top-p.keep", "order.pipeline", "output.range")
OWNED = owned_clauses(RightSampler().capabilities)


def made_for(*clauses: str) -> Case:
    return batch(3, [(row({0: 1.0}), request())], *clauses)


def blamed(tally: Tally) -> set[str]:
    return {str(clause) for clause in tally.blamed()}


def test_a_further_clause_is_blamed_only_for_a_case_that_was_made_for_it():
    tally = Tally()
    for clause in (K, P):
        tally.count((clause,), 1, 0.0)
    tally.book(made_for(K), (Finding(K, "", "own", candidates=(K,)),))
    tally.book(made_for(P), (Finding(P, "", "own", candidates=(P, K)),))
    tally.book(made_for(), (Finding(P, "", "elsewhere", candidates=(P,)),))
    # what top-p's own case shows is explained by top-k
    assert blamed(tally) == {K}
    assert tally.withheld == {P: K}
    tally.book(made_for(P), (Finding(P, "", "own", candidates=(P,)),))
    assert blamed(tally) == {K, P}
    assert not tally.withheld


def test_where_nothing_else_is_broken_what_shows_elsewhere_counts():
    tally = Tally()
    tally.count((P,), 1, 0.0)
    tally.book(made_for(), (Finding(P, "", "elsewhere", candidates=(P,)),))
    assert blamed(tally) == {P}


def test_a_guess_counts_only_if_nothing_else_does():
    guess = Finding(P, "", "some id", candidates=(P,), guess=True)
    tally = Tally()
    tally.book(made_for(P), (guess,))
    assert blamed(tally) == {P}
    tally.book(made_for(K), (Finding(K, "", "own"),))
    assert blamed(tally) == {K}
    assert tally.withheld == {P: K}


def explained(case: Case, counts: dict[int, int], row: int = 0) -> tuple[str, ...]:
    seen = np.zeros(case.logits.vocab, np.int64)
    seen[list(counts)] = list(counts.values())
    return tuple(attribute(case, row, Seen(seen), Semantics(), OWNED).clauses)


def greedy(values: dict[int, float], *clauses: str, **asked: Any) -> Case:
    return batch(12, [(row(values, base=-2000.0), request(temperature=0.0, **asked))], *clauses)


def test_a_penalty_twice_is_not_one_for_each_occurrence():
    # one occurrence, 800 -> 400 -> 200, below 300: only a second time explains it
    once = greedy({0: 300.0, 11: 800.0}, prompt=(11,), repetition_penalty=2.0)
    assert "order.pipeline" in explained(once, {0: 1})
    assert "penalty.repetition" not in explained(once, {0: 1})
    # three occurrences: 1600 -> 200 by each, 400 by a second time, against 300
    thrice = greedy({0: 300.0, 11: 1600.0}, prompt=(11, 11, 11), repetition_penalty=2.0)
    assert "penalty.repetition" in explained(thrice, {0: 1})
    assert "order.pipeline" not in explained(thrice, {0: 1})


def test_counts_twice_are_a_step_twice():
    # 300 - 50 * 2 = 200, again 100, against 150
    case = greedy({0: 150.0, 11: 300.0}, output=(11,) * 50, frequency_penalty=2.0)
    assert "order.pipeline" in explained(case, {0: 1})


def test_min_p_before_the_temperature_is_the_order():
    # after T = 2 the masses are .506 .307 .186, of which min-p = .5 keeps two; before it keeps one
    case = copies(3, row({0: 2.0, 1: 1.0, 2: 0.0}), request(temperature=2.0, min_p=0.5), ORDER)
    assert explained(case, {0: 256})[0] == "order.pipeline"


def test_min_p_before_a_bias_is_the_order():
    # the bias lifts id 1 far above the rest, min-p = .5 before it would have removed it
    asked = request(temperature=0.5, min_p=0.5, logit_bias=((1, 100.0),))
    case = batch(3, [(row({0: 10.0, 1: 0.0}, base=-9.0), asked)], ORDER)
    assert explained(case, {0: 64})[0] == "order.pipeline"


@pytest.mark.parametrize(("heat", "dtype"), [(1e-4, DType.FLOAT16), (1e-3, DType.FLOAT32)])
def test_half_precision_that_overflows_is_the_temperature(heat, dtype):
    # 11.1 / 1e-4 is beyond 65504, the largest float16
    case = replace(
        batch(4, [(row({0: -100.0, 1: -90.0, 2: 11.1}), request(temperature=heat))]),
        dtype=dtype,
    )
    half = dtype is DType.FLOAT16
    assert ("temperature.scale" in explained(case, {1: 1})) is half


def test_a_lowered_temperature_is_the_threshold():
    # .8 apart at T = .7: the second has probability .24, at T = .02 e^-40
    case = copies(8, row({2: 0.8, 5: 0.0}), request(temperature=0.7, top_k=2), "greedy.threshold")
    assert explained(case, {2: 256})[0] == "greedy.threshold"


def test_mass_that_falls_on_the_least_likely_is_the_law():
    case = copies(
        4, masses({0: 0.55, 1: 0.4, 2: 0.03, 3: 0.02}), request(top_k=4, top_p=0.9), "draw.law"
    )
    # of 4096 draws id 3 gets a twentieth, and id 2 none
    assert explained(case, {0: 2253, 1: 1638, 3: 205})[0] == "draw.law"
    assert "draw.law" not in explained(case, {0: 2253, 1: 1638, 2: 123, 3: 82})


class _Overflowing(RightKernel):
    """The exponential overflows, and what comes is no id."""

    def drawn(self, x: torch.Tensor, rows: Any) -> torch.Tensor:
        return torch.where(x.exp().sum(dim=-1).isinf(), 2**40, super().drawn(x, rows))


class _Garbage(RightKernel):
    """What comes is never an id."""

    def drawn(self, x: torch.Tensor, rows: Any) -> torch.Tensor:  # noqa: ARG002 - the hook's name
        return torch.full((len(x),), 2**40)


@pytest.mark.parametrize(
    ("kernel", "clauses"),
    [(_Overflowing, {"output.range", "temperature.scale"}), (_Garbage, {"output.range"})],
)
def test_garbage_is_laid_to_what_a_case_was_made_for_only_if_its_twin_gives_none(kernel, clauses):
    case = batch(5, [(RowRecipe(base=1000.0), request())], "temperature.scale")
    check = Check("one", clause_ids("temperature.scale"), Kind.NEAR_CERTAIN, lambda *_: (case,))
    judged = judge_case(OpenSubject(kernel(), 1), check, case)
    assert {str(one.clause) for one in judged.findings} == clauses
    charges = {one.clause: one.charge for one in judged.findings}
    assert charges[ClauseId("output.range")] == 0
    assert charges.get(ClauseId("temperature.scale"), CHARGE) == CHARGE < 1e-13


class _DividesByZero(RightKernel):
    """A greedy row beside a random one is divided by its temperature."""

    def draw(self, logits: torch.Tensor, rows: Any) -> torch.Tensor:
        ids = super().draw(logits, rows)
        greedy = rows.temperature == 0
        return ids if bool(greedy.all()) else torch.where(greedy, logits.shape[1], ids)


def test_garbage_of_greedy_rows_only_is_no_argmax():
    rows = [(row({0: 2.0}, base=0.0), request(temperature=t)) for t in (0.0, 0.7)]
    case = batch(8, rows, "greedy.mixed", "greedy.argmax")
    check = Check("one", clause_ids("greedy.argmax"), Kind.EXACT, lambda *_: (case,))
    judged = judge_case(OpenSubject(_DividesByZero(), 1), check, case)
    assert {str(one.clause) for one in judged.findings} == {"output.range", "greedy.argmax"}
    judged = judge_case(OpenSubject(_Garbage(), 1), check, case)
    assert {str(one.clause) for one in judged.findings} == {"output.range"}


def test_a_twin_differs_in_what_is_extreme_only():
    asked = request(top_k=2**31, top_p=1 - 2.0**-24, temperature=1e-5, seed=3)
    case = batch(8, [(row({3: 65504.0, 4: 1.0}, base=-65504.0), asked)], "input.extreme")
    twin = tame(case)
    assert twin.logits.rows[0] == row({3: 8.0, 4: 1.0}, base=-8.0)
    assert twin.requests == (request(top_k=9, temperature=0.5, seed=3),)
    assert tame(twin) == twin
    assert tame(replace(case, clauses=clause_ids("top-k.off"))).requests[0].params.top_k == 8

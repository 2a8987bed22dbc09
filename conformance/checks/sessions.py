"""Sessions of an engine: rows that come, move, wait and grow, against sessions freshly opened.

What goes wrong in a fresh session too has other checks; here a step counts against the state only
if a fresh session with the same requests gets it right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.attribution import Seen
from refsampler.conformance.checks.base import (
    Arrangement,
    Asked,
    Check,
    Finding,
    Kind,
    clause_ids,
)
from refsampler.conformance.checks.expected import Expected, RowExpected
from refsampler.conformance.checks.logprobs import judge_draw
from refsampler.conformance.checks.rows import judge_calls
from refsampler.conformance.designed import sessions as designed
from refsampler.conformance.examples import collect
from refsampler.conformance.session_cases import sessions
from refsampler.conformance.sessions import drive, sample_fresh, step_cases
from refsampler.conformance.subject import Draw, OpenSubject, derived_seed

__all__ = ["CHECKS", "COUNT"]

COUNT = 60
"""Generated sessions a run, half of them with requests that wait."""

_STATE, _PREEMPT = "batch.state", "history.preempt"


@dataclass(frozen=True, slots=True)
class _Step:
    """One step in the session that runs, and in one opened for it."""

    number: int
    case: Case
    expected: Expected
    ids: tuple[int, ...]
    here: Draw
    fresh: Draw

    @property
    def readable(self) -> bool:
        """Whether both gave one id a row."""
        return len(self.here.ids) == len(self.fresh.ids) == len(self.ids)


def _ask_state(subject: OpenSubject, case: Case) -> Asked:
    """Judge every step of the running session, where a fresh one is right."""
    steps = _steps(subject, case)
    found = [one for step in steps for one in _judge_step(subject, case, step)]
    found += _judge_alone(subject, case, tuple(step.here for step in steps))
    return Asked(tuple(found), 2 * len(case.requests))


def _steps(subject: OpenSubject, case: Case) -> tuple[_Step, ...]:
    here = drive(subject, case, derived_seed(subject.run_seed, case.id))
    fresh = sample_fresh(subject, case)
    semantics = subject.capabilities.semantics
    whole = Expected.of(replace(case, steps=()), semantics)
    steps, start = [], 0
    for number, part in enumerate(step_cases(case)):
        stop = start + len(part.requests)
        expected = replace(whole, kind_of=whole.kind_of[start:stop])
        ids = case.steps[number].ids
        steps.append(_Step(number, part, expected, ids, here[number], fresh[number]))
        start = stop
    return tuple(steps)


def _judge_step(subject: OpenSubject, case: Case, step: _Step) -> Iterator[Finding]:
    yield from judge_calls(
        subject.capabilities, Arrangement(step.case, step.expected, (step.here,))
    )
    if not step.readable:
        return
    for row, name in enumerate(step.ids):
        law = step.expected.row(row)
        token, right = int(step.here.ids[row]), int(step.fresh.ids[row])
        if _fits(token, law) or not _fits(right, law):
            continue
        clauses = _candidates(case, step, row)
        where = f"id {token} for request {name} at step {step.number + 1}"
        yield Finding(
            clauses[0],
            f"id {right}, as in a session opened for that step",
            where,
            row=row,
            call=step.number,
            candidates=clauses,
        )
    if Feature.LOGPROBS in subject.capabilities.features:
        yield from _judge_logprobs(case, step)


def _fits(token: int, law: RowExpected) -> bool:
    """Whether a right backend may give this id."""
    vocab = len(law.allowed)
    if not 0 <= token < vocab:
        return False
    return Seen(np.bincount([token], minlength=vocab), fresh=False).fits(law)


def _candidates(case: Case, step: _Step, row: int) -> tuple[ClauseId, ...]:
    """Return what would explain a wrong row: the case's clauses, and its history if it has one."""
    asked = step.case.requests[row]
    own = [one for one in case.clauses if not one.startswith("seed.")]
    params = asked.params
    minds = params.penalised or params.bad_words_token_ids or params.min_tokens
    grew = minds and asked.output and step.number > 0
    # of constraints that alone are wrong the history is not, though it would explain them too
    minded = ("mask.bad-words",) * bool(params.bad_words_token_ids)
    minded += ("mask.min-tokens",) * bool(params.min_tokens)
    history = clause_ids(*minded, "penalty.history") if grew else ()
    return tuple(dict.fromkeys([*own, *history])) or case.clauses


def _judge_logprobs(case: Case, step: _Step) -> Iterator[Finding]:
    """Compare logprobs with those of the step's own logits, where a fresh session shows these."""
    if not any(_asks_logprobs(step, row) for row in range(len(step.ids))):
        return
    if any(True for _ in judge_draw(step.case, step.fresh)):
        return
    for found in judge_draw(step.case, step.here):
        clauses = tuple(dict.fromkeys([*case.clauses, *clause_ids("logprobs.step")]))
        seen = f"{found.seen} in row {found.row} of step {step.number + 1}"
        yield Finding(clauses[0], found.expected, seen, row=found.row, candidates=clauses)
        return


def _asks_logprobs(step: _Step, row: int) -> bool:
    params = step.case.requests[row].params
    return params.logprobs is not None or bool(params.logprob_token_ids)


def _judge_alone(subject: OpenSubject, case: Case, here: tuple[Draw, ...]) -> Iterator[Finding]:
    """Compare each seeded request with itself in a session of its own, step by step."""
    names = dict.fromkeys(
        name
        for step, part in zip(case.steps, step_cases(case), strict=True)
        for name, request in zip(step.ids, part.requests, strict=True)
        if request.params.seed is not None
    )
    for name in names:
        beside = [
            int(draw.ids[step.ids.index(name)])
            for step, draw in zip(case.steps, here, strict=True)
            if name in step.ids and len(draw.ids) == len(step.ids)
        ]
        alone, again = (
            [int(draw.ids[0]) for draw in drive(subject, case, seed, only=name) if len(draw.ids)]
            for seed in (1, 2)
        )
        if alone == again and len(alone) == len(beside) and alone != beside:
            expected = f"ids {alone} of request {name}, as by itself"
            yield Finding(
                case.clauses[0], expected, f"ids {beside}", candidates=tuple(case.clauses)
            )
            return


def _ask_seeds(subject: OpenSubject, case: Case) -> Asked:
    """Run the same session under two session seeds: seeded rows must not notice."""
    first, second = (drive(subject, case, seed) for seed in (3, 4))
    findings: list[Finding] = []
    seeded = [row for row, one in enumerate(case.requests) if one.params.seed is not None]
    rows = len(case.steps[0].ids)
    ids = [np.concatenate([draw.ids for draw in draws]) for draws in (first, second)]
    if any(len(one) != len(case.requests) for one in ids):
        return Asked((), 2 * len(case.requests))
    clause = case.clauses[0]
    for row in seeded:
        if ids[0][row] != ids[1][row]:
            where = f"id {ids[1][row]} at step {row // rows + 1}"
            expected = f"id {ids[0][row]} for seed {case.requests[row].params.seed}, as before"
            findings.append(Finding(clause, expected, where, row=row))
            break
    steps = ids[0].reshape(-1, rows)[:, [row for row in seeded if row < rows]]
    # 16 rows of 40 nearly equal ids: 15 of 16 agree with probability at most 16 / 38^15 < 1e-22
    if any((one == two).sum() >= 15 for one, two in pairwise(steps)):
        expected = "other noise at the next step of a seed"
        findings.append(Finding(clause, expected, "the ids of the step before", 1e-21))
    return Asked(tuple(findings), 2 * len(case.requests))


def _ask_logprobs(subject: OpenSubject, case: Case) -> Asked:
    """Judge the logprobs of every step."""
    found = [
        one for step in _steps(subject, case) for one in (*_form(subject, step), *_record(step))
    ]
    return Asked(tuple(found), 2 * len(case.requests))


def _form(subject: OpenSubject, step: _Step) -> Iterator[Finding]:
    arrangement = Arrangement(step.case, step.expected, (step.here,))
    return judge_calls(subject.capabilities, arrangement)


def _record(step: _Step) -> Iterator[Finding]:
    """Judge a record where a fresh session's is right."""
    if not step.readable or any(True for _ in judge_draw(step.case, step.fresh)):
        return
    for found in judge_draw(step.case, step.here):
        seen = f"{found.seen} in row {found.row} of step {step.number + 1}"
        yield Finding(ClauseId("logprobs.step"), found.expected, seen, row=found.row)


def _engine(capabilities: Capabilities, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    return cases if capabilities.level == 3 else ()


def _generated(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    if capabilities.level != 3:
        return ()
    return _collected(capabilities.features, COUNT // 2, run_seed)


# a second plan with the same seed need not wait for Hypothesis again
@lru_cache(maxsize=4)
def _collected(features: frozenset[Feature], half: int, run_seed: int) -> tuple[Case, ...]:
    moved = collect(sessions(_STATE, features=features), half, run_seed)
    waited = sessions(_PREEMPT, _STATE, features=features, waiting=True)
    return (*moved, *collect(waited, half, run_seed + 1))


def _seeded(capabilities: Capabilities) -> tuple[Case, ...]:
    if capabilities.level != 3 or Feature.SEED not in capabilities.features:
        return ()
    return designed.seed_cases()


CHECKS: tuple[Check, ...] = (
    Check(
        "session-moves",
        clause_ids(_STATE),
        Kind.EXACT,
        lambda capabilities, _: _engine(capabilities, designed.move_cases(capabilities.features)),
        ask=_ask_state,
    ),
    Check(
        "session-histories",
        clause_ids("penalty.history"),
        Kind.EXACT,
        lambda capabilities, _: _engine(
            capabilities, designed.history_cases(capabilities.features)
        ),
        ask=_ask_state,
    ),
    Check(
        "session-constraints",
        clause_ids("mask.bad-words", "mask.min-tokens"),
        Kind.EXACT,
        lambda capabilities, _: _engine(
            capabilities, designed.constraint_cases(capabilities.features)
        ),
        ask=_ask_state,
    ),
    Check(
        "session-preemption",
        clause_ids(_PREEMPT, _STATE),
        Kind.EXACT,
        lambda capabilities, _: _engine(
            capabilities, designed.preempt_cases(capabilities.features)
        ),
        ask=_ask_state,
    ),
    Check(
        "session-operations",
        clause_ids(_STATE, _PREEMPT),
        Kind.EXACT,
        _generated,
        ask=_ask_state,
    ),
    Check(
        "seeds-over-steps",
        clause_ids("seed.reproducible"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: _seeded(capabilities)[:1],
        ask=_ask_seeds,
    ),
    Check(
        "seeds-in-sessions",
        clause_ids(_STATE, _PREEMPT, "seed.batch"),
        Kind.EXACT,
        lambda capabilities, _: _seeded(capabilities)[1:],
        ask=_ask_state,
    ),
    Check(
        "logprobs-over-steps",
        clause_ids("logprobs.step"),
        Kind.EXACT,
        lambda capabilities, _: (
            _engine(capabilities, designed.logprobs_cases())
            if Feature.LOGPROBS in capabilities.features
            else ()
        ),
        ask=_ask_logprobs,
    ),
)

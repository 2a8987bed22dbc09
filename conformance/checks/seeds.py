"""Seeds: the same ids again, whatever surrounds them, and other ids for other seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind, Trial, clause_ids
from refsampler.conformance.checks.batches import reordered
from refsampler.conformance.designed import batches
from refsampler.conformance.designed.tails import flat_case
from refsampler.conformance.series import SeriesSubject
from refsampler.conformance.subject import OpenSubject, derived_seed
from refsampler.conformance.unread import sample_steps

__all__ = ["CHECKS"]

_REPEATS = 6
_WIDE_REPEATS = 24
"""A fault of one call in twenty shows; each call of wide rows is dear."""
_LOADED = 24
"""Calls, the first alone and the others while another thread draws."""


def _if_seeded(capabilities: Capabilities, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    return cases if Feature.SEED in capabilities.features else ()


def _repeated(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    clause = clause_ids("determinism.repeat")
    cases = batches.seed_repeat_cases(run_seed)
    return _if_seeded(
        capabilities, tuple(replace(case, clauses=clause, calls=_REPEATS) for case in cases)
    )


def _reproducible(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    clause = clause_ids("seed.reproducible")
    cases = batches.seed_repeat_cases(run_seed)
    return _if_seeded(capabilities, tuple(replace(case, clauses=clause) for case in cases))


def _judge_same(trial: Trial) -> tuple[Finding, ...]:
    """Compare every call of every arrangement with the first; nothing but the noise differs."""
    draws = [draw for arrangement in trial.arrangements for draw in arrangement.draws]
    for number, draw in enumerate(draws[1:], start=1):
        found = _difference(trial.case, draws[0].ids, draw.ids, list(range(len(draw.ids))))
        if found is not None:
            return (replace(found, clause=trial.case.clauses[0], call=number),)
    return ()


def _ask_under_load(subject: OpenSubject, case: Case) -> Asked:
    """Sample once in peace, then again and again while another thread draws beside."""
    asked = SeriesSubject(subject.backend, subject.run_seed)
    key = case.id
    first = asked.sample(case, 0, key).ids
    draws = len(first)
    with asked.under_load(flat_case("determinism.repeat", 1)):
        for call in range(1, case.calls):
            ids = asked.sample(case, call, key).ids
            draws += len(ids)
            found = _difference(case, first, ids, list(range(len(ids))))
            if found is not None:
                seen = f"{found.seen}, while another thread draws"
                return Asked((replace(found, seen=seen, call=call),), draws)
    return Asked(draws=draws)


def _unread(capabilities: Capabilities, run_seed: int) -> tuple[Case, ...]:
    """Return seeded rows; a kernel's ids are read by the pipeline at once."""
    return _repeated(capabilities, run_seed) if capabilities.level > 1 else ()


def _ask_unread(subject: OpenSubject, case: Case) -> Asked:
    """Sample steps of other rows and other sizes, reading each at once, then again, reading last."""
    rows = list(range(len(case.requests)))
    # no two alike in their places, so that none hides that it was written over another
    orders = (rows, rows[::-1], rows[4::-1], rows[7:] + rows[:7])
    steps = [reordered(case, order) for order in orders]
    seed = derived_seed(subject.run_seed, case.id)
    first = sample_steps(subject, steps, orders, seed)
    draws = 2 * sum(map(len, orders))
    if any(len(ids) != len(order) for ids, order in zip(first, orders, strict=True)):
        return Asked(draws=draws)
    late = sample_steps(subject, steps, orders, seed, known=first)
    for call, (before, after, order) in enumerate(zip(first, late, orders, strict=True)):
        found = _difference(case, before, after, order)
        if found is not None:
            seen = f"{found.seen}, read after {len(orders) - 1 - call} later calls"
            return Asked((replace(found, seen=seen, call=call),), draws)
    return Asked(draws=draws)


def _surrounded(case: Case) -> tuple[Case, ...]:
    """Return the batch, backwards, its seeded rows only, and three of them alone."""
    seeded = [row for row, one in enumerate(case.requests) if one.params.seed is not None]
    orders = [list(range(len(case.requests)))[::-1], seeded, *([row] for row in seeded[:3])]
    return (case, *(reordered(case, order) for order in orders))


def _judge_surrounded(trial: Trial) -> tuple[Finding, ...]:
    """Compare each seeded row with itself in the other arrangements, by its seed."""
    first = trial.arrangements[0]
    place = {one.params.seed: row for row, one in enumerate(first.case.requests)}
    for arrangement in trial.arrangements[1:]:
        rows = [
            row for row, one in enumerate(arrangement.case.requests) if one.params.seed is not None
        ]
        back = [place[arrangement.case.requests[row].params.seed] for row in rows]
        ids = first.draws[0].ids
        here = arrangement.draws[0].ids
        if len(ids) != len(first.case.requests) or len(here) != len(arrangement.case.requests):
            continue
        found = _difference(first.case, ids[back], here[rows], back)
        if found is not None:
            return (replace(found, seen=f"{found.seen} in a batch of {len(here)}"),)
    return ()


def _difference(
    case: Case, before: np.ndarray, after: np.ndarray, rows: list[int]
) -> Finding | None:
    if len(before) != len(after):
        return None
    differing = np.flatnonzero(before != after)
    if not len(differing):
        return None
    at = int(differing[0])
    seed = case.requests[rows[at]].params.seed
    return Finding(
        case.clauses[0],
        f"id {before[at]} for seed {seed}, as before",
        f"id {after[at]}; {len(differing)} of {len(before)} seeded rows differ",
        row=rows[at],
    )


def _judge_effect(trial: Trial) -> tuple[Finding, ...]:
    """Ask that flat rows of different noise differ: 12 coincidences in 4096 ids are certain not."""
    return tuple(_coincidences(trial))


def _coincidences(trial: Trial) -> Iterator[Finding]:
    arrangement = trial.arrangements[0]
    case = arrangement.case
    draws = [draw.ids for draw in arrangement.draws]
    if any(len(ids) != len(case.requests) for ids in draws):
        return
    seeds = [one.params.seed for one in case.requests]
    fresh = [row for row, seed in enumerate(seeds) if seed is None]
    own = [seeds.index(seed) for seed in dict.fromkeys(seeds) if seed is not None]
    # of 16 rows at most 4 different ids: at most C(16, 4) 4^12 / 4096^12 = 3e-33
    charge = 3e-33
    for words, rows in (("different seeds", own), ("unseeded rows", fresh)):
        if len(rows) >= 16 and len(np.unique(draws[0][rows])) <= 4:
            seen = f"{len(np.unique(draws[0][rows]))} different ids in {len(rows)} rows"
            yield Finding(case.clauses[0], f"independent ids for {words}", seen, charge)
    yield from _evenly(case, draws[0][own])
    for before, after in pairwise(draws):
        if len(fresh) >= 16 and (before[fresh] == after[fresh]).sum() >= 12:
            seen = (
                f"{(before[fresh] == after[fresh]).sum()} of {len(fresh)} ids as in the last call"
            )
            yield Finding(case.clauses[0], "fresh ids for unseeded rows", seen, charge)


def _evenly(case: Case, ids: np.ndarray) -> Iterator[Finding]:
    """Ask that the ids of consecutive seeds do not walk round the vocabulary in equal steps."""
    vocab = case.logits.vocab
    if len(ids) < 16:
        return
    steps = np.diff(ids[:16]) % vocab
    if ((steps - steps[0] + 1) % vocab <= 2).all():
        seen = f"ids {ids[0]}, {ids[1]}, {ids[2]}, ...: each {steps[0]} on, or 1 beside that"
        # independent ids differ by independent steps: 14 of them are as near with (3/4096)^14
        yield Finding(case.clauses[0], "independent ids for consecutive seeds", seen, 2e-44)


CHECKS: tuple[Check, ...] = (
    Check(
        "seeds-again",
        clause_ids("seed.reproducible"),
        Kind.EXACT,
        _reproducible,
        _judge_same,
        arrange=lambda case: (case, case),
    ),
    Check("seeds-repeated", clause_ids("determinism.repeat"), Kind.EXACT, _repeated, _judge_same),
    Check(
        "seeds-repeated-wide",
        clause_ids("determinism.repeat"),
        Kind.EXACT,
        lambda capabilities, run_seed: _if_seeded(
            capabilities, (batches.wide_repeat_case(run_seed, _WIDE_REPEATS),)
        ),
        _judge_same,
    ),
    Check(
        "seeds-unread",
        clause_ids("determinism.repeat"),
        Kind.EXACT,
        _unread,
        ask=_ask_unread,
    ),
    Check(
        "seeds-under-load",
        clause_ids("determinism.repeat"),
        Kind.EXACT,
        lambda capabilities, run_seed: tuple(
            replace(case, calls=_LOADED) for case in _repeated(capabilities, run_seed)
        ),
        ask=_ask_under_load,
    ),
    Check(
        "seeds-surrounded",
        clause_ids("seed.batch"),
        Kind.EXACT,
        lambda capabilities, run_seed: _if_seeded(capabilities, batches.seed_batch_cases(run_seed)),
        _judge_surrounded,
        arrange=_surrounded,
    ),
    Check(
        "seeds-differ",
        clause_ids("seed.effect"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, run_seed: _if_seeded(
            capabilities, batches.seed_effect_cases(capabilities, run_seed)
        ),
        _judge_effect,
    ),
)

"""Judging a step of a session: exact laws of the requests as they stand, and seeded ones alone.

Nothing is compared with what the session said before: every row has its own law, which follows from its
parameters, its history and the logits of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.checks.base import Arrangement, Finding, Kind, Trial
from refsampler.conformance.checks.expected import Expected, RowExpected
from refsampler.conformance.checks.logprobs import judge_draw
from refsampler.conformance.checks.rows import judge_rows
from refsampler.conformance.checks.verified import Place, places_of, wrong_walk
from refsampler.conformance.closing import closed_after
from refsampler.conformance.stateful.journal import Call, Player, Stepped
from refsampler.conformance.subject import Draw, OpenSubject, SubjectError, derived_seed
from refsampler.conformance.verifying import Answer, step_of

__all__ = ["CERTAIN", "comparable", "differs_alone", "judge_step", "judge_verified"]

CERTAIN: Final = 50.0
"""Nats that make an event impossible: a right engine fails a million steps of 8 rows with 4e-15."""

_LIVE: Final = 64
"""Ids that a row may have for its seeded id to be exact on every backend (`seed.batch`)."""
_FRESH: Final = 64
"""Fresh seeds on which a difference of seeded ids is asked again, where bits are not promised."""
_DIFFERENT: Final = 8
"""Of those at least so many differ: C(64, 8) 1e-32 = 4e-23 if one in 10,000 may (`seed.batch`)."""


def judge_step(capabilities: Capabilities, step: Stepped, draw: Draw) -> tuple[Finding, ...]:
    """Judge form, ids and logprobs of a step without drafts."""
    case = replace(step.case, clauses=(ClauseId("batch.state"), ClauseId("penalty.history")))
    expected = Expected.of(case, capabilities.semantics)
    trial = Trial(capabilities, (Arrangement(case, expected, (draw,)),), Kind.NEAR_CERTAIN, CERTAIN)
    found = judge_rows(trial)
    asked = any(
        one.params.logprobs is not None or one.params.logprob_token_ids for one in case.requests
    )
    if found or not asked or Feature.LOGPROBS not in capabilities.features:
        return found
    return tuple(judge_draw(case, draw))


def judge_verified(
    capabilities: Capabilities, step: Stepped, answer: Answer
) -> tuple[Finding, ...]:
    """Judge what a step with drafts emitted: form, range, and that some noise allows each walk."""
    return tuple(_of_drafts(capabilities, step, answer))


def _of_drafts(capabilities: Capabilities, step: Stepped, answer: Answer) -> Iterator[Finding]:
    if answer.form:
        yield Finding(ClauseId("output.form"), "ids, then -1", answer.form)
        return
    if answer.changed and Feature.IN_PLACE not in capabilities.features:
        yield Finding(ClauseId("input.untouched"), "the same logits", "other logits")
    case = step.case
    places = places_of(case, step_of(case), capabilities.semantics)
    for row, (name, ids) in enumerate(zip(step.names, answer.ids, strict=True)):
        if not all(0 <= token < step.vocab for token in ids):
            yield Finding(
                ClauseId("output.range"), f"ids from 0 to {step.vocab - 1}", f"{ids}", row=row
            )
            continue
        wrong = wrong_walk(tuple(_near_certain(one) for one in places[row]), ids)
        if wrong:
            seen = f"{wrong} (request {name} emits {list(ids)})"
            expected = "what some noise allows by the exact laws of its history"
            yield Finding(ClauseId("spec.history"), expected, seen, row=row)


def _near_certain(place: Place) -> Place:
    """Return the place without ids that come with a probability below e^-50."""
    if place.greedy:
        return place
    return replace(place, allowed=place.allowed & (place.probs > np.exp(-CERTAIN)))


def comparable(law: RowExpected, capabilities: Capabilities) -> bool:
    """Whether a seeded row's id follows from its seed alone (`seed.batch`)."""
    if not law.valid:
        return False
    exact = not (law.tied.any() or (law.allowed & ~law.core).any())
    few = exact and int(law.allowed.sum()) <= _LIVE
    return few or Feature.BITWISE in capabilities.features


def differs_alone(subject: OpenSubject, vocab: int, journal: Sequence[Call], name: int) -> bool:
    """Whether a seeded request's last ids depend on who else was in the session.

    The journal is held again under fresh seeds of that request, with everybody and by itself: of 64
    seeds 8 have to differ, or one where bits are promised.
    """
    if Feature.BITWISE in subject.capabilities.features:
        return True
    differ = 0
    for number in range(_FRESH):
        seed = derived_seed(subject.run_seed, "alone", name, number)
        try:
            here, alone = (
                _last_ids(subject, vocab, journal, name, seed, only) for only in (None, name)
            )
        except SubjectError:
            return True
        differ += here != alone
        if differ >= _DIFFERENT:
            return True
    return False


def _last_ids(
    subject: OpenSubject,
    vocab: int,
    journal: Sequence[Call],
    name: int,
    seed: int,
    only: int | None,
) -> tuple[int, ...]:
    """Hold the journal again; return what the request emitted at its end."""
    session_seed = 1 if only is None else 2
    own = Player(subject, vocab, session_seed, only=only, reseeded=(name, seed))
    with closed_after(own, nullcontext) as player:
        ids = [player.play(call) for call in journal][-1]
    last = journal[-1]
    assert isinstance(last, Stepped)
    place = 0 if only is not None else last.names.index(name)
    return ids[place] if place < len(ids) else ()

"""Steps with drafts whose outcome is one id a position, or a few by any noise.

Each is made for one mistake: laws that share no id, a target of one id, a residual that is empty, rows
read one position off.  No row has id 0 for an answer, which is what an argmax over nothing returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from refsampler.backends.protocol import Feature
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import masses, request, row
from refsampler.conformance.designed.drafted import Drafted, led, only, steps_case
from refsampler.request import PLACEHOLDER

__all__ = [
    "FLAT_IDS",
    "ROUNDED_UP",
    "degenerate_cases",
    "fresh_case",
    "greedy_cases",
    "law_cases",
    "padded_case",
    "position_cases",
    "refused_cases",
    "seeded_case",
]

ROUNDED_UP: Final = 1 + 2.0**-18
"""A softmax in float32 over a large vocabulary may sum to so much, and one in bfloat16 to more."""

FLAT_IDS: Final = 7
"""Equally likely ids beside the draft of `fresh_case`."""

_V: Final = 12
_CALLS: Final = 16


def position_cases() -> tuple[Case, ...]:
    """Return rows of one id each, and laws that know only their own draft: one off, and it shows."""
    clause = "spec.draft-law"
    plain = request()
    certain = [
        Drafted(plain, (2, 5, 1), only(2, 5, 7, 3)),
        Drafted(plain, (), only(9)),
        Drafted(plain, (4,), only(4, 6)),
        Drafted(plain, (8, 10), only(8, 11, 5)),
    ]
    # p(draft) = 3/4 of q(draft) = 1/2: each draft is accepted for sure, with its own law
    paired = [
        Drafted(
            plain,
            drafts,
            (*(masses({one: 0.75, 11: 0.25}) for one in drafts), *only(bonus)),
            tuple(masses({one: 0.5, 11: 0.5}) for one in drafts),
        )
        for drafts, bonus in (((1, 2, 3), 4), ((), 5), ((6,), 7), ((8, 9, 10, 2), 1))
    ]
    # as many drafts as there may be: less likely in their laws than in the targets
    most = tuple(1 + at % 10 for at in range(128))
    laws = tuple(masses({one: 0.75, 11: 0.25}) for one in most)
    long = [
        Drafted(plain, most, only(*most, 11), laws),
        Drafted(plain, (), only(9)),
        Drafted(plain, most, only(*most[:-1], 11, 9), laws),
    ]
    # plain decoding by another name
    none = [Drafted(plain, (), only(9)), Drafted(plain, (), only(4))]
    return (
        steps_case(_V, certain, clause),
        steps_case(_V, certain[::-1], clause),
        steps_case(_V, paired, clause, calls=_CALLS),
        steps_case(_V, long, clause),
        steps_case(_V, none, clause),
    )


def law_cases() -> tuple[Case, ...]:
    """Return laws that share no id, targets of one id, and certain drafts: few ids can come out.

    The requests of a case are equal, so that it does not matter which row is read for which.
    """
    plain = request()
    flat = row(dict.fromkeys(range(6, 12), 0.0))
    other = row(dict.fromkeys(range(6), 0.0))
    disjoint = [Drafted(plain, (at, at), (flat, flat, flat), (other, other)) for at in range(6)]
    one_id = [Drafted(plain, (1,), (*only(7), *only(8)), (other,))] * 4
    # the draft is likely, the target has nothing of it; and a likely id without a target
    certain = [
        Drafted(plain, (3,), (masses({4: 0.5, 5: 0.5}), *only(8))),
        Drafted(plain, (4,), (masses({4: 0.5, 5: 0.5}), *only(8))),
        Drafted(plain, (PLACEHOLDER, 2), (masses({4: 0.5, 5: 0.5}), *only(2, 8))),
    ]
    # nothing was drafted, whatever law stands in its row: the target, of which that law leaves nothing
    pair = masses({4: 0.5, 5: 0.5})
    unreal = Drafted(plain, (PLACEHOLDER,), (pair, *only(8)), (pair,))
    # what q has too much of never comes back: of ids 1 to 3 only 3 may replace a rejected draft
    one_sided = Drafted(
        plain,
        (1,),
        (masses({1: 0.125, 2: 0.25, 3: 0.625}), *only(9)),
        (masses({1: 0.5, 2: 0.5}),),
    )
    return (
        steps_case(_V, disjoint, "spec.law", calls=_CALLS),
        steps_case(_V, one_id, "spec.law"),
        *(steps_case(_V, [one] * 4, "spec.law", calls=_CALLS) for one in certain),
        steps_case(_V, [one_sided] * 4, "spec.law", calls=_CALLS),
        steps_case(_V, [unreal] * 4, "spec.law"),
    )


def degenerate_cases() -> tuple[Case, ...]:
    """Return draft laws that are the target but for one id, of which they have twice as much.

    In the first case that id has 2^-20: handed over `ROUNDED_UP`, the law leaves no residual where
    it is rejected, which half are.  In the second it has 2^-26 beside one other id, so that in
    float32 no residual is left whoever normalises the laws again.
    """
    little, least = 2.0**-20, 2.0**-26
    rest = (1 - little) / 3
    target = {1: little, 4: rest, 5: rest, 6: rest}
    pair = {1: least, 5: 1 - least}
    return tuple(
        steps_case(
            _V,
            [Drafted(request(), (1,), (masses(law), *only(9)), (masses(law | {1: 2 * law[1]}),))]
            * 4,
            "spec.degenerate",
            calls=_CALLS,
        )
        for law in (target, pair)
    )


def greedy_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return greedy requests that accept all, some or no drafts, beside random ones."""
    clause = "spec.greedy"
    greedy = request(temperature=0.0)
    low = row({5: 1.0, 7: 1.0, 2: 0.5}, base=0.0)
    seeded = request(seed=11) if Feature.SEED in features else request()
    # a draft law that is sure of another id must not matter
    misled = tuple(masses({one: 0.75, 11: 0.25}) for one in (1, 2, 3, 4))
    parts = [
        Drafted(greedy, (1, 2, 3), led(1, 2, 3, 4)),
        Drafted(request(), (6,), only(6, 8)),
        Drafted(greedy, (1, 9, 3), led(1, 2, 3, 4)),
        Drafted(greedy, (), led(10)),
        Drafted(seeded, (7, 7), only(7, 3, 9)),
        Drafted(greedy, (9,), led(8, 4)),
        # of equal maxima the lowest id is the argmax, whichever was drafted
        Drafted(greedy, (7, 5), (low, low, low)),
        Drafted(greedy, (5, 5), (low, low, low)),
        Drafted(greedy, (PLACEHOLDER, 2), led(1, 2, 3)),
    ]
    with_laws = [
        Drafted(greedy, (1, 2, 3, 4), led(1, 2, 3, 4, 5), misled),
        Drafted(greedy, (1, 2, 4, 4), led(1, 2, 3, 4, 5), misled),
        Drafted(request(), (1,), only(1, 6), misled[:1]),
        Drafted(greedy, (11,), led(1, 2), misled[:1]),
    ]
    most = tuple(1 + at % 11 for at in range(128))
    long = Drafted(greedy, most, led(*most, 6))
    return (
        steps_case(_V, parts, clause),
        steps_case(_V, parts[::-1], clause),
        steps_case(_V, [part for part in parts if part.asked == greedy], clause),
        steps_case(_V, with_laws, clause),
        steps_case(_V, [long, parts[0], replace(long, drafts=(*most[:-1], 9))], clause),
    )


def padded_case() -> Case:
    """Return more positions than there are real ids, behind which lies padding."""
    parts = [
        Drafted(
            request(),
            tuple((at + step) % 9 + 1 for step in range(3)),
            only(*((at + step) % 9 + 1 for step in range(4))),
        )
        for at in range(6)
    ]
    return steps_case(16, parts, "output.vocab-padding")


def refused_cases() -> tuple[Case, ...]:
    """Return what a verifier cannot honour: min-p and a bias; a custom processor comes beside."""
    rows = (row({1: 1.0, 2: 0.5}),) * 2
    asked = [request(min_p=0.5), request(logit_bias=((1, 1.0),)), request()]
    return tuple(steps_case(_V, [Drafted(one, (2,), rows)], "spec.processors") for one in asked)


def seeded_case() -> Case:
    """Return seeded requests of uneven drafts, of which every id could be another."""
    target = row({one: one / 4 for one in range(1, 9)})
    law = row({one: -one / 4 for one in range(1, 9)})
    parts = [
        Drafted(
            request(seed=seed, temperature=temperature),
            drafts,
            (target,) * (len(drafts) + 1),
            (law,) * len(drafts),
        )
        for seed, (drafts, temperature) in enumerate(
            (
                ((), 1.0),
                ((1, 2, 3), 1.0),
                ((4,), 0.5),
                ((5, 6), 2.0),
                ((2, 8, 1, 3), 1.0),
                ((), 1.0),
            )
        )
    ]
    return steps_case(_V, parts, "seed.batch", "seed.reproducible", calls=4)


def fresh_case() -> Case:
    """Return many equal requests whose draft is accepted half the time; other ids are flat."""
    target = masses({1: 0.5} | dict.fromkeys(range(2, 2 + FLAT_IDS), 0.5 / FLAT_IDS))
    flat = masses(dict.fromkeys(range(2, 2 + FLAT_IDS), 1 / FLAT_IDS))
    return steps_case(_V, [Drafted(request(), (1,), (target, flat))] * 256, "spec.law", calls=3)

"""Steps with drafts whose histories, masks, filters and penalties change from draft to draft.

The right id follows by a margin, exactly: dyadic logits, or ids that are left alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from refsampler.backends.protocol import Feature
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import masses, request, row
from refsampler.conformance.designed.drafted import Drafted, only, steps_case
from refsampler.request import ThinkingMarkers

__all__ = ["constraint_cases", "history_cases"]

_V: Final = 12
_CALLS: Final = 8


def history_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return steps of which each draft changes what comes next, once: dyadic, by a margin."""
    clause, cases = "spec.history", []
    # 1 leads 2 and 2 leads 3 by 1 each; what is put out falls by 1.5 for every time
    ladder = row({1: 4.0, 2: 3.0, 3: 2.0}, base=-64.0)
    if Feature.PENALTIES in features:
        frequency = request(temperature=0.0, frequency_penalty=1.5)
        presence = request(temperature=0.0, presence_penalty=1.5)
        repetition = request(temperature=0.0, repetition_penalty=2.0)
        cases.append(
            steps_case(
                _V,
                [
                    # 1, then 2 (2.5 | 3), then 1 (2.5 | 1.5 | 2), then 3 (1 | 1.5 | 2)
                    Drafted(frequency, (1, 2, 1), (ladder,) * 4),
                    Drafted(frequency, (1, 2), (ladder,) * 3),
                    Drafted(replace(frequency, output=(1,)), (2, 1), (ladder,) * 3),
                    Drafted(frequency, (), (ladder,)),
                    # 1, then 2, then 1 (2.5 | 1.5), then still 1: presence counts once
                    Drafted(presence, (1, 2, 1), (ladder,) * 4),
                    # 1, then 2 (2 | 3), then one of 1 and 3 (2 | 1.5 | 2): 1, the lowest
                    Drafted(replace(repetition, prompt=(3,)), (1, 2), (ladder,) * 3),
                    # rejected drafts are nobody's history: 3 is not, and the walk ends there
                    Drafted(frequency, (3, 3, 1), (ladder,) * 4),
                ],
                clause,
            )
        )
    if Feature.MASKS in features:
        words = request(bad_words_token_ids=((1, 2), (4, 1, 2), (2, 2, 5)))
        pair = masses({2: 0.5, 5: 0.5})
        ends = request(min_tokens=3, stop_token_ids=(9,), output=(4,))
        stop = masses({9: 0.75, 8: 0.25})
        cases.append(
            steps_case(
                _V,
                [
                    # behind 1 the 2 is banned, behind 2 2 the 5
                    Drafted(words, (1, 5), (*only(1), pair, *only(7))),
                    Drafted(words, (5, 1), (*only(5, 1), pair)),
                    Drafted(words, (2, 2), (*only(2, 2), pair)),
                    Drafted(replace(words, output=(2,)), (2,), (*only(2), pair)),
                    # one id is out: two more before 9 may come, at a draft or at the bonus
                    Drafted(ends, (8, 8), (stop, stop, *only(9))),
                    Drafted(ends, (9, 9), (stop, stop, *only(9))),
                    Drafted(ends, (8,), (stop, stop)),
                    Drafted(ends, (8, 8, 9), (stop, stop, *only(9, 9))),
                ],
                clause,
                calls=_CALLS,
            )
        )
    return tuple(cases)


def constraint_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return steps whose best ids are forbidden, filtered or outvoted at drafts and at the bonus."""
    clause, cases = "spec.processors", []
    wide = masses({1: 0.5, 2: 0.25, 3: 0.125, 4: 0.125})
    laws = (masses({2: 0.5, 3: 0.25, 4: 0.25}),) * 2
    # each of these leaves 1, or 1 and 2, so drafts 3 and 4 cannot be accepted
    alone = (
        request(top_k=1),
        request(top_k=1, temperature=0.5),
        request(top_p=0.25),
    )
    filters = [Drafted(one, (2, 3), (wide,) * 3, laws) for one in alone]
    filters += [
        Drafted(request(top_k=2), (3, 4), (wide,) * 3, laws),
        Drafted(request(top_p=0.6), (3, 4), (wide,) * 3, laws),
        # cold enough that the best id is the only one, by e^-64
        Drafted(
            request(temperature=2.0**-7),
            (1, 2),
            (row({1: 1.0, 2: 0.5}),) * 3,
            (masses({1: 0.5, 2: 0.5}),) * 2,
        ),
    ]
    cases.append(steps_case(_V, filters, clause, calls=_CALLS))
    # drafts that are accepted for sure, so that the second position and the bonus are reached too
    pair = masses({1: 0.5, 2: 0.5})
    cold = row({1: 1.0, 2: 0.5})
    reached = [
        *(Drafted(one, (1, 1), (wide,) * 3, (pair,) * 2) for one in alone),
        Drafted(request(top_k=2), (1, 2), (wide,) * 3, (pair,) * 2),
        Drafted(request(top_k=2, top_p=0.5), (1, 1), (wide,) * 3, (pair,) * 2),
        Drafted(request(temperature=2.0**-7), (1, 1), (cold,) * 3, (pair,) * 2),
    ]
    cases.append(steps_case(_V, reached, clause, calls=_CALLS))
    if Feature.MASKS in features:
        left = masses({2: 0.5, 3: 0.25, 4: 0.25})
        masked = [
            Drafted(request(allowed_token_ids=(2, 3)), (1, 2), (wide,) * 3, laws[:1] * 2),
            Drafted(request(bad_words_token_ids=((1,), (2,))), (2, 3), (wide,) * 3, laws),
            Drafted(request(allowed_token_ids=(4,)), (4, 4), (wide,) * 3, laws),
            Drafted(request(min_tokens=9, stop_token_ids=(1, 2)), (2, 3), (wide,) * 3, laws),
            Drafted(request(bad_words_token_ids=((1,), (2,))), (3, 4), (wide,) * 3, (left,) * 2),
            Drafted(request(min_tokens=9, stop_token_ids=(1, 2)), (3, 4), (wide,) * 3, (left,) * 2),
        ]
        cases.append(steps_case(_V, masked, clause, calls=_CALLS))
    if Feature.PENALTIES in features:
        told = request(output=(1,) * 64, frequency_penalty=2.0, temperature=0.0)
        steep = masses({1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1})
        spoken = [
            Drafted(told, (1, 2), (steep,) * 3),
            # 2, and then 3, since 2 fell by 2 nats
            Drafted(told, (2, 2), (steep,) * 3),
            Drafted(told, (), (steep,)),
        ]
        cases.append(steps_case(_V, spoken, clause))
    if Feature.THINKING in features:
        markers = ThinkingMarkers((10,), (11,))
        thinks = request(prompt=(10,), thinking_token_budget=2)
        thought = [
            Drafted(thinks, (1, 2, 3), only(1, 2, 3, 4)),
            Drafted(thinks, (1, 2, 11), only(1, 2, 3, 4)),
            Drafted(thinks, (1, 2), only(1, 2, 3)),
            Drafted(replace(thinks, output=(5, 6)), (11, 7), only(1, 7, 8)),
            Drafted(request(), (1, 2, 3), only(1, 2, 3, 4)),
        ]
        cases.append(steps_case(_V, thought, clause, thinking=markers))
    return tuple(cases)

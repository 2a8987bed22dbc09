"""Rows that ties or rounding leave open, or that have no law, are no ground for a verdict of exact checks."""

import math
from dataclasses import replace

import pytest

from refsampler.backends.reference import ReferenceSampler
from refsampler.conformance.checks import modes, speculative
from refsampler.conformance.checks.verified import places_of, wrong_walk
from refsampler.conformance.designed.build import batch, row
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verifying import step_of
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import Semantics

TIED = row({1: 0.0, 4: 0.0, 2: 0.0, 3: -9.0})
CLEAR = row({1: 2.0, 4: 0.0, 2: -1.0})
ASKED = SamplingParams(logprobs=2, temperature=1.0)
SMALLEST_KEPT = math.exp(-0.75 / 1.3)
"""Of the row 2, 1.25 at T = 1.3: the second id stands at min-p."""


def asked(check, backend, case):
    assert check.ask is not None
    return check.ask(OpenSubject(backend, 3), case).findings


@pytest.mark.parametrize(
    ("recipe", "params"),
    [
        # one of three equals crosses p, nobody knows which
        (TIED, replace(ASKED, top_p=0.25)),
        (row({1: 2.0, 0: 1.25}), replace(ASKED, temperature=1.3, min_p=SMALLEST_KEPT)),
        (CLEAR, replace(ASKED, allowed_token_ids=(1,), bad_words_token_ids=((1,),))),
        (row({}), ASKED),
        (CLEAR, SamplingParams()),
    ],
    ids=["tie at p", "value at min-p", "masked whole", "nothing finite", "nobody asks"],
)
def test_the_reference_is_right_in_every_mode(recipe, params):
    (check,) = [one for one in modes.CHECKS if one.name == "logprobs-modes"]
    case = batch(8, [(recipe, Request(params))], "logprobs.raw")
    assert asked(check, ReferenceSampler(), case) == ()


class _Raw(ReferenceSampler):
    """Shows the raw stage in every mode."""

    def sample(self, logits, metadata, *, logprobs_mode="raw_logprobs"):
        return super().sample(
            logits, metadata, logprobs_mode=logprobs_mode.replace("processed", "raw")
        )


def test_a_clear_row_is_judged_beside_rows_that_are_not():
    (check,) = [one for one in modes.CHECKS if one.name == "logprobs-modes"]
    rows = [(TIED, replace(ASKED, top_p=0.25)), (row({}), ASKED), (CLEAR, replace(ASKED, top_k=2))]
    case = batch(8, [(recipe, Request(params)) for recipe, params in rows], "logprobs.raw")
    found = asked(check, _Raw(), case)
    assert {(str(one.clause), one.row) for one in found} >= {("logprobs.raw", 2)}
    assert {one.row for one in found} == {2}


# id 2 has 0.51, and of the seven equals behind it, 0.07 each, four cross p: nobody knows which
CORED = row({2: 2.0, **dict.fromkeys((0, 1, 3, 4, 5, 6, 7), 0.0)})


def drafted():
    """Return a draft of id 1, one of the equals, and the bonus."""
    request = Request(SamplingParams(top_p=0.75), drafts=(1,))
    rows = [(CORED, request), (CORED, replace(request, drafts=(), output=(1,)))]
    return batch(10, rows, "spec.draft-law")


@pytest.mark.parametrize("ids", [(1, 2), (1, 7), (1,), (2,), (4,)])
def test_a_verifier_may_keep_any_of_the_equals(ids):
    (places,) = places_of(drafted(), step_of(drafted()), Semantics())
    assert wrong_walk(places, ids) == ""


@pytest.mark.parametrize("ids", [(8,), (9,), (2, 1), (1, 8)])
def test_what_no_filter_keeps_is_wrong_all_the_same(ids):
    (places,) = places_of(drafted(), step_of(drafted()), Semantics())
    assert wrong_walk(places, ids)


def test_the_reference_verifies_drafts_at_a_tie():
    (check,) = [one for one in speculative.CHECKS if one.name == "draft-positions"]
    assert asked(check, ReferenceSampler(), replace(drafted(), calls=64)) == ()

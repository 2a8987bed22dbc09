"""Steering: tells Hypothesis how near a batch comes to where samplers go wrong, so that it looks there.

    @settings(max_examples=400)
    @given(near_batches())
    def test_my_kernel(case):
        check_batch(case, MyKernel())

`check_batch` judges a batch by its exact laws, and hands `hypothesis.target` the margins of its filters
and the largest surprise of its draws.  Hypothesis climbs by whole numbers, one choice at a time, in the
second half of a test's examples: `near_batches` therefore writes its logits and filters as integers.
Almost all of a batch of `batches()` comes from one seed, which nobody can climb, and `refsampler fuzz`
draws those in runs too short for a climb: it sets no target.  Give 200 examples for each filter.

The next batch may depend on the draws before it.  That costs no false alarm: it is fixed before its own
draws, and a batch is judged by what no right backend shows but with a probability below e^-50, whichever
batch it is.  Effects are steered by and never judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import hypothesis
import numpy as np
from hypothesis import strategies as st
from jaxtyping import Float64

from refsampler.backends.protocol import Subject
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Arrangement, Kind, Trial
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.rows import judge_rows
from refsampler.conformance.designed.build import Row, batch, request, row
from refsampler.conformance.stateful.step_judge import CERTAIN
from refsampler.conformance.subject import OpenSubject
from refsampler.law import trace_law
from refsampler.params import SamplingParams
from refsampler.semantics import Semantics, Step

__all__ = ["Margin", "check_batch", "effect", "margins", "near_batches"]

_FLOOR: Final = 2e-5
"""Nearer than this a float32 sum of masses may decide either way; there is nothing to climb to."""
_GRID: Final = 2**14
_RUN_SEED: Final = 11
_FEWEST: Final = 16
"""Equal rows of which the draws tell an effect."""


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a batch is from another result.

    Attributes:
        of: the filter.
        distance: of top-p in mass, of top-k and min-p in nats; the least of all rows.

    """

    of: Step
    distance: float

    @property
    def score(self) -> float:
        """What is climbed: bits of nearness, no more than there are to be had."""
        return -math.log2(max(self.distance, _FLOOR))


def margins(case: Case, semantics: Semantics = Semantics()) -> tuple[Margin, ...]:
    """Return the least margin of each filter that the batch asks for; ties have none."""
    least: dict[Step, float] = {}
    logits = case.build_logits()
    for place, asked in enumerate(case.requests):
        if asked.params.greedy:
            continue
        before = logits[place].double().numpy()
        for step, after in trace_law(logits[place], asked, semantics, thinking=case.thinking):
            ranked = np.sort(before[np.isfinite(before)])[::-1]
            least[step] = min(least.get(step, math.inf), _distance(step, ranked, asked.params))
            before = after.numpy()
    return tuple(Margin(step, far) for step, far in least.items() if math.isfinite(far))


def _distance(step: Step, ranked: Float64[np.ndarray, " ids"], asked: SamplingParams) -> float:
    """Return how far a filter is from keeping one id more or less; infinite if it is not asked."""
    if len(ranked) < 2:
        return math.inf
    behind = ranked[1:] - ranked[0]
    if step is Step.TOP_K and 0 < asked.top_k < len(ranked):
        gap = float(ranked[asked.top_k - 1] - ranked[asked.top_k])
        return gap or math.inf
    if step is Step.TOP_P and asked.top_p < 1:
        weights = np.exp(ranked - ranked[0])
        above = np.cumsum(weights)[:-1] / weights.sum()
        return float(np.abs(above - asked.top_p).min())
    if step is Step.MIN_P and asked.min_p > 0:
        return float(np.abs(behind - math.log(asked.min_p)).min())
    return math.inf


def effect(expected: Expected, ids: np.ndarray, seeded: np.ndarray) -> float:
    """Return the largest log(observed / expected) of an id over equal rows; 0 of few rows.

    Args:
        expected: laws of the rows.
        ids: [rows] drawn.
        seeded: [rows] whose draws say nothing of the law.

    """
    largest = 0.0
    for kind, law in enumerate(expected.distinct):
        drawn = ids[(expected.kind_of == kind) & ~seeded]
        if law.greedy or not law.valid or len(drawn) < _FEWEST:
            continue
        seen = np.bincount(drawn, minlength=len(law.core))[law.core]
        mean = len(drawn) * np.exp(law.least[law.core])
        # an observation more on both sides: an id of little mass that came once is no effect
        largest = max(largest, float(np.abs(np.log((seen + 1) / (mean + 1))).max(initial=0.0)))
    return largest


def check_batch(case: Case, backend: Subject) -> None:
    """Judge a batch inside a Hypothesis test, and steer the next ones by it.

    Args:
        case: without steps or drafts.
        backend: of any level.

    Raises:
        AssertionError: names the clause that is broken, what was expected and what came.
        SubjectError: the backend raised.

    """
    subject = OpenSubject(backend, _RUN_SEED)
    capabilities = subject.capabilities
    for one in margins(case, capabilities.semantics):
        hypothesis.target(one.score, label=f"margin of {one.of}")
    draw = subject.sample(case, 0, case.id)
    expected = Expected.of(case, capabilities.semantics)
    if len(draw.ids) == len(case.requests):
        inside = draw.ids.clip(0, case.logits.vocab - 1)
        seeded = np.array([one.params.seed is not None for one in case.requests])
        surprise = effect(expected, inside, seeded)
        if surprise:
            # what is the same everywhere cannot be climbed, and trying to takes examples
            hypothesis.target(surprise, label="log observed / expected")
    arrangement = Arrangement(case, expected, (draw,))
    for found in judge_rows(Trial(capabilities, (arrangement,), Kind.NEAR_CERTAIN, CERTAIN)):
        raise AssertionError(f"{found.clause}: expected {found.expected}, seen {found.seen}")


@st.composite
def near_batches(
    draw: st.DrawFn,
    *,
    vocab: int = 12,
    most_rows: int = 4,
    filters: Sequence[Step] = (Step.TOP_P, Step.MIN_P, Step.TOP_K),
) -> Case:
    """Batches whose numbers can be climbed: logits in 1/64, top-p and min-p in 2^-14.

    Args:
        draw: of Hypothesis.
        vocab: V, 6 or more.
        most_rows: at most so many rows.
        filters: of which each row asks for one; each has a margin of its own to be climbed.

    """
    count = draw(st.integers(1, most_rows))
    rows = [draw(_near_row(vocab, tuple(filters))) for _ in range(count)]
    return batch(vocab, rows, "draw.support")


@st.composite
def _near_row(draw: st.DrawFn, vocab: int, filters: tuple[Step, ...]) -> Row:
    ids = draw(st.lists(st.integers(0, vocab - 1), min_size=2, max_size=6, unique=True))
    levels = [draw(st.integers(0, 255)) / 64 for _ in ids]
    step = draw(st.sampled_from(filters))
    number = draw(st.integers(1, len(ids) if step is Step.TOP_K else _GRID - 1))
    named = {Step.TOP_K: "top_k", Step.TOP_P: "top_p", Step.MIN_P: "min_p"}[step]
    asked: dict[str, Any] = {named: number if step is Step.TOP_K else number / _GRID}
    heat = draw(st.sampled_from([1.0, 0.5, 2.0]))
    return (row(dict(zip(ids, levels, strict=True))), request(temperature=heat, **asked))

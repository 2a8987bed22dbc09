"""Batches with drafts, and what may excuse that two verifiers emit different ids for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from jaxtyping import Float64
from numpy import ndarray

from refsampler.backends.protocol import Feature
from refsampler.conformance.case import Case
from refsampler.conformance.designed.drafted import Drafted, steps_case
from refsampler.conformance.examples import collect
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.strategies import recipes, requests, vocabularies
from refsampler.conformance.verifying import draft_laws_of, step_of
from refsampler.law import TargetLaw, target_law
from refsampler.request import PLACEHOLDER, Request
from tests.vllm_parity.findings import ROUNDING, Finding, Kind

__all__ = ["compare", "make"]

_FEATURES = frozenset({Feature.SEED, Feature.PENALTIES, Feature.MASKS})
_MOST_DRAFTS = 5
_IDS = "emitted ids of a {} request, {}"


def make(count: int, run_seed: int) -> tuple[Case, ...]:
    """Return `count` distinct steps, half of them exact in float32 up to the temperature."""
    half = count // 2
    return (
        *collect(_steps(dyadic=True), half, run_seed),
        *collect(_steps(dyadic=False), count - half, run_seed + 1),
    )


@st.composite
def _steps(draw: st.DrawFn, *, dyadic: bool) -> Case:
    """A few unlike requests of up to five drafts; every random one has a seed."""
    vocab = draw(vocabularies(400))
    lawful = draw(st.booleans())
    row, law = recipes(vocab, dyadic=dyadic), recipes(vocab, dyadic=True)
    asked = requests(vocab, dyadic=dyadic, features=_FEATURES)
    parts = []
    for place in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0 if place else 1, _MOST_DRAFTS))
        targets = tuple(draw(row) for _ in range(size + 1))
        laws = tuple(
            target if draw(st.booleans()) and _is_law(vocab, target) else draw(law)
            for target in targets[:size]
        )
        drafts = tuple(draw(_drafts(vocab, one)) for one in targets[:size])
        if size and draw(st.integers(0, 7)) == 0:
            drafts = (*drafts[:-1], PLACEHOLDER)
        parts.append(
            Drafted(_admitted(draw(asked), place), drafts, targets, laws if lawful else ())
        )
    return steps_case(vocab, parts)


def _is_law(vocab: int, row: RowRecipe) -> bool:
    """Whether a row has a softmax."""
    law = LogitsRecipe(vocab, (row,)).build(torch.float32).double().softmax(-1)
    return bool(law.isfinite().all())


def _drafts(vocab: int, target: RowRecipe) -> st.SearchStrategy[int]:
    """The likeliest id, one that the row names, or any."""
    best = int(LogitsRecipe(vocab, (target,)).build(torch.float32)[0].argmax())
    return st.one_of(
        st.just(best), st.sampled_from(target.ids or (best,)), st.integers(0, vocab - 1)
    )


def _admitted(asked: Request, place: int) -> Request:
    """Return the request without what drafts do not admit, and with a seed if it is random."""
    params = replace(asked.params, min_p=0.0, logit_bias=())
    if not params.greedy and params.seed is None:
        params = replace(params, seed=place)
    return replace(asked, params=params)


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """One request with its exact laws and its noise.

    Attributes:
        request: with its drafts.
        law: of all positions of the batch.
        rows: that are its own.
        told: law of each draft.

    """

    request: Request
    law: TargetLaw
    rows: range
    told: Float64[ndarray, "drafts vocab"]

    def p(self, place: int) -> Float64[ndarray, " vocab"]:
        """Return the target law of a place."""
        return np.asarray(self.law.logprobs[self.rows[place]].exp())

    def rounding(self, place: int) -> float:
        """Return the relative error that float32 may leave in a probability there."""
        return ROUNDING * (4 + float(self.law.magnitude[self.rows[place]]))

    def noise(self) -> tuple[Float64[ndarray, " vocab"], Float64[ndarray, " drafts"], ndarray]:
        """Return race of the bonus, uniforms, race of the recovery, in the order of the seed."""
        assert self.request.params.seed is not None
        generator = torch.Generator().manual_seed(self.request.params.seed)
        vocab = self.law.logprobs.shape[1]

        def race() -> ndarray:
            empty = torch.empty(vocab, dtype=torch.float64)
            return np.asarray(empty.exponential_(generator=generator))

        bonus = race()
        count = len(self.request.drafts)
        uniforms = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        return bonus, uniforms, race()


def compare(
    case: Case, ours: Sequence[Sequence[int]], real: Sequence[Sequence[int]]
) -> tuple[Finding, ...]:
    """Compare what the reference and vLLM emit for each request."""
    step = step_of(case)
    plain = tuple(replace(one, drafts=()) for one in case.requests)
    law = target_law(case.build_logits(), plain)
    told = None if case.drafts is None else draft_laws_of(case).float().double().numpy()
    found, row, draft = [], 0, 0
    for place, one in enumerate(step.requests):
        size = len(one.drafts)
        laws = (
            np.eye(case.logits.vocab)[[max(token, 0) for token in one.drafts]]
            if told is None
            else told[draft : draft + size]
        )
        if told is None:
            laws[[token == PLACEHOLDER for token in one.drafts]] = 0
        walk = _Walk(one, law, range(row, row + size + 1), laws)
        kind, clause = _verdict(walk, list(ours[place]), list(real[place]))
        check = _IDS.format(
            "greedy" if one.params.greedy else "random",
            "without drafts" if not size else "drafts certain" if told is None else "draft laws",
        )
        words = (str(ours[place]), str(real[place])) if kind is not Kind.AGREES else ("", "")
        found.append(Finding(check, kind, clause, place, *words))
        row, draft = row + size + 1, draft + size
    return tuple(found)


def _verdict(walk: _Walk, ours: list[int], real: list[int]) -> tuple[Kind, str]:
    if ours == real:
        return Kind.AGREES, ""
    return next(_excuses(walk, ours, real), (Kind.UNEXPLAINED, "spec.law"))


def _excuses(walk: _Walk, ours: list[int], real: list[int]) -> Iterator[tuple[Kind, str]]:
    """Yield what explains the first place at which the two differ."""
    drafts, params = walk.request.drafts, walk.request.params
    pairs = enumerate(zip(ours, real, strict=False))
    at = next((place for place, (x, y) in pairs if x != y), min(len(ours), len(real)) - 1)
    row = walk.rows[at]
    if not bool(walk.law.valid[row]):
        yield Kind.OPEN, "nonfinite.contained"
    if not torch.equal(walk.law.core[row], walk.law.hull[row]):
        yield Kind.OPEN, "greedy.argmax" if params.greedy else "top-p.keep"
    generated = len(walk.request.output)
    if at == len(drafts) and generated < params.min_tokens <= generated + len(drafts):
        yield Kind.DEPARTS, "mask.min-tokens"
    if not params.greedy:
        yield from _of_noise(walk, at, ours, real)


def _of_noise(walk: _Walk, at: int, ours: list[int], real: list[int]) -> Iterator[tuple[Kind, str]]:
    """Yield what explains that the same noise gives a random request different ids."""
    drafts = walk.request.drafts
    bonus, uniforms, race = walk.noise()
    p, slack = walk.p(at), walk.rounding(at)
    if at == len(drafts):
        if _near(p, slack * p, bonus, ours[at], real[at]):
            yield Kind.OPEN, "spec.law"
        return
    draft = drafts[at]
    # the reference takes no law of a placeholder, vLLM the one in its row
    q = np.zeros_like(p) if draft == PLACEHOLDER else walk.told[at]
    if draft == PLACEHOLDER and _wins(np.maximum(p - walk.told[at], 0), slack * p, race, real[at]):
        yield Kind.DEPARTS, "spec.law"
    if at + 1 < max(len(ours), len(real)):
        # one accepts the draft, the other does not
        if draft != PLACEHOLDER and abs(uniforms[at] * q[draft] - p[draft]) <= slack * p[draft]:
            yield Kind.OPEN, "spec.law"
        return
    left = np.maximum(p - q, 0)
    if (left <= slack * p).all():
        if real[at] == 0:
            yield Kind.DEPARTS, "spec.degenerate"
        if p[real[at]] > 0:
            yield Kind.OPEN, "spec.degenerate"
    elif _near(left, slack * p, race, ours[at], real[at]):
        yield Kind.OPEN, "spec.law"


def _near(law: ndarray, slack: ndarray, noise: ndarray, ours: int, real: int) -> bool:
    """Whether either of two ids may win a race, given what rounding leaves open of the law."""
    return bool((law[real] + slack[real]) / noise[real] >= (law[ours] - slack[ours]) / noise[ours])


def _wins(law: ndarray, slack: ndarray, noise: ndarray, id_: int) -> bool:
    """Whether an id may win a race; where nothing is left of the law, id 0 does."""
    if (law <= slack).all():
        return id_ == 0
    return bool((law[id_] + slack[id_]) / noise[id_] >= ((law - slack) / noise).max())

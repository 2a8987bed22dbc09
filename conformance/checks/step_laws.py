"""The joint law of the first two ids of a step, right and wrong, on cells.

A cell is a number of drafts, a first id, and a second id or none; of drafts alone it is the part of
their own law in which they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, DType
from refsampler.conformance.case import Case
from refsampler.conformance.evidence.alternatives import Alternative, Fault
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.cells import RowLaw
from refsampler.conformance.evidence.law import LawCase
from refsampler.conformance.evidence.recoveries import residual, shared_race, shared_uniform
from refsampler.conformance.verifying import draft_laws_of
from refsampler.law import target_law
from refsampler.law_speculative import emitted_pair
from refsampler.request import Request
from refsampler.semantics import Semantics

__all__ = [
    "BUCKETS",
    "MISTAKES",
    "draft_law_case",
    "first_acceptance",
    "joint_law_case",
    "step_cells",
]

BUCKETS: Final = 16
"""Parts of equal probability, in one of which a draft lies, whatever the law it came from."""

_BOTH_IDS: Final = 2
"""Each of the two ids of a step may be off by the declared delta."""

_DRAFT_ROUNDING: Final = 2.0**-14
"""Of laws told in float32, of logits near 100."""

_ROUNDING: Final = 2.0**-19
"""Of draft and target laws that are handed over and computed in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class _Laws:
    """The laws of the first two positions behind one output.

    Attributes:
        first: target of the first.
        draft: of the first draft.
        second: row a is the target behind a.
        forgetful: target of the second if the first is not history.

    """

    first: FloatArray
    draft: FloatArray
    second: FloatArray
    forgetful: FloatArray

    def joint(self) -> FloatArray:
        """Return the exact law of both ids [first, second or none]."""
        first, draft, second = map(torch.from_numpy, (self.first, self.draft, self.second))
        return np.asarray(emitted_pair(first, draft, second).numpy())

    def wrong(self, recovered: FloatArray, second: FloatArray) -> FloatArray:
        """Return the law with another recovery or another second id."""
        accepted = np.minimum(self.first, self.draft)
        rejected = (1 - accepted.sum()) * recovered
        return np.concatenate([accepted[:, None] * second, rejected[:, None]], axis=1)


def _reused_race(laws: _Laws) -> FloatArray:
    return laws.wrong(shared_race(laws.first, laws.draft), laws.second)


def _reused_uniform(laws: _Laws) -> FloatArray:
    return laws.wrong(shared_uniform(laws.first, laws.draft), laws.second)


def _from_target(laws: _Laws) -> FloatArray:
    return laws.wrong(laws.first, laws.second)


def _forgetful(laws: _Laws) -> FloatArray:
    recovered = residual(laws.first, laws.draft)
    return laws.wrong(recovered, np.broadcast_to(laws.forgetful, laws.second.shape))


def _all_accepted(laws: _Laws) -> FloatArray:
    nothing = np.zeros((laws.draft.size, 1))
    return np.concatenate([laws.draft[:, None] * laws.second, nothing], axis=1)


MISTAKES: Final = (
    ("the recovery reuses the race that chose the draft", _reused_race),
    ("one uniform rejects the draft and picks the recovery", _reused_uniform),
    ("the recovery is drawn from the target law", _from_target),
    ("the second id forgets the first", _forgetful),
    ("every draft is accepted", _all_accepted),
)
"""What every case of the joint law bets on, beside bets without a name."""


def joint_law_case(name: str, case: Case, capabilities: Capabilities) -> LawCase:
    """Return the exact law of both ids, with the mistakes that are bet on.

    Args:
        name: of the evidence.
        case: of one request with drafts.
        capabilities: of the backend.

    """
    semantics = capabilities.semantics
    laws = _laws_of(case, semantics)
    bank = tuple(
        Alternative(words, 1.0, 1 / len(MISTAKES), _on_cells(_spread(case, laws.first, made(laws))))
        for words, made in MISTAKES
    )
    delta = _BOTH_IDS * capabilities.delta + _ROUNDING
    return _law_case(name, step_cells(case, semantics), delta, bank)


def draft_law_case(name: str, case: Case, capabilities: Capabilities) -> LawCase:
    """Return the uniform law of the parts of their laws in which drafts lie."""
    told = _laws_of(case, capabilities.semantics).first
    half = replace(case, dtype=DType.BFLOAT16)
    drawn = {
        "every draft is its law's likeliest id": (np.arange(told.size) == told.argmax()) * 1.0,
        "drafts are drawn from logits in bfloat16": _laws_of(half, capabilities.semantics).first,
    }
    bank = tuple(
        Alternative(words, 1.0, 1 / len(drawn), _on_cells(_parts(told, law)))
        for words, law in drawn.items()
    )
    delta = capabilities.delta + _DRAFT_ROUNDING
    return _law_case(name, np.full(BUCKETS, 1 / BUCKETS), delta, bank)


def _parts(told: FloatArray, drawn: FloatArray) -> FloatArray:
    """Return where in the law that is told drafts of another law lie, over the buckets."""
    edges = np.concatenate([[0.0], np.cumsum(told)])
    grid = np.linspace(0, 1, BUCKETS + 1)
    parts = np.zeros(BUCKETS)
    for token in np.flatnonzero(told):
        inside = np.diff(grid.clip(edges[token], edges[token + 1]))
        parts += drawn[token] * inside / told[token]
    return parts


def _law_case(name: str, probs: FloatArray, delta: float, bank: tuple[Alternative, ...]) -> LawCase:
    possible = probs > 0
    with np.errstate(divide="ignore"):
        logprobs = np.log(probs)
    return LawCase.build(
        name, logprobs, core=possible, hull=possible, delta=delta, floor=0.0, alternatives=bank
    )


def _on_cells(law: FloatArray) -> Fault:
    """Return a faulty law of cells as a declared alternative has it."""

    def fault(row: RowLaw) -> FloatArray:
        return np.asarray(law[row.ids])

    return fault


def _laws_of(case: Case, semantics: Semantics) -> _Laws:
    """Return the exact laws of the first two positions of a case's one request."""
    logits, vocab = case.build_logits(), case.logits.vocab
    asked = replace(case.requests[0], drafts=())

    def probs(rows: Tensor, requests: list[Request]) -> FloatArray:
        law = target_law(rows, requests, semantics)
        return np.asarray(law.logprobs.exp().numpy())

    behind = [replace(asked, output=(*asked.output, token)) for token in range(vocab)]
    certain = np.arange(vocab) == case.requests[0].drafts[0]
    draft = certain.astype(float) if case.drafts is None else draft_laws_of(case)[0].numpy()
    return _Laws(
        probs(logits[:1], [asked])[0],
        draft / draft.sum(),
        probs(logits[1].expand(vocab, -1), behind),
        probs(logits[1:2], [asked])[0],
    )


def _lengths(case: Case) -> FloatArray:
    """Return the law of the number of drafts: uniform where the suite draws several, else all."""
    most = len(case.requests) - 1
    drawn = case.drafts is not None and most > 1
    return np.full(most + 1, 1 / (most + 1)) if drawn else np.eye(most + 1)[most]


def first_acceptance(case: Case, semantics: Semantics) -> float:
    """Return the exact probability that a first draft is accepted."""
    laws = _laws_of(case, semantics)
    return float(np.minimum(laws.first, laws.draft).sum())


def _spread(case: Case, alone: FloatArray, joint: FloatArray) -> FloatArray:
    """Return the law of all cells: number of drafts, first id, second id or none."""
    nothing = np.zeros((alone.size, alone.size + 1))
    nothing[:, -1] = alone
    lengths = _lengths(case)
    parts = [share * (joint if count else nothing) for count, share in enumerate(lengths)]
    return np.stack(parts).reshape(-1)


def step_cells(case: Case, semantics: Semantics) -> FloatArray:
    """Return the exact law of all cells of a case."""
    laws = _laws_of(case, semantics)
    return _spread(case, laws.first, laws.joint())

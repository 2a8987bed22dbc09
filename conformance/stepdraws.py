"""Steps of one request drawn again and again, each turned into the number of its cell."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from typing import Final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Finding
from refsampler.conformance.checks.step_laws import BUCKETS, first_acceptance, step_cells
from refsampler.conformance.subject import OpenSubject, derived_seed
from refsampler.conformance.verifying import (
    Answer,
    DraftingBatch,
    Step,
    draft_laws_of,
    drafting,
    verify,
)
from refsampler.request import Request

__all__ = ["ImpossibleStepError", "Source", "StepDraws"]

_RATE_BETA: Final = 1e-6
"""Probability with which a printed interval of an acceptance rate misses the true one."""


class Source(StrEnum):
    """Where the drafts come from."""

    OWN = "its own drafts"
    SEEDED = "its own drafts, seeded"
    GIVEN = "drafts from elsewhere, of uneven length"
    CERTAIN = "certain drafts"
    DRAFTS = "drafts alone"

    @property
    def own(self) -> bool:
        """Whether the backend draws them."""
        return self in (Source.OWN, Source.SEEDED, Source.DRAFTS)


class ImpossibleStepError(Exception):
    """A step that no right backend emits."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.seen)
        self.finding = finding


class StepDraws:
    """The steps of one case, call by call.

    Args:
        subject: the backend.
        case: of one request with drafts.
        rows: steps of a call.
        source: of the drafts.

    """

    def __init__(self, subject: OpenSubject, case: Case, rows: int, source: Source) -> None:
        self._subject, self._case, self._rows, self._source = subject, case, rows, source
        self._id = case.id
        self._clause = case.clauses[0]
        device = subject.capabilities.device
        self._targets = case.build_logits(device)
        self._asked = replace(case.requests[0], drafts=())
        self._laws = None if case.drafts is None else draft_laws_of(case)
        self._impossible = step_cells(case, subject.capabilities.semantics) == 0
        self._accepted = self._drafted = 0

    def acceptance(self) -> str:
        """Return how many first drafts were accepted, in words, beside the exact probability."""
        exact = first_acceptance(self._case, self._subject.capabilities.semantics)
        # half a second to import, in every process of a run; few runs get here
        from scipy.stats import binomtest

        found = binomtest(self._accepted, max(self._drafted, 1)).proportion_ci(1 - _RATE_BETA)
        return (
            f"{self._source}: {self._accepted / max(self._drafted, 1):.4f} of first drafts accepted "
            f"({found.low:.4f} to {found.high:.4f} at 1 - {_RATE_BETA:g}; exact {exact:.4f})"
        )

    def drafts(self, call: int) -> Int64[np.ndarray, " rows"]:
        """Return in which part of its reported law each draft lies: uniform, whatever the law."""
        with self._drafting(call) as batch:
            ids, laws = batch.draft(self._draft_logits())
        rows = np.arange(len(ids))
        at = laws[rows, ids]
        wrong = np.flatnonzero((at <= 0) | (np.abs(laws.sum(1) - 1) > 1e-2) | (laws < 0).any(1))
        if len(wrong):
            row = wrong[0]
            seen = f"draft {ids[row]}, of probability {at[row]:.3g} in a law of sum {laws[row].sum():.3g}"
            raise ImpossibleStepError(
                Finding(self._clause, "a draft that its law can give", seen, call=call)
            )
        rng = np.random.default_rng(derived_seed(self._subject.run_seed, self._id, "parts", call))
        below = np.cumsum(laws, axis=1)[rows, ids] - at
        inside = (below + rng.random(len(ids)) * at) / laws.sum(1)
        parts: Int64[np.ndarray, " rows"] = (inside * BUCKETS).astype(np.int64)
        return parts.clip(max=BUCKETS - 1)

    def steps(self, call: int) -> Int64[np.ndarray, " rows"] | str:
        """Return the cell of each step, or why the case says nothing about this backend."""
        if self._source.own:
            laws, drafts, answer = self._own_steps(call)
            assert self._laws is not None
            if not np.allclose(laws, self._laws[0].numpy(), atol=1e-4):
                return "its drafts come from another law than softmax of the draft logits"
        else:
            step = self._given(call)
            seed = derived_seed(self._subject.run_seed, self._id, "verify", call)
            answer, drafts = verify(self._subject, step, seed), step.drafts
        if answer.form:
            raise ImpossibleStepError(
                Finding(ClauseId("output.form"), "ids, then -1", answer.form, call=call)
            )
        self._drafted += sum(map(bool, drafts))
        self._accepted += sum(len(one) > 1 for one in answer.ids)
        return self._cells(answer.ids, drafts, call)

    def _cells(
        self, emitted: tuple[tuple[int, ...], ...], drafts: list[tuple[int, ...]], call: int
    ) -> Int64[np.ndarray, " rows"]:
        vocab = self._case.logits.vocab
        cells = []
        for ids, drafted in zip(emitted, drafts, strict=True):
            if not all(0 <= token < vocab for token in ids):
                expected = f"ids from 0 to {vocab - 1}"
                raise ImpossibleStepError(
                    Finding(ClauseId("output.range"), expected, f"ids {ids}", call=call)
                )
            second = ids[1] if len(ids) > 1 else vocab
            cell = (len(drafted) * vocab + ids[0]) * (vocab + 1) + second
            other = len(ids) > 1 and ids[0] != drafted[0]
            if other or self._impossible[cell]:
                seen = f"ids {list(ids)} for drafts {list(drafted)}"
                expected = "ids that target and drafts allow"
                raise ImpossibleStepError(Finding(self._clause, expected, seen, call=call))
            cells.append(cell)
        return np.array(cells, dtype=np.int64)

    def _own_steps(
        self, call: int
    ) -> tuple[Float64[np.ndarray, "rows vocab"], list[tuple[int, ...]], Answer]:
        """Let the backend draft once for every row and verify it."""
        with self._drafting(call) as batch:
            laws = batch.draft(self._draft_logits())[1]
            probs = torch.from_numpy(laws).float().to(self._targets.device)
            answer = batch.verify(self._targets.repeat(self._rows, 1), probs)
            return laws, [one.drafts for one in batch.requests], answer

    def _drafting(self, call: int) -> AbstractContextManager[DraftingBatch]:
        seed = derived_seed(self._subject.run_seed, self._id, "own", call)
        return drafting(self._subject, self._requests(call), self._case.logits.vocab, seed)

    def _draft_logits(self) -> Tensor:
        assert self._case.drafts is not None
        row = self._case.drafts.build(torch.float32)[:1].to(self._targets.device)
        return row.expand(self._rows, -1).contiguous()

    def _requests(self, call: int) -> tuple[Request, ...]:
        """Return the requests of a call; seeds are consecutive over all calls."""
        if self._source is not Source.SEEDED:
            return (self._asked,) * self._rows
        first = derived_seed(self._subject.run_seed, self._id, "seeds") + call * self._rows
        return tuple(
            replace(self._asked, params=replace(self._asked.params, seed=first + row))
            for row in range(self._rows)
        )

    def _given(self, call: int) -> Step:
        """Return a step whose drafts and lengths the suite draws, each row by itself."""
        rng = np.random.default_rng(derived_seed(self._subject.run_seed, self._id, "given", call))
        most = len(self._case.requests) - 1
        if self._laws is None:
            drafts: list[tuple[int, ...]] = [self._case.requests[0].drafts] * self._rows
            lengths = np.full(self._rows, most)
        else:
            drawn = [
                rng.choice(len(law), self._rows, p=law / law.sum()) for law in self._laws.numpy()
            ]
            lengths = rng.integers(0, most + 1, self._rows)
            drafts = [
                tuple(ids[:length])
                for ids, length in zip(np.stack(drawn, 1).tolist(), lengths.tolist(), strict=True)
            ]
        same = {ids: replace(self._asked, drafts=ids) for ids in {*drafts}}
        device = self._subject.capabilities.device
        places = torch.from_numpy(np.concatenate([np.arange(one + 1) for one in lengths]))
        laws = None
        if self._laws is not None:
            rows = torch.from_numpy(np.concatenate([np.arange(one) for one in lengths]))
            laws = self._laws.float().to(device)[rows.to(device)]
        return Step(tuple(same[ids] for ids in drafts), self._targets[places.to(device)], laws)

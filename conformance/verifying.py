"""Verifying: a backend's verifier behind two calls, `verify` and `draft`, whatever its level.

A sampler gets metadata, an engine a session; whatever it raises becomes a `SubjectError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import (
    Drafter,
    Engine,
    Proposed,
    SpeculativeSession,
    Verified,
    Verifier,
)
from refsampler.conformance.case import Case
from refsampler.conformance.closing import closed_after
from refsampler.conformance.subject import OpenSubject, SubjectError, seeded
from refsampler.metadata import SamplingMetadata, generators_of
from refsampler.processors import LogitsProcessor
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers

__all__ = [
    "Answer",
    "DraftingBatch",
    "Step",
    "draft_laws_of",
    "drafting",
    "read_verified",
    "step_of",
    "verify",
]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What a verifier is given for one step.

    Attributes:
        requests: with their drafts.
        logits: [positions, vocab], of each request its drafts' rows and its bonus row.
        draft_probs: [drafts, vocab] float32; None if each draft is certain.
        thinking: markers of the model's thinking section.

    """

    requests: tuple[Request, ...]
    logits: Tensor
    draft_probs: Tensor | None = None
    thinking: ThinkingMarkers | None = None

    @property
    def drafts(self) -> list[tuple[int, ...]]:
        """The drafts of each request."""
        return [one.drafts for one in self.requests]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verifier gave.

    Attributes:
        ids: of each request, without the cells behind them; empty if the form allows no reading.
        form: what is wrong with the form, empty if nothing is.
        changed: the logits handed over are not the ones that came back.

    """

    ids: tuple[tuple[int, ...], ...]
    form: str = ""
    changed: bool = False


def step_of(case: Case, device: str = "cpu") -> Step:
    """Read a case whose rows are positions."""
    requests, place = [], 0
    while place < len(case.requests):
        requests.append(case.requests[place])
        place += len(requests[-1].drafts) + 1
    laws = None if case.drafts is None else draft_laws_of(case).float().to(device)
    return Step(tuple(requests), case.build_logits(device), laws, case.thinking)


def draft_laws_of(case: Case) -> Tensor:
    """Return the laws [drafts, vocab] that the drafts of a case come from, in float64."""
    assert case.drafts is not None
    return case.drafts.build(torch.float32).double().softmax(-1)


def verify(
    subject: OpenSubject,
    step: Step,
    seed: int,
    *,
    speculative: bool = True,
    custom: Sequence[type[LogitsProcessor]] = (),
) -> Answer:
    """Let a backend verify one step, from fresh request state.

    Args:
        subject: declares `speculative`.
        step: what is verified.
        seed: of the default generator.
        speculative: False makes a batch that a sampler has to refuse.
        custom: processors of such a batch.

    Raises:
        SubjectError: the backend raised.

    """
    before = step.logits.clone()
    if subject.capabilities.level == 3:
        with _session(subject, step.requests, step.logits.shape[1], seed) as session:
            output = _verified_by(session, step)
    else:
        metadata = SamplingMetadata.from_requests(
            step.requests,
            step.logits.shape[1],
            device=subject.capabilities.device,
            custom=custom,
            thinking=step.thinking,
            speculative=speculative,
        )
        with seeded(seed, subject.capabilities.device):
            output = _verified(subject, step, metadata)
    changed = not torch.equal(before.nan_to_num(), step.logits.nan_to_num())
    return replace(read_verified(output, step), changed=changed)


class DraftingBatch:
    """Requests that a backend drafts for and then verifies, each with one stream of noise.

    Args:
        subject: declares `speculative` and `draft`.
        requests: without drafts.
        vocab: V.
        session: of an engine.

    Attributes:
        requests: with the drafts that they have by now.

    """

    def __init__(
        self,
        subject: OpenSubject,
        requests: Sequence[Request],
        vocab: int,
        session: SpeculativeSession | None = None,
    ) -> None:
        self.requests = tuple(requests)
        self._subject, self._vocab, self._session = subject, vocab, session
        self._generators = generators_of(requests, torch.device(subject.capabilities.device))

    def draft(
        self, logits: Tensor
    ) -> tuple[Int64[np.ndarray, " requests"], Float64[np.ndarray, "requests vocab"]]:
        """Let the backend propose one id more for each request; return ids and laws.

        Raises:
            SubjectError: the backend raised, or proposed something else.

        """
        with _raised():
            proposed = self._proposed(logits)
            ids = torch.as_tensor(proposed.ids).reshape(-1).cpu().numpy().astype(np.int64)
            laws = torch.as_tensor(proposed.probs).cpu().double().numpy()
        shape = (len(self.requests), self._vocab)
        if ids.shape != shape[:1] or laws.shape != shape:
            words = f"drafts {ids.shape} with laws {laws.shape}; {shape[:1]} and {shape} expected"
            raise SubjectError(words)
        if ids.min() < 0 or ids.max() >= self._vocab:
            raise SubjectError(f"drafts from {ids.min()} to {ids.max()} of {self._vocab} ids")
        self.requests = tuple(
            replace(one, drafts=(*one.drafts, token))
            for one, token in zip(self.requests, ids.tolist(), strict=True)
        )
        return ids, laws

    def propose(self, drafts: Sequence[tuple[int, ...]]) -> None:
        """Give each request drafts from elsewhere, which are certain."""
        self.requests = tuple(
            replace(one, drafts=ids) for one, ids in zip(self.requests, drafts, strict=True)
        )

    def accept(self, ids: Sequence[Sequence[int]]) -> None:
        """Append what was emitted to the outputs; the drafts are done with.

        Raises:
            SubjectError: the backend raised.

        """
        if self._session is not None:
            with _raised():
                self._session.accept(range(len(ids)), ids)
        self.requests = tuple(
            replace(one, output=(*one.output, *gained), drafts=())
            for one, gained in zip(self.requests, ids, strict=True)
        )

    def verify(self, logits: Tensor, draft_probs: Tensor | None) -> Answer:
        """Let the backend verify the drafts.

        Raises:
            SubjectError: the backend raised.

        """
        step = Step(self.requests, logits, draft_probs)
        if self._session is not None:
            return read_verified(_verified_by(self._session, step), step)
        return read_verified(_verified(self._subject, step, self._metadata(self.requests)), step)

    def _proposed(self, logits: Tensor) -> Proposed:
        drafts = [one.drafts for one in self.requests]
        if self._session is not None:
            return self._session.draft(range(len(drafts)), drafts, logits)
        behind = [
            replace(one, output=(*one.output, *one.drafts), drafts=()) for one in self.requests
        ]
        metadata = replace(self._metadata(behind), steps=[len(ids) for ids in drafts])
        return cast("Drafter", self._subject.backend).draft(logits, metadata)

    def _metadata(self, requests: Sequence[Request]) -> SamplingMetadata:
        return SamplingMetadata.from_requests(
            requests,
            self._vocab,
            device=self._subject.capabilities.device,
            generators=self._generators,
            speculative=True,
        )


@contextmanager
def drafting(
    subject: OpenSubject, requests: Sequence[Request], vocab: int, seed: int
) -> Iterator[DraftingBatch]:
    """Open a batch that one backend drafts for and verifies, whose noise goes on from call to call."""
    if subject.capabilities.level == 3:
        with _session(subject, requests, vocab, seed) as session:
            yield DraftingBatch(subject, requests, vocab, session)
        return
    with seeded(seed, subject.capabilities.device):
        yield DraftingBatch(subject, requests, vocab)


@contextmanager
def _session(
    subject: OpenSubject, requests: Sequence[Request], vocab: int, seed: int
) -> Iterator[SpeculativeSession]:
    """Open a session that runs the requests, without their drafts."""
    engine = cast("Engine", subject.backend)
    with _raised():
        opened = cast("SpeculativeSession", engine.open(vocab, seed))
    with closed_after(opened, _raised) as session:
        with _raised():
            for row, one in enumerate(requests):
                session.add(row, replace(one, drafts=()))
        yield session


def _verified(subject: OpenSubject, step: Step, metadata: SamplingMetadata) -> Verified:
    flat = [token for ids in step.drafts for token in ids]
    ids = torch.tensor(flat, dtype=torch.int32, device=subject.capabilities.device)
    with _raised():
        return cast("Verifier", subject.backend).verify(
            ids, step.draft_probs, step.logits, metadata
        )


def _verified_by(session: SpeculativeSession, step: Step) -> Verified:
    with _raised():
        return session.verify(range(len(step.requests)), step.drafts, step.draft_probs, step.logits)


@contextmanager
def _raised() -> Iterator[None]:
    """Turn what a backend raises into a `SubjectError`."""
    try:
        yield
    except SubjectError:
        raise
    except (Exception, SystemExit) as error:
        refused = isinstance(error, ValueError)
        raise SubjectError(f"{type(error).__name__}: {error}", refused=refused) from error


def read_verified(output: Verified, step: Step) -> Answer:
    """Read the ids of each request, or say what is wrong with the form (clause `output.form`)."""
    ids = getattr(output, "token_ids", None)
    count, most = len(step.requests), max((len(one) for one in step.drafts), default=0)
    expected = f"int32 [{count}, {most + 1}]"
    if not isinstance(ids, Tensor) or ids.dtype is not torch.int32:
        kind = f"{ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        return Answer((), f"token_ids of {kind}, {expected} expected")
    if tuple(ids.shape) != (count, most + 1):
        return Answer((), f"token_ids of shape {tuple(ids.shape)}, {expected} expected")
    rows = []
    for row, (cells, drafts) in enumerate(zip(ids.tolist(), step.drafts, strict=True)):
        length = next((at for at, one in enumerate(cells) if one == PLACEHOLDER), len(cells))
        behind = [one for one in cells[length:] if one != PLACEHOLDER]
        if behind or not 1 <= length <= len(drafts) + 1:
            words = f"request {row} of {len(drafts)} drafts gets {cells}"
            return Answer((), f"{words}: 1 to {len(drafts) + 1} ids, then -1 expected")
        rows.append(tuple(cells[:length]))
    return Answer(tuple(rows))

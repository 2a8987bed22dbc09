"""Journal: the calls that a session got, so that they can be held again for one request alone.

Tokens are written down as they were accepted: a replay under another seed has the same histories.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from refsampler.backends.protocol import DType, Session, SpeculativeSession
from refsampler.conformance.case import Case
from refsampler.conformance.designed.drafted import Drafted, steps_case
from refsampler.conformance.sessions import asking, open_session, sample_step
from refsampler.conformance.subject import Draw, OpenSubject
from refsampler.conformance.verifying import Answer, Step, read_verified, step_of
from refsampler.request import Request

__all__ = ["Accepted", "Added", "Call", "Player", "Removed", "Stepped"]


@dataclass(frozen=True, slots=True)
class Added:
    """A request was admitted."""

    name: int
    request: Request


@dataclass(frozen=True, slots=True)
class Removed:
    """A request was forgotten."""

    name: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Requests got tokens.

    Attributes:
        names: of the requests.
        tokens: of each.

    """

    names: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """Requests were sampled, or their drafts verified.

    Attributes:
        vocab: V.
        names: of the requests, in row order.
        parts: each request as it stands, its drafts and the logits of its positions.
        dtype: of the logits.
        verified: whether it was a step with drafts; drafts are certain.

    """

    vocab: int
    names: tuple[int, ...]
    parts: tuple[Drafted, ...]
    dtype: DType = DType.FLOAT32
    verified: bool = False

    @property
    def case(self) -> Case:
        """The step as a batch; a row for each position."""
        return steps_case(self.vocab, self.parts, dtype=self.dtype)

    def of(self, name: int) -> Stepped:
        """Return the step of one request alone."""
        return replace(self, names=(name,), parts=(self.parts[self.names.index(name)],))


Call = Added | Removed | Accepted | Stepped


class Player:
    """A session in which calls are held.

    Args:
        subject: an engine.
        vocab: V.
        seed: of the session.
        only: the one request that takes part; None is all of them.
        reseeded: a request, and the seed that it has in place of its own.

    Attributes:
        draw: of the last step without drafts.
        answer: of the last step with drafts.

    """

    def __init__(
        self,
        subject: OpenSubject,
        vocab: int,
        seed: int,
        *,
        only: int | None = None,
        reseeded: tuple[int, int] | None = None,
    ) -> None:
        self._subject, self._only, self._reseeded = subject, only, reseeded
        self._session: Session = open_session(subject, vocab, seed)
        self.draw: Draw | None = None
        self.answer: Answer | None = None

    def play(self, call: Call) -> tuple[tuple[int, ...], ...]:
        """Hold a call; return what each request of a step emitted, nothing if that is no reading.

        Raises:
            SubjectError: the backend raised.

        """
        match call:
            case Added(name, request) if self._minds(name):
                with asking():
                    self._session.add(name, self._seeded(name, request))
            case Removed(name) if self._minds(name):
                with asking():
                    self._session.remove(name)
            case Accepted(names, tokens):
                kept = [at for at, name in enumerate(names) if self._minds(name)]
                if kept:
                    with asking():
                        self._session.accept(
                            [names[at] for at in kept], [tokens[at] for at in kept]
                        )
            case Stepped(names=names) if self._only is None or self._only in names:
                return self._step(call if self._only is None else call.of(self._only))
        return ()

    def close(self) -> None:
        """Close the session.

        Raises:
            SubjectError: the backend raised.

        """
        with asking():
            self._session.close()

    def _step(self, call: Stepped) -> tuple[tuple[int, ...], ...]:
        case = call.case
        if not call.verified:
            rows = list(range(len(call.names)))
            self.draw = sample_step(self._subject, self._session, case, call.names, rows)
            return tuple((token,) for token in self.draw.ids.tolist())
        step = step_of(case, self._subject.capabilities.device)
        self.answer = self._verified(call.names, step)
        return self.answer.ids

    def _verified(self, names: tuple[int, ...], step: Step) -> Answer:
        before = step.logits.clone()
        session = self._session
        assert isinstance(session, SpeculativeSession)
        with asking():
            output = session.verify(names, step.drafts, None, step.logits)
        changed = not torch.equal(before, step.logits)
        return replace(read_verified(output, step), changed=changed)

    def _minds(self, name: int) -> bool:
        return self._only in (None, name)

    def _seeded(self, name: int, request: Request) -> Request:
        if self._reseeded is None or self._reseeded[0] != name:
            return request
        return replace(request, params=replace(request.params, seed=self._reseeded[1]))

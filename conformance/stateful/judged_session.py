"""A session under judgement: what each request should be by now, and what each step says of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from refsampler.backends.protocol import DType
from refsampler.conformance.checks.base import Finding
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.designed.build import Row
from refsampler.conformance.designed.drafted import Drafted
from refsampler.conformance.designed.sessions import VOCAB, grown
from refsampler.conformance.logits import RowRecipe
from refsampler.conformance.stateful.journal import Accepted, Added, Call, Player, Removed, Stepped
from refsampler.conformance.stateful.step_judge import (
    comparable,
    differs_alone,
    judge_step,
    judge_verified,
)
from refsampler.conformance.subject import OpenSubject, SubjectError

__all__ = ["JudgedSession"]

_SESSION_SEED: Final = 11
_ALONE_SEED: Final = 12


class JudgedSession:
    """A session of an engine, and beside it one of each seeded request by itself.

    Args:
        subject: an engine.
        dtype: of the logits.

    Attributes:
        requests: each request as it stands, with its row of logits.

    """

    def __init__(self, subject: OpenSubject, dtype: DType) -> None:
        self.requests: dict[int, Row] = {}
        self._subject, self._dtype = subject, dtype
        self._names = self._steps = 0
        self._ended = False
        self._journal: list[Call] = []
        self._session = Player(subject, VOCAB, _SESSION_SEED)
        self._alone: dict[int, Player] = {}

    def admit(self, member: Row) -> int:
        """Admit a request; return its name.

        Raises:
            SubjectError: the backend raised, here and below.

        """
        name, self._names = self._names, self._names + 1
        if member[1].params.seed is not None:
            self._alone[name] = Player(self._subject, VOCAB, _ALONE_SEED, only=name)
        self._play(Added(name, member[1]))
        self.requests[name] = member
        return name

    def remove(self, name: int) -> None:
        """Take a request out."""
        self._play(Removed(name))
        del self.requests[name]
        if name in self._alone:
            self._alone.pop(name).close()

    def accept(self, names: Sequence[int], tokens: Sequence[tuple[int, ...]]) -> None:
        """Append tokens to outputs."""
        self._play(Accepted(tuple(names), tuple(tokens)))
        for name, gained in zip(names, tokens, strict=True):
            recipe, request = self.requests[name]
            self.requests[name] = (recipe, grown(request, gained))

    def sample(self, names: tuple[int, ...], turn: int) -> tuple[tuple[int, ...], ...]:
        """Sample requests, whose live ids have their values turned round; return the ids.

        Raises:
            AssertionError: an id, or what was told of it, is not what a fresh build could give.

        """
        step = self._stepped(names, [()] * len(names), turn)
        ids = self._play(step)
        draw = self._session.draw
        assert draw is not None
        self._judged(step, judge_step(self._subject.capabilities, step, draw))
        self._compare(step, ids)
        return ids

    def verify(
        self, names: tuple[int, ...], drafts: Sequence[tuple[int, ...]], turn: int
    ) -> tuple[tuple[int, ...], ...]:
        """Verify drafts, which are certain; return what each request emits.

        Raises:
            AssertionError: no noise allows what was emitted.

        """
        step = replace(self._stepped(names, drafts, turn), verified=True)
        ids = self._play(step)
        answer = self._session.answer
        assert answer is not None
        self._judged(step, judge_verified(self._subject.capabilities, step, answer))
        self._compare(step, ids)
        return ids

    def close(self) -> None:
        """Close every session; after a failure whatever comes of it."""
        with suppress(*(Exception,) * self._ended):
            for player in (self._session, *self._alone.values()):
                player.close()

    def _stepped(
        self, names: tuple[int, ...], drafts: Sequence[tuple[int, ...]], turn: int
    ) -> Stepped:
        parts = []
        for name, tokens in zip(names, drafts, strict=True):
            recipe, request = self.requests[name]
            places = range(turn + name, turn + name + len(tokens) + 1)
            parts.append(Drafted(request, tokens, tuple(_turned(recipe, at) for at in places)))
        self._steps += 1
        return Stepped(VOCAB, names, tuple(parts), self._dtype)

    def _play(self, call: Call) -> tuple[tuple[int, ...], ...]:
        """Hold a call; steps of requests alone wait until everybody's was judged."""
        self._journal.append(call)
        self._ended = True
        ids = self._session.play(call)
        if not isinstance(call, Stepped):
            for player in self._alone.values():
                player.play(call)
        self._ended = False
        return ids

    def _judged(self, step: Stepped, findings: tuple[Finding, ...]) -> None:
        for one in findings:
            self._fail(step, f"{one.clause}: expected {one.expected}, seen {one.seen}", one.row)

    def _compare(self, step: Stepped, ids: tuple[tuple[int, ...], ...]) -> None:
        """Hold the step for each seeded request alone, and compare."""
        capabilities = self._subject.capabilities
        law = None if step.verified else Expected.of(step.case, capabilities.semantics)
        for row, name in enumerate(step.names):
            player = self._alone.get(name)
            alone = () if player is None else player.play(step)
            known = law is None or comparable(law.row(row), capabilities)
            if not alone or alone[0] == ids[row] or not known:
                continue
            if differs_alone(self._subject, VOCAB, self._journal, name):
                words = f"ids {list(alone[0])} by itself, seen {list(ids[row])}"
                self._fail(step, f"seed.batch: expected {words}", row)

    def _fail(self, step: Stepped, words: str, row: int | None) -> None:
        self._ended = True
        where = "" if row is None else f", row {row}, request {step.names[row]}"
        raise AssertionError(f"step {self._steps}{where}: {words}{self._fresh(step)}")

    def _fresh(self, step: Stepped) -> str:
        """Say whether a session opened for this step is wrong too."""
        if step.verified:
            return ""
        try:
            draw = self._subject.sample(step.case, 0, "fresh")
        except SubjectError as error:
            return f"; a session opened for this step fails too: {error}"
        if judge_step(self._subject.capabilities, step, draw):
            return "; a session opened for this step is wrong too"
        return "; a session opened for this step is right, so it is what this one keeps"


def _turned(recipe: RowRecipe, turn: int) -> RowRecipe:
    """Return the row with the values of its named ids turned round."""
    at = turn % max(1, len(recipe.values))
    return replace(recipe, values=(*recipe.values[at:], *recipe.values[:at]))

"""Machine: a Hypothesis state machine that drives an engine, and judges every step it takes.

    from refsampler.conformance.machine import machine

    TestMine = machine(MyEngine).TestCase

Requests are added, removed, preempted and resumed, rows are moved, swapped and condensed, tokens and
drafts are accepted, the batch grows and shrinks, in any order that Hypothesis thinks of.  Every step is
compared with a fresh build of the same requests: the exact law of each as it now stands, greedy ids
exactly; and a seeded request with itself in a session of its own that holds the same calls.

A kernel or a sampler is driven inside the reference's sessions.  A rule whose feature is not declared is
never taken.  What is improbable beyond 50 nats counts as impossible: a right backend fails a million
steps of 8 rows with a probability of 4e-15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from refsampler.backends.protocol import DType, Engine, Feature, Subject
from refsampler.backends.stdio.serving import as_engine
from refsampler.conformance.session_cases import Gained, Newcomer, gains, newcomers
from refsampler.conformance.stateful.judged_session import JudgedSession
from refsampler.conformance.stateful.row_places import RowPlaces
from refsampler.conformance.subject import OpenSubject

__all__ = ["SessionMachine", "Then", "machine"]

_RUN_SEED = 11


class Then(Enum):
    """What follows a change of the batch; two changes in a row make one update of an engine's state."""

    NOTHING = "nothing"
    SAMPLE = "a step whose ids are not accepted"
    DECODE = "a step whose ids are accepted"
    LEAP = "a step whose ids are accepted, with others behind them as if drafts had been"


def machine(
    backend: Subject | Callable[[], Subject], *, waiting: bool = True, most: int = 8
) -> type[SessionMachine]:
    """Return the state machine of a backend; its `TestCase` is a test.

    Args:
        backend: of any level, or what makes one.
        waiting: whether running requests are preempted and resumed.
        most: requests in the batch at a time, 2 or more.

    """
    # a class may have the declaration too
    ready = hasattr(backend, "capabilities") and not isinstance(backend, type)
    made = cast("Subject", backend if ready else cast("Callable[[], Subject]", backend)())
    declared = made.capabilities
    fields = {
        "subject": OpenSubject(as_engine(made), _RUN_SEED),
        "verifies": isinstance(made, Engine) and Feature.SPECULATIVE in declared.features,
        "waits": waiting,
        "most": most,
    }
    return type("Machine", (SessionMachine,), fields)


def _seen(look: Callable[[SessionMachine], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return a strategy that looks at the machine, so that a failure prints plain arguments."""
    return st.runner().flatmap(look)


_TURN = st.integers(0, 3)
_THEN = st.sampled_from(Then)
_NAME = _seen(lambda self: st.sampled_from(self.places.names))
_WAITING = _seen(lambda self: st.sampled_from(sorted(self.away)))
_ANYBODY = _seen(lambda self: st.sampled_from(sorted(self.session.requests)))
_FREE = _seen(lambda self: st.sampled_from(self.places.free))
_SIZE = _seen(lambda self: st.integers(1, self.most))
_DTYPE = _seen(lambda self: st.sampled_from(self.dtypes))
_NEW = _seen(lambda self: newcomers(self.subject.capabilities.features))
# a few sorts of requests in each example: state that is mixed up between two sorts needs both, often
_MEMBER = _seen(lambda self: st.one_of(*[st.sampled_from(self.sorts)] * 3 * bool(self.sorts), _NEW))
_TOKENS = _seen(lambda self: gains(self.live(*sorted(self.session.requests))))
_DRAFTS = _seen(lambda self: gains(self.live(*self.honoured)))


class SessionMachine(RuleBasedStateMachine):
    """Any calls in any order; made by `machine`.

    Attributes:
        subject: the engine.
        verifies: it verifies drafts.
        waits: running requests may be left out of a step.
        most: requests in the batch at a time.
        places: the row of each running request.
        away: requests that wait.
        sorts: newcomers that come often.
        session: the engine's.

    """

    subject: ClassVar[OpenSubject]
    verifies: ClassVar[bool]
    waits: ClassVar[bool]
    most: ClassVar[int]
    places: RowPlaces
    away: set[int]
    sorts: list[Newcomer]
    session: JudgedSession

    @initialize(dtype=_DTYPE, sorts=st.lists(_NEW, min_size=2, max_size=3))
    def starts(self, dtype: DType, sorts: list[Newcomer]) -> None:
        """Open a session with one request of each sort."""
        self.session = JudgedSession(self.subject, dtype)
        self.places, self.away, self.sorts = RowPlaces(), set(), sorts
        for member in sorts[: self.most]:
            self._admit(member)

    @precondition(lambda self: self.room)
    @rule(member=_MEMBER, copies=st.sampled_from([1, 1, 2]), then=_THEN)
    def add(self, member: Newcomer, copies: int, then: Then) -> None:
        """Admit a request, at times two that are alike."""
        for _ in range(min(copies, self.room)):
            self._admit(member)
        self._go_on(then)

    @precondition(lambda self: self.session.requests)
    @rule(name=_ANYBODY, then=_THEN)
    def remove(self, name: int, then: Then) -> None:
        """Take out a request, running or waiting."""
        self.session.remove(name)
        if name in self.away:
            self.away.remove(name)
        else:
            self.places.remove(name)
        self._go_on(then)

    @precondition(lambda self: self.waits and self.places.names)
    @rule(name=_NAME, then=_THEN)
    def preempt(self, name: int, then: Then) -> None:
        """Let a request wait: the next steps leave it out."""
        self.places.remove(name)
        self.away.add(name)
        self._go_on(then)

    @precondition(lambda self: self.away and self.room)
    @rule(name=_WAITING, then=_THEN)
    def resume(self, name: int, then: Then) -> None:
        """Let a waiting request go on, in the lowest free row."""
        self.away.remove(name)
        self.places.add(name)
        self._go_on(then)

    @precondition(lambda self: self.places.free)
    @rule(then=_THEN)
    def condense(self, then: Then) -> None:
        """Fill the free rows from the end."""
        self.places.condense()
        self._go_on(then)

    @precondition(lambda self: self.places.free and self.places.names)
    @rule(name=_NAME, row=_FREE, then=_THEN)
    def move(self, name: int, row: int, then: Then) -> None:
        """Move a request to a free row."""
        self.places.move(name, row)
        self._go_on(then)

    @precondition(lambda self: len(self.places.names) > 1)
    @rule(one=_NAME, other=_NAME, then=_THEN)
    def swap(self, one: int, other: int, then: Then) -> None:
        """Exchange the rows of two requests."""
        self.places.swap(one, other)
        self._go_on(then)

    @rule(size=_SIZE, member=_MEMBER, then=_THEN)
    def batch_size(self, size: int, member: Newcomer, then: Then) -> None:
        """Bring the batch to a size: others come, or the last ones wait or leave."""
        while len(self.places.names) < size:
            if self.away:
                self.resume(min(self.away), Then.NOTHING)
            else:
                self._admit(member)
        for name in self.places.names[size:]:
            (self.preempt if self.waits else self.remove)(name, Then.NOTHING)
        self._go_on(then)

    @precondition(lambda self: self.session.requests)
    @rule(tokens=_TOKENS, then=_THEN)
    def accept(self, tokens: Gained, then: Then) -> None:
        """Append tokens from elsewhere to some outputs, running or waiting, unequally many."""
        self.session.accept([name for name, _ in tokens], [some for _, some in tokens])
        self._go_on(then)

    @precondition(lambda self: self.places.names)
    @rule(turn=_TURN, then=_THEN)
    def step(self, turn: int, then: Then) -> None:
        """Sample every running request, judge the ids, and accept them or not."""
        self.places.condense()
        names = self.places.names
        ids: Sequence[tuple[int, ...]] = self.session.sample(names, turn)
        if then is Then.LEAP:
            live = self.live(*names)
            ids = [(*one, *live[row][1][: (row + turn) % 3]) for row, one in enumerate(ids)]
        if then in (Then.DECODE, Then.LEAP):
            self.session.accept(names, ids)

    @precondition(lambda self: self.verifies and self.honoured)
    @rule(turn=_TURN, drafts=_DRAFTS)
    def verify(self, turn: int, drafts: Gained) -> None:
        """Verify drafts of those requests that speculation can honour, and accept what comes."""
        self.places.condense()
        drafted = dict(drafts)
        names = self.honoured
        ids = self.session.verify(names, [drafted.get(name, ()) for name in names], turn)
        self.session.accept(names, ids)

    def teardown(self) -> None:
        """Close every session."""
        if hasattr(self, "session"):
            self.session.close()

    @property
    def dtypes(self) -> list[DType]:
        """Dtypes of logits, float32 first if it is one."""
        return sorted(self.subject.capabilities.dtypes, key=lambda one: one is not DType.FLOAT32)

    @property
    def room(self) -> int:
        """How many requests more the batch takes."""
        return self.most - len(self.places.names)

    @property
    def honoured(self) -> tuple[int, ...]:
        """Running requests that a verifier takes; the others could only wait."""
        names = self.places.names
        asked = {name: self.session.requests[name][1].params for name in names}
        minded = tuple(one for one in names if not (asked[one].min_p or asked[one].logit_bias))
        return minded if self.waits or len(minded) == len(names) else ()

    def live(self, *names: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return requests, each with its live ids."""
        return tuple((name, self.session.requests[name][0].ids) for name in names)

    def _admit(self, member: Newcomer) -> None:
        self.places.add(self.session.admit(member.row))

    def _go_on(self, then: Then) -> None:
        if then is not Then.NOTHING and self.places.names:
            self.step(len(self.places.rows), then)

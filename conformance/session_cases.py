"""Sessions drawn whole: any sequence of operations, as a case with steps that can be asked again.

`refsampler.conformance.machine` has the same operations as rules, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from refsampler.backends.protocol import Feature
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import Row, request, row
from refsampler.conformance.designed.sessions import VOCAB, Script, asks, member

__all__ = ["Gained", "Newcomer", "gains", "newcomers", "sessions"]

_MOST_RUNNING = 8
_LIKELY = (4.0, 3.0, 2.25, 1.25)
_SEEDED = "seeded"

Gained = tuple[tuple[int, tuple[int, ...]], ...]
"""Names of requests, each with tokens."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that may come, in a few words.

    Attributes:
        kind: what it minds, of `asks`, or `seeded`.
        ids: four live ones, the best first.
        greedy: it takes the argmax; else it is so cold that its best id comes all the same.
        prompt: ids.
        logprobs: that it asks for.
        seed: of a `seeded` one, all of whose live ids are likely.

    """

    kind: str
    ids: tuple[int, ...]
    greedy: bool = False
    prompt: tuple[int, ...] = ()
    logprobs: int | None = None
    seed: int | None = None

    @property
    def row(self) -> Row:
        """The request, and its row of logits."""
        if self.kind == _SEEDED:
            recipe = row(dict(zip(self.ids, _LIKELY, strict=True)))
            return (recipe, request(seed=self.seed, temperature=2.0))
        more: dict[str, Any] = {} if self.logprobs is None else {"logprobs": self.logprobs}
        return member(self.kind, self.ids, greedy=self.greedy, prompt=self.prompt, **more)


@st.composite
def sessions(
    draw: st.DrawFn, *clauses: str, features: frozenset[Feature], waiting: bool = False
) -> Case:
    """Requests that are added, removed, reordered and appended to, in 3 to 7 steps.

    Args:
        draw: of Hypothesis.
        clauses: that the case speaks about.
        features: what requests may ask.
        waiting: whether a running request may be left out of a step.

    """
    script = Script()
    for _ in range(draw(st.integers(3, 7))):
        for name in draw(st.lists(st.sampled_from([*script.running, -1]), unique=True)):
            if name in script.running and draw(st.booleans()):
                script.remove(name)
        free = [name for name in range(12) if name not in script.running]
        most = min(3, _MOST_RUNNING - len(script.running))
        least = 0 if script.running else 1
        for name in draw(
            st.lists(st.sampled_from(free), min_size=least, max_size=max(most, least), unique=True)
        ):
            script.add(name, draw(_members(features)).row)
        order = draw(st.permutations(list(script.running)))
        if waiting and len(order) > 1:
            order = order[: draw(st.integers(1, len(order)))]
        script.step(order, {name: draw(_token(script.running[name])) for name in order})
    return script.case(*clauses)


def newcomers(features: frozenset[Feature]) -> st.SearchStrategy[Newcomer]:
    """Requests with one right id whatever the noise, and seeded ones of four likely ids.

    Args:
        features: what requests may ask.

    """
    peaked = _members(features)
    if Feature.SEED not in features:
        return peaked
    return st.one_of(peaked, peaked, _members(features, seeds=st.integers(0, 2**31)))


def gains(live: Sequence[tuple[int, tuple[int, ...]]]) -> st.SearchStrategy[Gained]:
    """Some of these requests, each with one to three of its live ids."""
    known = dict(live)

    def tokens(name: int) -> st.SearchStrategy[tuple[int, tuple[int, ...]]]:
        ids = st.lists(st.sampled_from([*known[name], 0]), min_size=1, max_size=3)
        return st.tuples(st.just(name), ids.map(tuple))

    names = st.lists(st.sampled_from([*known]), min_size=1, unique=True)
    return names.flatmap(lambda chosen: st.tuples(*map(tokens, chosen)))


@st.composite
def _members(
    draw: st.DrawFn, features: frozenset[Feature], *, seeds: st.SearchStrategy[int] | None = None
) -> Newcomer:
    """A request of any kind, with four live ids, the ends of the vocabulary among them often."""
    token = st.one_of(st.sampled_from([0, VOCAB - 1]), st.integers(0, VOCAB - 1))
    ids = draw(st.lists(token, min_size=4, max_size=4, unique=True))
    if seeds is not None:
        return Newcomer(_SEEDED, tuple(ids), seed=draw(seeds))
    prompt = draw(st.lists(st.sampled_from([*ids, 0]), max_size=3))
    logprobs = None
    if Feature.LOGPROBS in features and draw(st.integers(0, 2)) == 0:
        logprobs = draw(st.sampled_from([0, 3]))
    kind = draw(st.sampled_from(asks(features)))
    greedy = draw(st.booleans())
    return Newcomer(kind, tuple(ids), greedy=greedy, prompt=tuple(prompt), logprobs=logprobs)


def _token(one: Row) -> st.SearchStrategy[tuple[int, ...]]:
    """One of the live ids, id 0, none or two of them."""
    single = st.sampled_from([*one[0].ids, 0])
    return st.one_of(st.tuples(single), st.tuples(single), st.just(()), st.tuples(single, single))

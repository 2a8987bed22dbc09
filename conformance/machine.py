"""Machine: any sequence of operations on a session, drawn by Hypothesis as a case with steps."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refsampler.backends.protocol import Feature
from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import Row
from refsampler.conformance.designed.sessions import VOCAB, Script, asks, member

__all__ = ["sessions"]

_MOST_RUNNING = 8


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
            script.add(name, draw(_members(features)))
        order = draw(st.permutations(list(script.running)))
        if waiting and len(order) > 1:
            order = order[: draw(st.integers(1, len(order)))]
        script.step(order, {name: draw(_token(script.running[name])) for name in order})
    return script.case(*clauses)


@st.composite
def _members(draw: st.DrawFn, features: frozenset[Feature]) -> Row:
    """A request of any kind, with four live ids, the ends of the vocabulary among them often."""
    token = st.one_of(st.sampled_from([0, VOCAB - 1]), st.integers(0, VOCAB - 1))
    ids = draw(st.lists(token, min_size=4, max_size=4, unique=True))
    prompt = draw(st.lists(st.sampled_from([*ids, 0]), max_size=3))
    more: dict[str, Any] = {}
    if Feature.LOGPROBS in features and draw(st.integers(0, 2)) == 0:
        more["logprobs"] = draw(st.sampled_from([0, 3]))
    kind = draw(st.sampled_from(asks(features)))
    return member(kind, ids, greedy=draw(st.booleans()), prompt=tuple(prompt), **more)


def _token(one: Row) -> st.SearchStrategy[tuple[int, ...]]:
    """One of the live ids, id 0, none or two of them."""
    single = st.sampled_from([*one[0].ids, 0])
    return st.one_of(st.tuples(single), st.tuples(single), st.just(()), st.tuples(single, single))

"""Minimising: from a case that fails to a smaller one that still does (rules of shrinking).

Nothing here creates or changes a verdict.  A smaller case is taken only if it fails too, and shown
only if it fails once more on fresh seeds; otherwise the next larger one is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case, Layout, SessionStep
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = ["CANDIDATES", "minimise", "smaller_cases"]

CANDIDATES: Final = 500
"""Most candidates that are asked for one failure."""

_FEW_ROWS: Final = 8
_FEW_IDS: Final = 16
_KEPT: Final = ("temperature_floor", "max_tokens")


def minimise(
    case: Case,
    fails: Callable[[Case], bool],
    fails_again: Callable[[Case], bool],
    *,
    deadline: float,
    candidates: int = CANDIDATES,
) -> Case | None:
    """Return the smallest case found, None if no smaller one was confirmed.

    Args:
        case: that failed.
        fails: whether a candidate fails in the same way.
        fails_again: the same on seeds that were not used before.
        deadline: of the monotonic clock, after which no candidate is asked.
        candidates: that are asked at most.

    """
    asked = {case.id}
    path: list[Case] = []
    found: Case | None = case
    while found is not None:
        current, found = found, None
        for smaller in smaller_cases(current):
            if len(asked) > candidates or time.monotonic() >= deadline:
                break
            if smaller.id in asked:
                continue
            asked.add(smaller.id)
            if fails(smaller):
                path.append(smaller)
                found = smaller
                break
    return next((one for one in reversed(path) if fails_again(one)), None)


def smaller_cases(case: Case) -> Iterator[Case]:
    """Yield cases that ask less, the boldest cuts first; each is legal where `case` is."""
    if case.steps:
        yield from _shorter_sessions(case)
        return
    if any(one.drafts for one in case.requests):
        yield from _fewer_parts(case)
        return
    yield from _fewer_rows(case)
    if case.calls > 1:
        yield replace(case, calls=1)
        yield replace(case, calls=case.calls // 2)
    if case.layout is not Layout.CONTIGUOUS:
        yield replace(case, layout=Layout.CONTIGUOUS)
    if case.dtype is not DType.FLOAT32:
        yield replace(case, dtype=DType.FLOAT32)
    yield from _plainer_requests(case)
    yield from _plainer_logits(case)
    yield from _smaller_vocabulary(case)


def _shorter_sessions(case: Case) -> Iterator[Case]:
    """Leave out steps at either end, then requests; who stays stands at each step as before."""
    count = len(case.steps)
    names = list(dict.fromkeys(name for step in case.steps for name in step.ids))
    for kept in dict.fromkeys((count // 2, count - 1)):
        if kept > 0:
            yield _session(case, range(kept), names)
            yield _session(case, range(count - kept, count), names)
    half = len(names) // 2
    for gone in (names[:half], names[half:], *([name] for name in names)):
        if 0 < len(gone) < len(names):
            yield _session(case, range(count), [name for name in names if name not in gone])


def _fewer_parts(case: Case) -> Iterator[Case]:
    """Leave out requests of a step with drafts, each with the rows of all its positions; then calls."""
    parts: list[range] = []
    while not parts or parts[-1].stop < len(case.requests):
        start = parts[-1].stop if parts else 0
        parts.append(range(start, start + len(case.requests[start].drafts) + 1))
    for gone in range(len(parts)):
        if len(parts) > 1:
            yield _parts(case, parts, [at for at in range(len(parts)) if at != gone])
    if case.calls > 1:
        yield replace(case, calls=1)


def _parts(case: Case, parts: Sequence[range], kept: Sequence[int]) -> Case:
    """Return the step of some of its requests; a draft's law goes with it."""
    rows = [row for at in kept for row in parts[at]]
    recipe = replace(case.logits, rows=tuple(case.logits.rows[row] for row in rows))
    drafts = case.drafts
    if drafts is not None:
        before = [sum(len(one) - 1 for one in parts[:at]) for at in range(len(parts))]
        laws = [before[at] + place for at in kept for place in range(len(parts[at]) - 1)]
        drafts = replace(drafts, rows=tuple(drafts.rows[law] for law in laws))
    requests = tuple(case.requests[row] for row in rows)
    return replace(case, logits=recipe, requests=requests, drafts=drafts)


def _session(case: Case, numbers: range, names: Sequence[int]) -> Case:
    """Return the session of these steps and requests; steps without any go."""
    rows: list[int] = []
    steps: list[SessionStep] = []
    removed: tuple[int, ...] = ()
    start = 0
    for number, step in enumerate(case.steps):
        places = [at for at, name in enumerate(step.ids) if name in names and number in numbers]
        removed += step.removed
        if places:
            rows += [start + at for at in places]
            steps.append(SessionStep(tuple(step.ids[at] for at in places), removed))
            removed = ()
        start += len(step.ids)
    recipe = replace(case.logits, rows=tuple(case.logits.rows[row] for row in rows))
    requests = tuple(case.requests[row] for row in rows)
    return replace(case, logits=recipe, requests=requests, steps=tuple(steps))


def _fewer_rows(case: Case) -> Iterator[Case]:
    """Leave out kinds of rows, then copies of them."""
    rows = len(case.requests)
    kinds: dict[tuple[RowRecipe, Request], list[int]] = {}
    for row in range(rows):
        kinds.setdefault((case.logits.rows[row], case.requests[row]), []).append(row)
    if len(kinds) > 1:
        for places in kinds.values():
            yield _rows(case, places)
    for count in (1, 2, rows // 4, rows // 2):
        if 0 < count < rows:
            yield _rows(case, list(range(count)))
            yield _rows(case, list(range(rows - count, rows)))
    if 1 < rows <= _FEW_ROWS:
        for gone in range(rows):
            yield _rows(case, [row for row in range(rows) if row != gone])


def _rows(case: Case, rows: list[int]) -> Case:
    recipe = replace(case.logits, rows=tuple(case.logits.rows[row] for row in rows))
    return replace(case, logits=recipe, requests=tuple(case.requests[row] for row in rows))


def _plainer_requests(case: Case) -> Iterator[Case]:
    """Switch one parameter off in every row that has it, or forget the history."""
    for name in ("drafts", "output", "prompt"):
        if any(getattr(one, name) for one in case.requests):
            yield _requests(case, [_history(one, name, 0) for one in case.requests])
            yield _requests(case, [_history(one, name, 2) for one in case.requests])
    for one in fields(SamplingParams):
        if one.name in _KEPT or one.name not in _changed_fields(case):
            continue
        neutral: dict[str, Any] = {one.name: one.default}
        yield _requests(
            case, [replace(it, params=replace(it.params, **neutral)) for it in case.requests]
        )


def _history(request: Request, name: str, part: int) -> Request:
    """Return the request without a history, or with its last 1/part."""
    ids: tuple[int, ...] = getattr(request, name)
    shorter: dict[str, Any] = {name: ids[-(len(ids) // part) :] if part and len(ids) > 1 else ()}
    return replace(request, **shorter)


def _changed_fields(case: Case) -> set[str]:
    return {
        one.name
        for one in fields(SamplingParams)
        for request in case.requests
        if getattr(request.params, one.name) != one.default
    }


def _requests(case: Case, requests: list[Request]) -> Case:
    return replace(case, requests=tuple(requests))


def _plainer_logits(case: Case) -> Iterator[Case]:
    """Flatten backgrounds, then leave out ids with values of their own."""
    rows = case.logits.rows
    if any(row.shape != "constant" or row.recorded is not None for row in rows):
        flat: dict[str, Any] = {"shape": "constant", "seed": 0, "scale": 1.0, "recorded": None}
        yield _recipes(case, [replace(row, **flat) for row in rows])
    if len(rows) <= _FEW_ROWS:
        for place, row in enumerate(rows):
            for kept in _fewer_ids(len(row.ids)):
                plainer = replace(
                    row,
                    ids=tuple(row.ids[at] for at in kept),
                    values=tuple(row.values[at] for at in kept),
                )
                yield _recipes(case, [*rows[:place], plainer, *rows[place + 1 :]])


def _fewer_ids(count: int) -> Iterator[list[int]]:
    everything = list(range(count))
    if count > 1:
        yield everything[: count // 2]
        yield everything[count // 2 :]
    if 0 < count <= _FEW_IDS:
        for gone in everything:
            yield [at for at in everything if at != gone]


def _recipes(case: Case, rows: list[RowRecipe]) -> Case:
    return replace(case, logits=replace(case.logits, rows=tuple(rows)))


def _smaller_vocabulary(case: Case) -> Iterator[Case]:
    """Cut the vocabulary behind the last id that anything names."""
    vocab = case.logits.vocab
    named = max((token for row in case.logits.rows for token in row.ids), default=0) + 1
    for smaller in dict.fromkeys((named, named + 1, vocab // 2, vocab - 1)):
        if not named <= smaller < vocab:
            continue
        try:
            for request in case.requests:
                request.verify(smaller)
        except ValueError:
            continue
        yield replace(case, logits=LogitsRecipe(smaller, case.logits.rows))

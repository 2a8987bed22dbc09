"""Checks as tests of your own: `@parametrize_with_checks(backend)`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from refsampler.clauses import get
from refsampler.conformance.gate import ClauseCheck, ClauseFailed, Wanted, clause_names
from refsampler.conformance.results import NOT_SELECTED

__all__ = ["parametrize_with_checks"]

_unnamed = itertools.count(1)


def parametrize_with_checks(
    backend: Any, *, clause: str = "*", expected_failures: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrise a test over the clauses of the contract: ``def test_sampler(check): check()``.

    The backend is asked once, when the first check is called, and the evidence is split over all
    clauses as in `refsampler check`. A clause that does not apply is skipped with its reason. An
    object is asked in this process, a name in a process of its own unless it is a built-in one.

    Args:
        backend: a subject, or what `refsampler check` takes as its name.
        clause: shell pattern of clause ids, as `top-p.*`.
        expected_failures: clause id -> reason. These tests are strict xfails: one that passes, is
            not decided or cannot run fails the session.

    Raises:
        UnknownClauseError: no clause has an id that is expected to fail.
        ValueError: no clause matches the pattern, an expected failure lies outside it, or its
            reason is empty.

    """
    expected = dict(expected_failures or {})
    names = clause_names(clause)
    if not names:
        raise ValueError(f"clause = {clause!r}: no clause matches")
    for name, reason in expected.items():
        if get(name).id not in names:
            raise ValueError(f"expected_failures: {name!r} is not selected by clause = {clause!r}")
        if not reason.strip():
            raise ValueError(f"expected_failures[{name!r}] = {reason!r}: expected a reason")
    wanted = _wanted(backend, clause)
    return pytest.mark.parametrize(
        "check", [_parameter(wanted, name, expected.get(name)) for name in names]
    )


def _parameter(wanted: Wanted, name: str, reason: str | None) -> Any:
    marks: list[pytest.MarkDecorator] = []
    if name != NOT_SELECTED:
        marks.append(pytest.mark.clause(name))
    if reason is not None:
        # Only the broken clause was expected: a harness that broke is no expected failure.
        marks.append(pytest.mark.xfail(reason=reason, raises=ClauseFailed, strict=True))
    return pytest.param(ClauseCheck(wanted, name), id=name, marks=marks)


def _wanted(backend: Any, glob: str) -> Wanted:
    if isinstance(backend, str):
        return Wanted(backend, glob, own_expectations=True)
    place = _place(backend)
    if place:
        return Wanted(place, glob, backend, own_expectations=True)
    # Every process of a session collects the same files, so it counts alike.
    label = f"{backend.capabilities.name}-{next(_unnamed)}"
    return Wanted(label, glob, backend, named=False, own_expectations=True)


def _place(backend: Any) -> str:
    """Return `module:attribute` of an object that stands at the top of a module, if one does.

    The module of its class comes first; test files, which import it under any name, do not count.
    """
    own = type(backend).__module__
    for name in [own, *sys.modules]:
        if name.rpartition(".")[2].startswith(("__main__", "conftest", "test_")):
            continue
        held = dict(getattr(sys.modules.get(name), "__dict__", {}))
        for key, value in held.items():
            if value is backend:
                return f"{name}:{key}"
    return ""

"""Registry: every fault, from the modules of the kinds that exist."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from refsampler.conformance.faults.base import Fault, Kind, Shelf

__all__ = ["all_faults", "fault", "select"]


@cache
def all_faults() -> tuple[Fault, ...]:
    """Return every fault, kind by kind.

    Raises:
        ValueError: two have one id.

    """
    shelves = [_shelf(kind) for kind in Kind]
    faults = tuple(one for shelf in shelves for one in shelf)
    ids = [one.id for one in faults]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise ValueError(f"ids = {', '.join(twice)}: two faults have one id")
    return faults


def fault(id: str) -> Fault:  # noqa: A002 - what it is
    """Return the fault of that id.

    Raises:
        LookupError: there is none.

    """
    found = next((one for one in all_faults() if one.id == id), None)
    if found is None:
        raise LookupError(f"no fault is called {id!r}")
    return found


def select(kinds: Iterable[str] = (), ids: Iterable[str] = ()) -> tuple[Fault, ...]:
    """Return the faults whose kind, or whose id, matches a pattern; everything without patterns."""
    kinds, ids = tuple(kinds), tuple(ids)
    return tuple(
        one
        for one in all_faults()
        if (not kinds and not ids)
        or any(fnmatchcase(one.kind, glob) for glob in kinds)
        or any(fnmatchcase(one.id, glob) for glob in ids)
    )


def _shelf(kind: Kind) -> tuple[Fault, ...]:
    name = f"{__package__}.{kind.module}"
    if find_spec(name) is None:
        return ()
    shelf = import_module(name).FAULTS
    assert isinstance(shelf, Shelf)
    return shelf.faults

"""Closing: an engine's session ends with what was asked in it, also where the engine raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol, TypeVar

__all__ = ["closed_after", "quietly"]


class _Closes(Protocol):
    def close(self) -> None:
        """End it."""


_Open = TypeVar("_Open", bound=_Closes)


def quietly() -> AbstractContextManager[None]:
    """Tell nothing of what an engine raises while it closes: what was asked in the session counts."""
    return suppress(Exception, SystemExit)


@contextmanager
def closed_after(
    session: _Open, telling: Callable[[], AbstractContextManager[None]]
) -> Iterator[_Open]:
    """Give the session, and close it.

    Args:
        session: open.
        telling: turns what the engine raises while it closes into an error of ours.  After an error in
            the session it is told nothing: the first one counts.

    """
    try:
        yield session
    except (Exception, SystemExit):
        # an interrupt does not wait for an engine that may hang
        with quietly():
            session.close()
        raise
    with telling():
        session.close()

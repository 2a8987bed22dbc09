"""Closing: an engine's session ends with what was asked in it, also where the engine raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

from refsampler.backends.protocol import Session

__all__ = ["closed_after"]

_Open = TypeVar("_Open", bound=Session)


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
    except BaseException:
        with suppress(Exception, SystemExit):
            session.close()
        raise
    with telling():
        session.close()

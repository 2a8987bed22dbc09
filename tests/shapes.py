"""Shapes and types of the reference, checked at run time in the tests.

A check costs several times the call.  So each test has its first calls checked and makes the rest
without: those of a loop over a suite show nothing that the first ones did not.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeDecorHintPep673Exception

CHECKED: Final = 2000
"""Checks that one test makes at most: of arguments and of results, hence of 1,000 calls."""

_made = itertools.count()


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have beartype check a function, unless it returns Self, which means nothing outside a class."""
    try:
        checking = beartype(function)
    except BeartypeDecorHintPep673Exception:
        return function

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(_made) == CHECKED:
            switch(on=False)
        return checking(*args, **kwargs)

    return counted


def switch(*, on: bool) -> None:
    """Check shapes from here on, or not."""
    global _made  # noqa: PLW0603 - as global as the switch itself
    _made = itertools.count()
    jaxtyping.config.update("jaxtyping_disable", not on)


@contextmanager
def unchecked() -> Iterator[None]:
    """Check no shapes: wrong subjects return some, which it is for the suite to find."""
    switch(on=False)
    try:
        yield
    finally:
        switch(on=True)

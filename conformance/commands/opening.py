"""How the commands open a backend: here or in a child, with the limits of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from refsampler.backends.registry import BackendBroken, BackendNotFound
from refsampler.conformance.isolation import (
    MEMORY_BYTES,
    TIMEOUT_S,
    GuardedSubject,
    Limits,
    guarded,
)
from refsampler.conformance.verdict import ExitCode

__all__ = ["isolation_options", "limits_of", "opened"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_isolate = click.option(
    "--isolate/--in-process",
    default=None,
    help="Ask the backend in a process of its own, where a crash, a hang or too much memory costs one"
    " case. The default is --isolate, but --in-process for what ships with refsampler; cases that may"
    " bring a process down are always asked in a process of their own.",
)
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds that one call may take in a process of its own.",
)
_memory = click.option(
    "--memory",
    "memory_gib",
    type=click.FloatRange(min=0, min_open=True),
    default=MEMORY_BYTES / 2**30,
    show_default=True,
    help="GiB that this process may use.",
)


def isolation_options(command: _Command) -> _Command:
    """Give a command the options `isolate`, `timeout_s` and `memory_gib`."""
    return _isolate(_timeout(_memory(command)))


def limits_of(timeout_s: float, memory_gib: float) -> Limits:
    """Return what the options allow a call."""
    return Limits(timeout_s, int(memory_gib * 2**30))


@contextmanager
def opened(
    spec: str, run_seed: int, isolate: bool | None, timeout_s: float, memory_gib: float
) -> Iterator[GuardedSubject]:
    """Open the backend, or end the command with status 4."""
    try:
        limits = limits_of(timeout_s, memory_gib)
        with guarded(spec, run_seed, isolate=isolate, limits=limits) as subject:
            yield subject
    except (BackendNotFound, BackendBroken) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(ExitCode.HARNESS)

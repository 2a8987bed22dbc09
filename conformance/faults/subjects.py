"""Every fault as a backend: `refsampler check refsampler.conformance.faults.subjects:B114`."""

from __future__ import annotations

from refsampler.backends.protocol import Subject
from refsampler.conformance.faults.registry import fault

__all__: list[str] = []


def __getattr__(name: str) -> Subject:
    """Make the fault of that id."""
    try:
        found = fault(name)
    except LookupError as error:
        raise AttributeError(str(error)) from error
    if found.make is None:
        raise AttributeError(f"{name}: {found.state}: {found.reason}")
    return found.make()

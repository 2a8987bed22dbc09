"""A right verifier with the hooks that faults override.

It is the native one, so that a fault is the one line in which it differs.
"""

from __future__ import annotations

from dataclasses import replace

from refsampler.backends.native_verifier import NativeVerifier

__all__ = ["RightVerifier"]


class RightVerifier(NativeVerifier):
    """The hooks are `draft`, `positions`, `laws`, `noise`, `accepted` and `recovered`."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, name="right")

"""Limits of a subject's process: what the kernel enforces, and what the parent has to watch.

Memory is judged by the parent, which reads what the child has resident or swapped (`RssAnon`,
`RssShmem`, `VmSwap`; pages of mapped files such as weights are the kernel's to drop).  Limits of
the kernel would judge wrongly: `RLIMIT_AS` and `RLIMIT_DATA` count what is reserved, and idle
threads, allocator arenas and GPU drivers reserve far more than they use.  Measured with torch
2.13: 0.22 GiB resident, 0.61 GiB of address space, and 2.1 GiB of it once 64 idle threads exist.
`RLIMIT_DATA` is set all the same, at twice the growth allowed and never for a GPU subject: it
stops what would fill the machine between two looks.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["CAN_LIMIT_MEMORY", "bound_allocations", "forbid_core_dumps", "memory_in_use"]

CAN_LIMIT_MEMORY = sys.platform == "linux"
"""Whether `memory_in_use` works here; elsewhere memory is not limited."""

_COUNTED = ("RssAnon", "RssShmem", "VmSwap")


def memory_in_use(pid: int) -> int:
    """Return the bytes that a process keeps in memory or swap; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return 0
    return sum(_field(status, name) for name in _COUNTED)


def bound_allocations(growth: int) -> None:
    """Let this process's writable memory grow by twice `growth` bytes from here on, no further."""
    if not CAN_LIMIT_MEMORY:
        return
    now = _field(Path("/proc/self/status").read_text("utf-8"), "VmData")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = now + 2 * growth
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def forbid_core_dumps() -> None:
    """Die without a core file: a crash that is expected should not cost gigabytes of disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _field(status: str, name: str) -> int:
    """Return a field of a /proc status page in bytes; 0 if it is absent, as in a zombie."""
    _, found, rest = status.partition(f"\n{name}:")
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else 0

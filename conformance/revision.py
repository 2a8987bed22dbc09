"""Which commit of this suite runs."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import refsampler

__all__ = ["revision"]


@cache
def revision() -> str:
    """Return the commit of this checkout, marked if it was edited; empty if it is none.

    An installed package inside somebody's repository is no checkout: that commit is not of the suite.
    """
    root = Path(refsampler.__file__).parents[1]
    if not (root / ".git").exists():
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        asked = subprocess.run(describe, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""

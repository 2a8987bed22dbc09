"""Tables about the evidence, kept as JSON and as markdown that say how they came to be."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import scipy

from refsampler import __version__

__all__ = ["Made", "made_by", "table_head", "table_lines", "write_table"]


@dataclass(frozen=True, slots=True)
class Made:
    """How a table came to be."""

    command: str
    date: str
    refsampler: str
    python: str
    numpy: str
    scipy: str


def made_by(command: str) -> Made:
    """Say how a table comes to be, now."""
    return Made(
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        refsampler=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        scipy=scipy.__version__,
    )


def write_table(out: Path, stem: str, document: object, text: str) -> None:
    """Write a document as JSON and its text as markdown."""
    out.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    (out / f"{stem}.json").write_bytes(data + b"\n")
    (out / f"{stem}.md").write_text(text, encoding="utf-8")


def table_head(title: str, made: Made) -> list[str]:
    """Return the lines above a table."""
    return [
        f"# {title}",
        "",
        (
            f"`{made.command}` on {made.date}: refsampler {made.refsampler}, Python {made.python}, "
            f"numpy {made.numpy}, scipy {made.scipy}."
        ),
        "",
    ]


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a markdown table and an empty line."""
    lines = (columns, ["---"] * len(columns), *rows)
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]

"""``refsampler audit --fuzz``: how many faults of the bank fuzzing finds by itself."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from refsampler.conformance.faults.base import Fault
from refsampler.conformance.fuzz.hunt import Hunted, hunt, markdown, read_matrix, share
from refsampler.conformance.revision import revision

__all__ = ["ENOUGH", "print_hunt"]

ENOUGH: Final = 0.7
"""Share of the faults that fuzzing has to find."""

_SHRINK_S: Final = 8.0


def print_hunt(
    matrix: Path,
    faults: tuple[Fault, ...],
    limit_s: float,
    run_seed: int,
    workers: int,
    out: Path | None,
) -> None:
    """Hunt, tell as it goes, and write the page; exit 1 if too few are found.

    Args:
        matrix: JSON of an audit, which says what exact checks catch.
        faults: of which those are hunted that exact checks catch.
        limit_s: seconds a fault.
        run_seed: of the batches.
        workers: processes.
        out: folder of the page; None is reports/fuzz.

    """
    known = read_matrix(matrix)
    chosen = {one.id for one in faults}
    hunted = tuple(one for one in known if one in chosen)
    folder = Path("reports") / "fuzz" if out is None else out
    if not hunted:
        raise click.UsageError("no fault is selected that exact checks catch")
    started = datetime.now(UTC)
    found = hunt(hunted, limit_s, run_seed, workers=workers, shrink_s=_SHRINK_S, tell=_tell)
    about = {
        "date": f"{started:%Y-%m-%d %H:%M} UTC, {(datetime.now(UTC) - started).seconds} s in all",
        "revision": revision(),
        "machine": f"{platform.system()} {platform.machine()}, {workers} processes",
        "command": f"refsampler audit --fuzz --limit {limit_s:g} --seed {run_seed}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    page = markdown(found, about)
    (folder / "hunt.md").write_text(page, encoding="utf-8")
    document = {"about": about, "found": found}
    (folder / "hunt.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
    click.echo(page)
    if share(found) < ENOUGH:
        raise SystemExit(1)


def _tell(one: Hunted) -> None:
    words = f"{one.clause} by {one.check}" if one.clause else "missed"
    click.echo(f"{one.id}: {words} {one.seconds:.1f} s", err=True)

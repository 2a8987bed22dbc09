"""``refsampler scoreboard``: reports of several engines side by side."""

from __future__ import annotations

from pathlib import Path

import click

from refsampler.conformance.scoreboard import Entry, read_entry, verdict_page
from refsampler.conformance.scoreboard import scoreboard as page

__all__ = ["scoreboard"]

_PAGE = "scoreboard.md"


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the pages: scoreboard.md, and one with the verdicts of each engine.",
)
def scoreboard(folders: tuple[Path, ...], into: Path) -> None:
    """Put the reports in FOLDERS, each written by `check --report`, on one page.

    The clauses of one group share a column; versions, dates, and how far the declared law of each
    engine is from that of vLLM stand beside them.
    """
    entries: dict[str, Entry] = {}
    for folder in folders:
        try:
            entry = read_entry(folder)
        except (OSError, ValueError) as error:
            raise click.BadParameter(str(error), param_hint="FOLDERS") from error
        entries[entry.header.backend.replace(".", "-")] = entry
    into.mkdir(parents=True, exist_ok=True)
    for name, entry in entries.items():
        (into / f"{name}.md").write_text(verdict_page(entry), encoding="utf-8")
    (into / _PAGE).write_text(page(entries), encoding="utf-8")
    click.echo(f"{len(entries)} engines; {into / _PAGE}")

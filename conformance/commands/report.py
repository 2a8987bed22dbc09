"""``refsampler report``: the page of a stored run, from its JSONL alone."""

from __future__ import annotations

from pathlib import Path

import click

from refsampler.conformance.reporting.html import can_plot, write_html
from refsampler.conformance.reporting.index import SameNameError, write_index
from refsampler.conformance.reporting.stored import NoReportError, read_run

__all__ = ["report"]


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--index",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the pages instead, called after the run folders, with an index of them"
    " (index.html, README.md) and a map of clause by run.",
)
def report(folders: tuple[Path, ...], index: Path | None) -> None:
    """Write report.html into each of FOLDERS, from the report.jsonl that lies there.

    Nothing is sampled and no backend is opened.  A file note.txt beside the report is shown in the
    page.  Plots need the extra `report`; without it the page is written all the same.
    """
    try:
        runs = [read_run(folder) for folder in folders]
        paths = write_index(runs, index) if index is not None else tuple(map(write_html, runs))
    except (NoReportError, SameNameError) as error:
        raise click.BadParameter(str(error), param_hint="FOLDERS") from error
    for path in paths:
        click.echo(f"{path}: {path.stat().st_size / 1024:,.0f} KiB")
    if not can_plot():
        click.echo("without plots: pip install 'refsampler[report]'", err=True)

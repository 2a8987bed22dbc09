"""``refsampler report``: the page of a stored run, from its JSONL alone."""

from __future__ import annotations

from pathlib import Path

import click

from refsampler.conformance.reporting.html import can_plot, write_html
from refsampler.conformance.reporting.index import write_index
from refsampler.conformance.reporting.stored import NoReportError, read_run

__all__ = ["report"]


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--index",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for a page of all of them: README.md, a map of clause by backend.",
)
def report(folders: tuple[Path, ...], index: Path | None) -> None:
    """Write report.html into each of FOLDERS, from the report.jsonl that lies there.

    Nothing is sampled and no backend is opened.  Plots need the extra `report`; without it the page
    is written all the same.
    """
    runs = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except NoReportError as error:
            raise click.BadParameter(str(error), param_hint="FOLDERS") from error
        path = write_html(runs[-1])
        click.echo(f"{path}: {path.stat().st_size / 1024:,.0f} KiB")
    if index is not None:
        for path in write_index(runs, index):
            click.echo(str(path))
    if not can_plot():
        click.echo("without plots: pip install 'refsampler[report]'", err=True)

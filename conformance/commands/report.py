"""``refsampler report``: the page of a stored run, from its JSONL alone."""

from __future__ import annotations

from pathlib import Path

import click

from refsampler.conformance.reporting.html import can_plot, write_html
from refsampler.conformance.reporting.stored import NoReportError, read_run

__all__ = ["report"]


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
def report(folders: tuple[Path, ...]) -> None:
    """Write report.html into each of FOLDERS, from the report.jsonl that lies there.

    Nothing is sampled and no backend is opened.  Plots need the extra `report`; without it the page
    is written all the same.
    """
    for folder in folders:
        try:
            path = write_html(read_run(folder))
        except NoReportError as error:
            raise click.BadParameter(str(error), param_hint="FOLDERS") from error
        click.echo(f"{path}: {path.stat().st_size / 1024:,.0f} KiB")
    if not can_plot():
        click.echo("without plots: pip install 'refsampler[report]'", err=True)

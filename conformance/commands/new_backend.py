"""``refsampler new-backend``: an adapter, a test and a CI workflow that pass as they are."""

from __future__ import annotations

from pathlib import Path

import click

from refsampler.conformance.scaffold import LEVELS, new_files

__all__ = ["new_backend"]


@click.command("new-backend")
@click.argument("name")
@click.option(
    "--level",
    type=click.Choice([str(level) for level in LEVELS]),
    default="1",
    show_default=True,
    help="Of the adapter: 1 kernel, 2 batch sampler, 3 engine.",
)
@click.option(
    "--install",
    "requirement",
    default="refsampler",
    show_default=True,
    help="What pip installs in the workflow: git+https://... as long as there is no release.",
)
def new_backend(name: str, level: str, requirement: str) -> None:
    """Write the adapter of a backend called NAME, its test and a CI workflow, into this folder.

    Nothing that exists is overwritten.
    """
    try:
        files = new_files(name, int(level), requirement)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    there = [str(one.path) for one in files if one.path.exists()]
    if there:
        raise click.UsageError(f"nothing is overwritten: {', '.join(there)} exists")
    for one in files:
        one.path.parent.mkdir(parents=True, exist_ok=True)
        Path(one.path).write_text(one.text, encoding="utf-8")
        click.echo(f"wrote {one.path}")
    click.echo(f"next: refsampler smoke {files[0].path.stem}:backend")

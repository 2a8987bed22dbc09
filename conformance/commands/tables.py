"""Tables on standard output: rich on a terminal, aligned lines elsewhere, or markdown."""

import sys
from collections.abc import Sequence

import click

__all__ = ["echo_table"]


def echo_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = False
) -> None:
    """Print rows under column names; every cell is text."""
    if markdown:
        lines = [columns, ["---"] * len(columns), *rows]
        for line in lines:
            click.echo("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |")
    elif sys.stdout.isatty():
        _print_rich(columns, rows)
    else:
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        for line in (columns, *rows):
            cells = zip(line, widths, strict=True)
            click.echo("  ".join(cell.ljust(width) for cell, width in cells).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    folded = [Column(name, overflow="fold") for name in columns]
    table = Table(*folded, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)

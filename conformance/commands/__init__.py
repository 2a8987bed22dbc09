"""The commands of the ``refsampler`` program, a file for each family, and the option they share."""

from typing import Literal

import click

__all__ = ["Format", "format_option"]

Format = Literal["pretty", "json", "markdown"]

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["pretty", "json", "markdown"]),
    default="pretty",
    show_default=True,
    help="pretty is a table on a terminal and plain lines elsewhere.",
)

"""``refsampler schema``: the JSON schema of everything that a program may read."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

__all__ = ["NAMES", "schema", "schema_of"]

NAMES: Final = (
    "report",
    "check",
    "backends",
    "clauses",
    "explain",
    "law",
    "trace",
    "compare-runs",
    "compare-backends",
)
"""`report` is a line of report.jsonl, the others are what commands give with --format json."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of one output, by its name in `NAMES`."""
    found: dict[str, Any] = msgspec.json.schema(_type_of(name))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **found}


def _type_of(name: str) -> Any:
    from refsampler.clauses import Contract
    from refsampler.conformance.commands import (
        backends,
        compare,
        compare_backends,
        contract,
        law,
        trace,
    )
    from refsampler.conformance.records import Record
    from refsampler.conformance.reporting.records import Checked

    types: dict[str, Any] = {
        "report": Record,
        "check": Checked,
        "backends": tuple[backends.Listed, ...],
        "clauses": Contract,
        "explain": contract.Explained,
        "law": law.RowLaw,
        "trace": trace.Traced,
        "compare-runs": compare.Comparison,
        "compare-backends": compare_backends.RowsSideBySide,
    }
    return types[name]


@click.command()
@click.argument("name", type=click.Choice(NAMES))
def schema(name: str) -> None:
    """Print the JSON schema of an output: a line of a report, or a command's --format json."""
    click.echo(msgspec.json.format(msgspec.json.encode(schema_of(name)), indent=1))

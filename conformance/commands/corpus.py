"""``refsampler corpus``: a finding becomes a case that every later check asks first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from refsampler.clauses import ClauseId
from refsampler.conformance.case import decode_case
from refsampler.conformance.commands.replay import recorded
from refsampler.conformance.corpus import encode_entry, entry_of, file_name
from refsampler.conformance.fuzz.channels import CHANNELS
from refsampler.conformance.records import CaseRecord, FindingRecord

__all__ = ["corpus"]

_HERE: Final = Path(__file__).parents[1] / "corpus"


@click.command()
@click.argument("case")
@click.option("--about", required=True, help="What was wrong with whom, in a sentence.")
@click.option(
    "--clause", help="That the case is about; the one that it was found to break without."
)
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Folder of the report.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=_HERE,
    help="Folder of the corpus; without it the one that `refsampler check` reads.",
)
def corpus(case: str, about: str, clause: str | None, folder: Path | None, into: Path) -> None:
    """Keep CASE, the id of a finding of `refsampler fuzz`, in the regression corpus.

    Every `refsampler check` asks the corpus first. The smallest case that fuzzing printed is the one to
    keep; a right backend has to pass it, so check one before the file is committed.
    """
    _, record = recorded(folder, case)
    if not isinstance(record, CaseRecord):
        raise click.BadParameter(f"no report has a case {case!r}", param_hint="CASE")
    if record.check not in {one.check.name for one in CHANNELS}:
        raise click.BadParameter(f"{record.check} judges no fuzzed cases", param_hint="CASE")
    if not record.findings:
        raise click.BadParameter(f"case {record.id} showed nothing", param_hint="CASE")
    explained = list(_explained(record.findings))
    chosen = explained[0] if clause is None else clause
    if chosen not in explained:
        words = f"{chosen} is refused: allowed is one of {', '.join(explained)}"
        raise click.BadParameter(words, param_hint="--clause")
    entry = entry_of(record.check, ClauseId(chosen), about, decode_case(bytes(record.case)))
    into.mkdir(parents=True, exist_ok=True)
    where = into / file_name(entry)
    where.write_bytes(encode_entry(entry))
    click.echo(where)


def _explained(findings: tuple[FindingRecord, ...]) -> dict[str, None]:
    """Return the clauses each of which would explain a finding, the first one first."""
    return dict.fromkeys(clause for one in findings for clause in (one.clause, *one.candidates))

"""``refsampler compare``: two stored runs, or two backends on rows of logits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from refsampler.conformance.case import Case
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.compare_backends import (
    RowsSideBySide,
    SideBySide,
    side_by_side,
)
from refsampler.conformance.commands.compare_rows import rows_of
from refsampler.conformance.commands.law import CaseParam
from refsampler.conformance.commands.options import run_seed_of, seed_option
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.designed.build import batch, request
from refsampler.conformance.logits import RowRecipe
from refsampler.conformance.reporting.changes import (
    Change,
    Kind,
    LawPair,
    changes,
    differences,
    law_pairs,
)
from refsampler.conformance.reporting.distance import Interval
from refsampler.conformance.reporting.stored import REPORT, NoReportError, StoredRun, read_run
from refsampler.conformance.verdict import ExitCode

__all__ = ["Comparison", "compare"]


class Comparison(msgspec.Struct, frozen=True):
    """Two stored runs, as `--format json` gives them."""

    differ: tuple[str, ...]
    changes: tuple[Change, ...]
    laws: tuple[LawPair, ...]


@click.command()
@click.argument("first")
@click.argument("second")
@click.option("--vocab", type=click.IntRange(2), default=4096, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, min_open=True), default=1.0)
@click.option("--top-k", type=click.IntRange(0), default=0, help="0 keeps all.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0)
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0)
@click.option("--case", type=CaseParam(), help="File with a case of one row, in place of these.")
@click.option(
    "--logits",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Your own rows instead: safetensors of tensors [rows, vocab], or .npy; the first 16 rows.",
)
@click.option(
    "--row", "rows", type=click.IntRange(0), multiple=True, help="Of --logits: only these."
)
@click.option(
    "--draws", type=click.IntRange(1), default=200_000, show_default=True, help="Of each row."
)
@seed_option
@format_option
def compare(
    first: str,
    second: str,
    vocab: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    case: Case | None,
    logits: Path | None,
    rows: tuple[int, ...],
    draws: int,
    seed: int | None,
    form: Format,
) -> None:
    """Compare FIRST with SECOND: two folders with reports, or two backends.

    Of two runs: new failures, what was fixed, effects that changed, and their laws judged again from
    the stored counts, which is exploratory. Exit status 1 if something fails newly.

    Of two backends: both draw one LLM-like row, or the rows of --logits; their distances from the
    exact law and from each other are shown with what would have been seen. Exit status 1 if a
    distance is surely not 0; wrongly so with probability 1e-6 for each kind of distance.
    """
    if _is_report(first) and _is_report(second):
        try:
            runs = read_run(Path(first)), read_run(Path(second))
        except NoReportError as error:
            raise click.BadParameter(str(error)) from error
        sys.exit(_show_runs(*runs, form))
    if _is_report(first) or _is_report(second):
        raise click.UsageError("compare two folders with reports, or two backends")
    if case is not None and logits is not None:
        raise click.UsageError("--case and --logits are two ways to name rows: one is allowed")
    if rows and logits is None:
        raise click.UsageError("--row chooses among the rows of --logits")
    asked = request(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    named = (first, second), draws, run_seed_of(seed)
    if logits is not None:
        with rows_of(logits, asked, rows) as cases:
            sys.exit(_compare(cases, *named, form))
    recipe = RowRecipe(shape="zipf", seed=11, scale=0.75)
    row = batch(vocab, [(recipe, asked)], "draw.law") if case is None else case
    if len(row.requests) != 1 or row.requests[0].params.seed is not None:
        raise click.BadParameter("allowed is a case of one row without a seed", param_hint="--case")
    sys.exit(_compare((row,), *named, form))


def _compare(
    cases: Sequence[Case], specs: tuple[str, str], draws: int, run_seed: int, form: Format
) -> int:
    found = side_by_side(specs, cases, draws, run_seed)
    _show_backends(found, form)
    if not found.rows:
        return ExitCode.NOTHING_RAN
    apart = any(one.differs for one in found.rows)
    return ExitCode.DOES_NOT if apart else ExitCode.CONFORMS


def _is_report(word: str) -> bool:
    return (Path(word) / REPORT).is_file() or Path(word).is_file()


def _show_runs(first: StoredRun, second: StoredRun, form: Format) -> int:
    found = changes(first, second)
    pairs = tuple(law_pairs(first, second))
    code = ExitCode.DOES_NOT if any(_is_new(one) for one in found) else ExitCode.CONFORMS
    if form == "json":
        shown = Comparison(differences(first, second), found, pairs)
        click.echo(msgspec.json.encode(shown))
        return code
    for words in differences(first, second):
        click.echo(words)
    if found:
        rows = [(one.kind, one.clause, one.before, one.after) for one in found]
        echo_table(("change", "clause", "first", "second"), rows, markdown=form == "markdown")
    else:
        click.echo("every clause has the verdict that it had")
    if pairs:
        click.echo("\nEXPLORATORY: stored counts judged again; intervals of one look, descriptive")
        columns = ("row", "draws", "first TV", "second TV", "apart", "would show", "looks like")
        echo_table(columns, [_cells(one) for one in pairs], markdown=form == "markdown")
    return code


def _is_new(one: Change) -> bool:
    return one.kind is Kind.NEW_FAILURE


def _cells(one: LawPair) -> tuple[str, ...]:
    looks = [
        f"{name}: {words}"
        for name, words in zip(("first", "second"), one.shapes, strict=True)
        if words
    ]
    return (
        one.words,
        f"{one.draws[0]:,} / {one.draws[1]:,}",
        _words(one.first),
        _words(one.second),
        _words(one.apart),
        f"{one.apart.detectable:.2g}",
        "; ".join(looks),
    )


def _words(one: Interval) -> str:
    return f"{one.observed:.2g} [{one.low:.2g}, {one.high:.2g}]"


def _show_backends(found: RowsSideBySide, form: Format) -> None:
    if form == "json":
        click.echo(msgspec.json.encode(found))
        return
    click.echo(f"{found.draws:,} draws of each row from each backend, run seed {found.run_seed}")
    for one in found.rows:
        click.echo(f"\n{one.row}{': ' if one.row else ''}{one.words}")
        _show_row(found.names, one, markdown=form == "markdown")
    if found.without_law:
        click.echo(f"left out, nothing can be drawn from them: {', '.join(found.without_law)}")
    if found.rows and not any(one.differs for one in found.rows):
        click.echo("no distance was seen; one of the sizes on the right would have been")


def _show_row(names: tuple[str, str], row: SideBySide, *, markdown: bool) -> None:
    named: Sequence[tuple[str, Interval]] = (
        (f"{names[0]} from the exact law", row.first),
        (f"{names[1]} from the exact law", row.second),
        ("from each other", row.apart),
    )
    cells = [
        (name, f"{one.observed:.4f}", _range(one), f"{one.detectable:.4f}") for name, one in named
    ]
    columns = ("total variation", "observed", "interval, 1 - 1e-6 an end", "would have shown from")
    echo_table(columns, cells, markdown=markdown)
    for name, shape, outside in zip(names, row.shapes, row.outside, strict=True):
        if outside:
            click.echo(f"{name}: {outside} draws that no right backend gives")
        if shape:
            click.echo(f"{name}: {shape} (a description, fitted after looking)")


def _range(one: Interval) -> str:
    return f"[{one.low:.4f}, {one.high:.4f}]"

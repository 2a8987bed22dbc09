"""``refsampler clauses`` and ``refsampler explain``: read the contract and see what checks it."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import click
import msgspec

from refsampler.clauses import Clause, ClauseId, Level, UnknownClauseError, get, load, select
from refsampler.conformance.commands import Format, format_option

__all__ = ["Explained", "clauses", "explain"]

_OWNERS = {1: "1 (filter and draw)", 2: "2 (batch sampler)", 3: "3 (engine)"}


@dataclass(frozen=True, slots=True)
class Explained:
    """A clause with the names of the checks that test it."""

    clause: Clause
    checks: tuple[str, ...]


class _ClauseParam(click.ParamType[Clause]):
    """A clause id on the command line."""

    name = "clause"

    def convert(
        self, value: str | Clause, param: click.Parameter | None, ctx: click.Context | None
    ) -> Clause:
        """Return the clause, or fail with the ids that come close."""
        if isinstance(value, Clause):
            return value
        try:
            return get(value)
        except UnknownClauseError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("glob", default="*")
@click.option("--coverage", is_flag=True, help="List the clauses that no check tests.")
@format_option
def clauses(glob: str, coverage: bool, form: Format) -> None:
    """List the clauses of the contract whose id matches GLOB, such as 'top-p.*' or 'seed'.

    With --coverage only those that no check tests are listed; the exit status is 1 if one of them
    is a MUST that needs nothing beyond a backend.
    """
    chosen = select(glob)
    if not chosen:
        raise click.BadParameter(f"no clause matches {glob!r}", param_hint="GLOB")
    shown = _untested(chosen) if coverage else chosen
    if form == "json":
        click.echo(msgspec.json.encode(replace(load(), clauses=shown)))
    elif form == "markdown":
        click.echo(_markdown(shown))
    elif sys.stdout.isatty():
        _print_table(shown)
    else:
        for clause in shown:
            why = (
                f"needs: {clause.needs} (not available yet). " if coverage and clause.needs else ""
            )
            click.echo(f"{clause.id} [{clause.level}, level {clause.owner}] {why}{clause.text}")
    if coverage:
        checked, waiting = len(chosen) - len(shown), sum(bool(clause.needs) for clause in shown)
        rest = f", {waiting} wait for what they need" if waiting else ""
        click.echo(f"{checked} of {len(chosen)} clauses have a check{rest}", err=True)
        if any(clause.level is Level.MUST and not clause.needs for clause in shown):
            sys.exit(1)


@click.command()
@click.argument("clause", type=_ClauseParam())
@format_option
def explain(clause: Clause, form: Format) -> None:
    """Say what CLAUSE demands, why, where vLLM departs from it, and which checks test it."""
    explained = Explained(clause, _checks_by_clause().get(clause.id, ()))
    if form == "json":
        click.echo(msgspec.json.encode(explained))
        return
    facts = _facts(explained)
    if form == "markdown":
        click.echo(f"## `{clause.id}`\n\n{clause.text}\n")
        click.echo("\n".join(f"* **{name}**: {value}" for name, value in facts.items()))
        return
    click.secho(clause.id, bold=True)
    for name, value in {"demands": clause.text, **facts}.items():
        click.echo(click.wrap_text(f"{name:<9}{value}", 100, "  ", " " * 11))


def _facts(explained: Explained) -> dict[str, str]:
    clause = explained.clause
    facts = {
        "level": str(clause.level),
        "owner": _OWNERS[clause.owner],
        "applies": f"to backends that declare {clause.capability}" if clause.capability else "",
        "needs": clause.needs,
        "reason": clause.reason,
        "since": f"contract {clause.since}",
        "departs": f"vLLM 0.25.1: {clause.departs}" if clause.departs else "",
        "checks": ", ".join(explained.checks) or "none",
    }
    return {name: value for name, value in facts.items() if value}


def _checks_by_clause() -> Mapping[ClauseId, tuple[str, ...]]:
    from refsampler.conformance.checks import all_checks

    found: dict[ClauseId, tuple[str, ...]] = {}
    for check in all_checks():
        for clause in check.clauses:
            found[clause] = (*found.get(clause, ()), check.name)
    return found


def _untested(chosen: Iterable[Clause]) -> tuple[Clause, ...]:
    tested = _checks_by_clause()
    return tuple(clause for clause in chosen if clause.id not in tested)


def _markdown(chosen: Sequence[Clause]) -> str:
    rows = ["| clause | level | owner | text |", "| --- | --- | --- | --- |"]
    for clause in chosen:
        text = clause.text.replace("|", r"\|")
        rows.append(f"| `{clause.id}` | {clause.level} | {clause.owner} | {text} |")
    return "\n".join(rows)


def _print_table(chosen: Sequence[Clause]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("clause", "level", "owner", "text", box=box.SIMPLE_HEAD, show_lines=False)
    for clause in chosen:
        table.add_row(clause.id, clause.level, str(clause.owner), Text(clause.text))
    Console().print(table)

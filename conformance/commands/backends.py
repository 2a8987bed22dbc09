"""``refsampler backends``: what can be tested on this machine, and why the rest cannot."""

from dataclasses import dataclass

import click
import msgspec

from refsampler.backends.dispatch import TABLE, Choice, Route, choose, here
from refsampler.backends.protocol import Capabilities, Subject
from refsampler.backends.registry import BackendBroken, BackendNotFound, names, resolve
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.verdict import ExitCode

__all__ = ["Listed", "SubjectParam", "backends"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A backend in the list; without capabilities there is a reason."""

    name: str
    capabilities: Capabilities | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """The table of paths, and what a plain batch gets on this machine."""

    table: tuple[Route, ...]
    here: Choice


class _CannotOpen(click.ClickException):
    """A backend that was named could not be opened."""

    exit_code = ExitCode.HARNESS


class SubjectParam(click.ParamType[Subject]):
    """A backend on the command line: a name or `module:attribute`.

    A name that nobody knows is a usage error; a backend that does not open exits with status 4.
    """

    name = "backend"

    def convert(
        self, value: str | Subject, param: click.Parameter | None, ctx: click.Context | None
    ) -> Subject:
        """Return the subject."""
        if not isinstance(value, str):
            return value
        try:
            return resolve(value)
        except BackendNotFound as error:
            self.fail(str(error), param, ctx)
        except BackendBroken as error:
            raise _CannotOpen(str(error)) from error


@click.command()
@click.option("--dispatch", is_flag=True, help="Only the table of which path is taken where.")
@format_option
def backends(dispatch: bool, form: Format) -> None:
    """List the backends: what each declares, or why it is not available here; then who runs where.

    Installed packages add theirs through the entry point group refsampler.backends; a command also
    takes module:attribute, with the module in the current folder.
    """
    if dispatch:
        _show_dispatch(form)
        return
    listed = tuple(_look_up(name) for name in names())
    if form == "json":
        click.echo(msgspec.json.encode(listed, order="deterministic"))
        return
    columns = ("name", "level", "version", "device", "semantics", "folds", "features")
    echo_table(columns, [_cells(one) for one in listed], markdown=form == "markdown")
    click.echo()
    _show_dispatch(form)


def _show_dispatch(form: Format) -> None:
    """Show the table and what a plain batch gets on this machine."""
    choice = choose(here())
    if form == "json":
        click.echo(msgspec.json.encode(_Dispatch(TABLE, choice), order="deterministic"))
        return
    columns = ("device", "path", "processed", "seeds", "fp64", "architecture", "reason")
    echo_table(columns, [_route_cells(one) for one in TABLE], markdown=form == "markdown")
    click.echo(f"\nThe first row that fits and is installed is taken; here: {choice.path}")
    if choice.notice:
        click.echo(choice.notice)


def _route_cells(route: Route) -> tuple[str, ...]:
    answers = {None: "", True: "yes", False: "no"}
    return (
        route.device,
        route.path,
        answers[route.processed],
        answers[route.seeds],
        answers[route.fp64],
        " ".join(route.architectures),
        route.reason,
    )


def _look_up(name: str) -> Listed:
    try:
        return Listed(name, resolve(name).capabilities)
    except (BackendNotFound, BackendBroken) as error:
        return Listed(name, reason=str(error))


def _cells(one: Listed) -> tuple[str, ...]:
    declared = one.capabilities
    if declared is None:
        return (one.name, "-", f"not available: {one.reason}", "", "", "", "")
    return (
        one.name,
        str(declared.level),
        declared.version,
        declared.device,
        declared.semantics.profile,
        " ".join(sorted(declared.folds)) if declared.level == 1 else "",
        " ".join(sorted(declared.features)),
    )

"""The ``refsampler`` command: the group and its registration; each command lives in ``commands/``."""

from importlib import import_module

import click

from refsampler import __version__

__all__ = ["main"]

# command -> module in refsampler.conformance.commands; `new-backend` is the function new_backend.
_COMMANDS = {
    "clauses": "contract",
    "explain": "contract",
    "backends": "backends",
    "law": "law",
    "trace": "trace",
    "smoke": "smoke",
    "plan": "plan",
    "check": "check",
    "fuzz": "fuzz",
    "bench": "bench",
    "replay": "replay",
    "corpus": "corpus",
    "merge": "merge",
    "scoreboard": "scoreboard",
    "report": "report",
    "compare": "compare",
    "schema": "schema",
    "new-backend": "new_backend",
    "power": "power",
    "audit": "audit",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is used, so that help and errors come at once."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called ``cmd_name``, or None."""
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"refsampler.conformance.commands.{_COMMANDS[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="refsampler")
def main() -> None:
    """Test LLM token samplers against a written contract."""

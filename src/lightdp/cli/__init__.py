"""`lightdp`: parse, call, print. One file per command, imported when the command is called.

Other packages add commands through the entry point group "lightdp.commands": each entry point is a dict like
`COMMANDS`, from the name of a command to where it is ("module:attribute") and one line of help. The attribute is a
`typer.Typer`, or a function with options annotated for typer; the module's `HELP` is then the text of its help page.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib import import_module
from types import FunctionType
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from lightdp.errors import LightDPError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "plan": ("lightdp.cli.plan:command", "How much noise clients must add, what it guarantees and what it costs."),
    "plan-mixed": ("lightdp.cli.mixed:command", "Noise for clients that differ in privacy budget and reliability."),
    "run": ("lightdp.cli.run:command", "Train a private model over many clients, and report what was guaranteed."),
    "report": ("lightdp.cli.report:command", "One page about one run, or about several laid over each other."),
}
_PIPE_WIDTH = "100"  # columns of help pages that no terminal shows


class _Commands(TyperGroup):
    """A group whose help page needs the table only; a command is imported when it is called."""

    def list_commands(self, _: click.Context) -> list[str]:
        self._add_others()
        return list(self.commands)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in self.commands:
            self._add_others()
        return self.commands.get(name)

    def _add_others(self) -> None:
        """Look for commands of other packages, which takes a while, only where ours do not suffice."""
        from importlib.metadata import entry_points  # noqa: PLC0415  so does this

        for point in entry_points(group="lightdp.commands"):
            self.commands.update({name: _Later(name, *entry) for name, entry in point.load().items()})


class _Later(TyperCommand):
    """A line of the table, which imports its command when that is called."""

    def __init__(self, name: str, place: str, line: str) -> None:
        super().__init__(name, help=line)
        self.place = place

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:  # noqa: ANN401  as that of the command
        module_name, _, attribute = self.place.partition(":")
        module = import_module(module_name)
        found = getattr(module, attribute)
        if isinstance(found, FunctionType):
            one = typer.Typer(rich_markup_mode="markdown", add_completion=False)
            one.command(help=module.HELP)(found)
            found = one
        command = typer.main.get_command(found)
        command.name = self.name
        return command.make_context(*arguments, **more)


app = _Commands(
    name="lightdp",
    help="Federated learning that stays private against its own server.",
    commands={name: _Later(name, *entry) for name, entry in COMMANDS.items()},
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
click.version_option(package_name="lightdp-fl", message="%(prog)s %(version)s", help="Print the version.")(app)


def main() -> None:
    """Run the command line; mistakes, and what the machine refuses, end in one line and exit code 2.

    Being asked to terminate is taken as Ctrl-C, so that it loses nothing either.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε prints ?
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        os.environ.setdefault("TERMINAL_WIDTH", _PIPE_WIDTH)  # typer reads it
    try:
        app(prog_name="lightdp")
    except (LightDPError, MemoryError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)

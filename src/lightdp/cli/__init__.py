"""The command `lightdp`: parse arguments, call the library, print.

Each command has a file of its own, which is imported when the command is called, so that `lightdp --help` stays quick
and a command needs only its own dependencies. All commands end in the same way:

- exit code 0: done; results are on standard output, progress is on standard error.
- exit code 1: `lightdp audit` found that something does not hold.
- exit code 2: wrong arguments, an exhausted budget, or a file or memory that the machine refuses; a message on standard
  error names the argument and its value.
- exit code 130: interrupted by Ctrl-C or SIGTERM.

Other packages add commands through the entry point group "lightdp.commands". Each entry point is a dict like
`COMMANDS`, from the name of a command to its place ("module:attribute") and one line of help. The attribute is a
`typer.Typer`, or a function with options annotated for typer; the module's `HELP` is then the text of its help page.

>>> sorted(COMMANDS)
['audit', 'identity', 'plan', 'plan-mixed', 'predict', 'report', 'run', 'state', 'ui']
>>> app.commands["plan"].help == COMMANDS["plan"][1]
True
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
    "predict": ("lightdp.cli.predict:command", "Use a model that a run on a table has kept, on the rows of another."),
    "report": ("lightdp.cli.report:command", "One page about one run, or about several laid over each other."),
    "ui": ("lightdp.cli.ui:command", "Plan with sliders and watch runs, on a page of this machine alone."),
    "audit": ("lightdp.cli.audit:command", "Measure what real uploads reveal, and check logs, nodes and claims."),
    "identity": ("lightdp.cli.identity:command", "Keys by which members of a federation know each other."),
    "state": ("lightdp.cli.state:command", "What a node has spent, in which runs, and what is left."),
}
_PIPE_WIDTH = "100"  # columns of help pages that no terminal shows


class _Commands(TyperGroup):
    """A group whose help page needs the table of commands only.

    Commands of other packages are looked up, which takes a while, only for that page and for an unknown name.
    """

    def list_commands(self, _: click.Context) -> list[str]:
        self._add_others()
        return list(self.commands)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in self.commands:
            self._add_others()
        return self.commands.get(name)

    def _add_others(self) -> None:
        from importlib.metadata import entry_points  # noqa: PLC0415  takes a while

        for point in entry_points(group="lightdp.commands"):
            try:
                found = {name: _Later(name, *entry) for name, entry in point.load().items() if name not in COMMANDS}
            except Exception as error:  # noqa: BLE001  a broken package must not take our commands with it
                typer.echo(f"warning: the commands of {point.value} were left out: {error!r}", err=True)
            else:
                self.commands.update(found)


class _Later(TyperCommand):
    """A command that is imported when it is called; until then, its name and its line of help.

    Args:
        name: what users type.
        place: "module:attribute".
        line: its help in the table of commands.
    """

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
        return _context(command, *arguments, **more)


def _context(
    command: click.Command,
    name: str | None,
    arguments: list[str],
    parent: click.Context | None = None,
    **more: Any,  # noqa: ANN401  as click's own
) -> click.Context:
    """That of a command; where several required options are missing, the error names all of them."""
    try:
        return command.make_context(name, list(arguments), parent, **more)
    except click.MissingParameter as error:
        given = command.make_context(name, list(arguments), parent, resilient_parsing=True, **more).params
        options = [each for each in command.params if isinstance(each, click.Option) and each.required]
        missing = [each.opts[0] for each in options if given[each.name] is None]
        if len(missing) < 2:
            raise
        raise click.UsageError(f"Missing options {', '.join(missing)}.", error.ctx) from None


app = _Commands(
    name="lightdp",
    help="Federated learning that stays private against its own server.",
    commands={name: _Later(name, *entry) for name, entry in COMMANDS.items()},
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
click.version_option(package_name="lightdp-fl", message="%(prog)s %(version)s", help="Print the version.")(app)


def main() -> None:
    """Run the command line with the arguments of the process, and exit.

    Errors of this package, and what the operating system refuses, end in one line and exit code 2; other exceptions
    are bugs and keep their traceback, without local variables, which may be keys. SIGTERM counts as Ctrl-C, so that a
    run that is asked to terminate keeps its log and checkpoint, too.
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

"""`lightdp`: parse, call, print. One file per command."""

from __future__ import annotations

import io
import signal
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from lightdp.cli import mixed, plan, report, run
from lightdp.errors import LightDPError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # it would print local variables, and some of ours are secret
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"lightdp {version('lightdp-fl')}")
        raise typer.Exit


@app.callback()
def lightdp(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Federated learning that stays private against its own server."""


app.command("plan", help=plan.HELP)(plan.command)
app.command("plan-mixed", help=mixed.HELP)(mixed.command)
app.command("run", help=run.HELP)(run.make())
app.command("report", help=report.HELP)(report.command)
for entry in entry_points(group="lightdp.commands"):
    for name, (target, _) in entry.load().items():
        module = import_module(target.partition(":")[0])
        if target.endswith(":app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, help=module.HELP)(module.command)


def main() -> None:
    """Run the command line; mistakes, and what the machine refuses, end in one line and exit code 2.

    Being asked to terminate is taken as Ctrl-C, so that it loses nothing either.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε prints ?
    try:
        app()
    except (LightDPError, MemoryError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)

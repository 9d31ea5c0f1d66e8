"""`lightdp audit`: measure what real uploads reveal, and check logs, nodes and claims.

What is audited decides which arguments are read: a run's log is the argument FILE, a node's state `--client`, a claim
of others `--claim`; without them the flags of `lightdp plan` describe the plan whose clients are run. The exit code is
0 if everything that is claimed holds, 1 if something does not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from lightdp import auditing, planning
from lightdp.auditing import Finding, Lies
from lightdp.cli import table
from lightdp.cli.options import GRAPH, command_line, with_settings
from lightdp.errors import ArgumentError
from lightdp.planning import Request
from lightdp.runlog import ContradictionError

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_PANEL = "Audit"
_LIVE = ("graph", "schedule", "lies", "play", "values", "confidence", "seed", "threads", "html")


def _audit(
    flags: dict[str, Any],
    *,
    file: Annotated[Path | None, typer.Argument(help="A run's log to audit instead of a plan.")] = None,
    client: Annotated[Path | None, typer.Option(help="A node's state file to audit instead of a plan.")] = None,
    claim: Annotated[str | None, typer.Option(help="A claim to audit instead of a plan: NAME=VALUE ...")] = None,
    graph: Annotated[str, typer.Option(help=GRAPH, rich_help_panel="Clients")] = "complete",
    schedule: Annotated[
        str, typer.Option(help="random, or a FILE.csv or FILE.json of used and late clients.", rich_help_panel=_PANEL)
    ] = "random",
    lies: Annotated[
        Lies,
        typer.Option(
            help="What the server lies about: nothing, the rotation of lies, the worst lies that a search finds, or "
            "models: one client in each round gets another one.",
            rich_help_panel=_PANEL,
        ),
    ] = "none",
    play: Annotated[
        int | None, typer.Option(help="Rounds of a random schedule, by default 5 or all.", rich_help_panel=_PANEL)
    ] = None,
    values: Annotated[
        float, typer.Option(help="Coordinates to measure, each an experiment.", rich_help_panel=_PANEL)
    ] = auditing.VALUES,
    confidence: Annotated[
        float, typer.Option(help="Probability that all statements are right.", rich_help_panel=_PANEL)
    ] = 0.99,
    seed: Annotated[int, typer.Option(help="Draws the schedule, or the search.", rich_help_panel=_PANEL)] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Cores that expand noise, by default all.", rich_help_panel=_PANEL)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to FILE.html, or its charts to .png or .svg.", rich_help_panel=_PANEL),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Audit what the arguments name, print what was found, exit with 1 if it does not hold."""
    _refuse_others({"FILE": file, "--client": client, "--claim": claim}, flags)
    save = None if html is None else _page(html)
    found: Finding
    if file is not None:
        found = _recorded(file)
    elif client is not None:
        found = auditing.node(client)
    elif claim is not None:
        found = auditing.claimed(claim)
    else:
        options = {"schedule": schedule, "lies": lies, "play": play, "confidence": confidence, "seed": seed}
        found = _measured(_planned(flags, graph), values=_whole("values", values), threads=threads, **options)
    if save is not None:
        save(found.to_dict())
    try:
        _print(found, html, as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has stopped; the exit code is still about what was found
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not found.holds:
        raise typer.Exit(1)


command = with_settings(_audit, Request, leave_out=("degree", "graph", "graph_seed", "random"), optional=True)


def _refuse_others(kinds: dict[str, Any], flags: dict[str, Any]) -> None:
    """Refuse, by name, what does not apply to what is audited."""
    named = [name for name, value in kinds.items() if value is not None]
    if len(named) > 1:
        raise ArgumentError(f"one thing can be audited at a time, got {' and '.join(named)}")
    if not named:
        return
    context = click.get_current_context()
    given = [name for name in _LIVE if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    for name in (*flags, *given):
        if name != "html":
            raise ArgumentError(f"--{name.replace('_', '-')} describes a live audit; {named[0]} brings its own")
        if named[0] != "FILE":
            raise ArgumentError(f"--html writes the audit of a plan or of a log; {named[0]} has no page")


def _recorded(file: Path) -> Finding:
    """What a log says; one whose lines contradict each other does not hold."""
    if not file.exists():
        raise ArgumentError(f"FILE must be a run's log, got FILE={str(file)!r}: there is no such file")
    try:
        return auditing.recorded(file)
    except ContradictionError as error:
        return auditing.Contradicted(file, (str(error),))
    except ArgumentError as error:
        try:
            auditing.node(file)
        except ArgumentError:
            raise error from None
        raise ArgumentError(f"FILE must be a run's log, got a node's state: say --client {file}") from None


def _planned(flags: dict[str, Any], graph: str) -> planning.Plan:
    """The plan that the flags describe."""
    needed = [each.name for each in dataclasses.fields(Request) if each.default is dataclasses.MISSING]
    if missing := [f"--{name}" for name in needed if name not in flags]:
        raise ArgumentError(f"a plan, FILE, --client or --claim must be given; the plan lacks {', '.join(missing)}")
    return planning.plan(**flags, graph=graph)


def _page(html: Path) -> Callable[[Mapping[str, Any]], None]:
    """What writes the page; the path is checked before the work."""
    from lightdp.report import check_path, save_audit  # noqa: PLC0415  an optional dependency

    check_path(html, "html")
    return lambda found: save_audit(found, html, command_line())


def _print(found: Finding, html: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        return
    for each in found.shown():
        if isinstance(each, str):
            typer.echo(each)
        else:
            table.show(each)
    if html is not None:
        typer.echo(f"wrote {html}")


def _measured(plan: planning.Plan, **options: Any) -> auditing.Audit:  # noqa: ANN401  those of `audit`
    """Run the clients, with a progress bar on standard error."""
    columns = "auditing", BarColumn(bar_width=None), TaskProgressColumn(), TimeRemainingColumn()
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("audit", total=1.0)
        return auditing.audit(plan, progress=lambda share: bar.update(task, completed=share), **options)


def _whole(name: str, value: float) -> int:
    """A number such as 1e6 as an integer."""
    if not value.is_integer():  # neither inf nor nan is
        raise ArgumentError(f"{name} must be an integer, got {name}={value:g}")
    return int(value)

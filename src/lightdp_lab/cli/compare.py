"""`lightdp compare`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightdp._validate import rounded_up
from lightdp.cli.options import command_line, with_settings
from lightdp_lab.cli._progress import progress
from lightdp_lab.compare import Setting, compare, full_title
from lightdp_lab.compare_words import broke, exceeds, figure, mu_of, notes, read_record
from lightdp_lab.scaling import cells, scale
from lightdp_lab.schemes import Task

WIDTH = 120
# Columns of the table, and which figure in which unit.
_COSTS = {
    "up\nkB": ("up", 1e3), "down\nkB": ("down", 1e3), "peer\nkB": ("peer", 1e3),
    "client\nms": ("client", 1e-3), "server\nms": ("server", 1e-3), "round\ns": ("modelled", 1.0),
}  # fmt: skip
HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def _compare(
    flags: dict[str, Any],
    *,
    links: Annotated[
        Literal["relayed", "direct", "both"], typer.Option(help="How clients reach each other: by the server or not.")
    ] = "both",
    schemes: Annotated[str, typer.Option(help="Names with commas between them, or all.")] = "all",
    scaling: Annotated[
        bool | None, typer.Option(help="Also measure against N and d.", show_default="with --plot")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Show what --json wrote, instead of playing.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a page to FILE.html, or its charts to .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if plot is not None:
        from lightdp.report import check_path  # noqa: PLC0415  an optional dependency
        from lightdp_lab.compare_page import save_compare  # noqa: PLC0415  likewise

        check_path(plot, "plot")  # before the work
    if record is not None:
        found = read_record(record)
    else:
        task = {field.name: flags.pop(field.name) for field in fields(Task) if field.name in flags}
        flags["peers"] = ("relayed", "direct") if links == "both" else (links,)
        if schemes != "all":
            flags["schemes"] = tuple(name.strip() for name in schemes.split(","))
        found = _play(Setting(Task(**task), **flags), sizes=plot is not None if scaling is None else scaling)
    if plot is not None:
        with Console(stderr=True).status(f"drawing {plot}"):
            save_compare(found, plot, command_line())
    if as_json:
        typer.echo(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False))
        return
    show(found)
    if plot is not None:
        typer.echo(f"\nwrote {plot}")


command = with_settings(_compare, Task, Setting, leave_out=("clip", "task", "schemes", "peers"))


def _play(setting: Setting, *, sizes: bool) -> dict[str, Any]:
    with progress(quiet=True) as bar:
        work = bar.add_task(
            "", total=len(setting.schemes) * (1 + sizes * len(cells(setting))), completed=-1, visible=False
        )

        def step(what: str) -> None:
            bar.update(work, advance=1, description=what, visible=True, refresh=True)

        found = compare(setting, step)
        if sizes and not found["stopped"]:
            scale(setting, found, step)
        return found


def show(record: dict[str, Any]) -> None:
    """Print the table of a record of `lightdp_lab.compare`."""
    at = record["setting"]
    title = (
        f"N = {at['clients']:,}, C̄ = {at['colluders']:,}, S̄ = {at['stragglers']:,}, d = {at['dimension']:,}, "
        f"ε = {at['epsilon']:g} at δ = {at['delta']:g} (μ = {mu_of(at['epsilon'], at)}) over {at['rounds']:,} rounds; "
        f"links fail with {at['failure']:g}, clients drop out with {at['dropout']:g}"
    )
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("scheme", min_width=20, max_width=28)
    for head in ("done", "noise", "trips", *_COSTS):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("what broke it", min_width=16, overflow="fold")
    for row in record["rows"]:
        name = Text(full_title(row))
        if row["impossible"] is not None:
            table.add_row(name, "–", *[""] * 8, Text(f"impossible: {row['impossible']}", "yellow"))
            continue
        if exceeds(row, at):
            name.append(f" (own σ: true ε {rounded_up(row['epsilon'], 2)}, μ {mu_of(row['epsilon'], at)})", "red")
        done = Text(f"{row['completed']}/{row['rounds']}", "" if row["completed"] == row["rounds"] else "red")
        costs = (figure(row[key] / unit, "" if row["measured"] else "~") for key, unit in _COSTS.values())
        table.add_row(name, done, f"{row['noise']:.3g}", f"{row['trips']:g}", *costs, broke(row) or "–")
    console = Console(width=WIDTH)
    console.print(table)
    for line in notes(record):
        console.print(Text(line))

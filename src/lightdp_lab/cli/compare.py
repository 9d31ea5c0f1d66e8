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

from lightdp import attack, gaussian
from lightdp._validate import rounded_up
from lightdp.cli.options import with_settings
from lightdp.errors import ArgumentError
from lightdp_lab.cli._progress import progress
from lightdp_lab.compare import Setting, compare, full_title, speeds
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
    plot: Annotated[Path | None, typer.Option(help="Draw to FILE.html, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if plot is not None:
        from lightdp.report import check_path, save  # noqa: PLC0415  an optional dependency
        from lightdp_lab.charts.compare import compare_chart  # noqa: PLC0415  likewise

        check_path(plot, "plot")  # before the work
    if record is not None:
        found = _read(record)
    else:
        task = {field.name: flags.pop(field.name) for field in fields(Task) if field.name in flags}
        flags["peers"] = ("relayed", "direct") if links == "both" else (links,)
        if schemes != "all":
            flags["schemes"] = tuple(name.strip() for name in schemes.split(","))
        found = _play(Setting(Task(**task), **flags), sizes=plot is not None if scaling is None else scaling)
    if plot is not None:
        with Console(stderr=True).status(f"drawing {plot}"):
            save(compare_chart(found), plot)
    if as_json:
        typer.echo(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False))
        return
    show(found)
    if plot is not None:
        typer.echo(f"\nwrote {plot}")


command = with_settings(_compare, Task, Setting, leave_out=("clip", "task", "schemes", "peers"))


def _play(setting: Setting, *, sizes: bool) -> dict[str, Any]:
    with progress(quiet=True) as bar:
        work = bar.add_task("", total=len(setting.schemes) * (1 + sizes * len(cells(setting))), completed=-1)

        def step(what: str) -> None:
            bar.update(work, advance=1, description=what, refresh=True)

        found = compare(setting, step)
        if sizes and not found["stopped"]:
            scale(setting, found, step)
        return found


def _read(path: Path) -> dict[str, Any]:
    refused, found = f"record must be what --json wrote, got record={str(path)!r}", None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refused += f": {error}"
    if not isinstance(found, dict) or not {"setting", "rows", "scaling"} <= set(found):
        raise ArgumentError(refused)
    return found


def _mu(epsilon: float, at: dict[str, Any]) -> str:
    """The μ of an ε at the δ of a setting, all of whose schemes use whole batches."""
    return rounded_up(gaussian.mu(epsilon, at["delta"], up=True), 3)


def _power(at: dict[str, Any]) -> float:
    return gaussian.power(gaussian.mu(at["epsilon"], at["delta"], up=True), attack.FALSE_POSITIVES)


def show(record: dict[str, Any]) -> None:
    """Print the table of a record of `lightdp_lab.compare`."""
    at = record["setting"]
    title = (
        f"N = {at['clients']:,}, C̄ = {at['colluders']:,}, S̄ = {at['stragglers']:,}, d = {at['dimension']:,}, "
        f"ε = {at['epsilon']:g} at δ = {at['delta']:g} (μ = {_mu(at['epsilon'], at)}) over {at['rounds']:,} rounds; "
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
        if row["epsilon"] is not None and row["epsilon"] > at["epsilon"] * (1 + 1e-9):
            name.append(f" (true ε {rounded_up(row['epsilon'], 2)}, μ {_mu(row['epsilon'], at)})", "red")
        done = Text(f"{row['completed']}/{row['rounds']}", "" if row["completed"] == row["rounds"] else "red")
        costs = (figure(row[key] / unit, "" if row["measured"] else "~") for key, unit in _COSTS.values())
        table.add_row(name, done, f"{row['noise']:.3g}", f"{row['trips']:g}", *costs, broke(row) or "–")
    console = Console(width=WIDTH)
    console.print(table)
    for line in notes(record):
        console.print(Text(line))


def figure(value: float, mark: str = "") -> str:
    """Three digits, or what is left of them above 1000; 0 as a dash."""
    if value == 0:
        return "–"
    digits = ",.0f" if value >= 100 else ".2g" if value < 0.1 else ".3g"
    return f"{mark}{value:{digits}}"


def broke(row: dict[str, Any]) -> str:
    """What ended rounds, most frequent stage first, with an example; and what each of the others then costs."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for failure in row["failures"]:
        stages.setdefault(failure["stage"], []).append(failure)
    words = [f"{stage} {sum(one['count'] for one in found)}×: {found[0]['why']}" for stage, found in stages.items()]
    spent = row.get("spent")
    if stages and spent is not None:
        work, sent = figure(1e3 * spent["client"]), figure(spent["traffic"] / 1e3)
        words.append(f"a sum takes a client {work} ms and {sent} kB")
    return "; ".join(words)


def notes(record: dict[str, Any]) -> list[str]:
    """What to know to read the table."""
    at, rows = record["setting"], [row for row in record["rows"] if row["impossible"] is None]
    target = f"true ε = {at['epsilon']:g} and clip {at['clip']:g}"
    planned = any(row["scheme"] in ("exact", "exact-sparse", "repair") for row in rows) and "straggler_law" in at
    lines = {
        f"done: rounds with a sum. noise: variance left for good in a coordinate of the mean, at a {target}.": True,
        f"kB: of one client and round, without the model itself. round: modelled on {speeds(at)}.": True,
        f"LightDP's noise is tuned to stragglers by the law {at.get('straggler_law')}; SMPC's is for S̄.": planned,
        attack.sentence(_power(at), "client", "add-remove"): any(row["epsilon"] is not None for row in rows),
        "~: not measured; on the line through two smaller sizes that were.": not all(row["measured"] for row in rows),
        "Where no round was done, the costs are those of a round without faults.": any(row["clean"] for row in rows),
        "Interrupted: what had been played until then.": record.get("stopped", False),
    }
    return [line for line, applies in lines.items() if applies]

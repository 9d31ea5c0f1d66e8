"""`lightdp state`: what a node has spent, in which runs and rosters, what is left, and how to give it up.

`show` reads the file of a `lightdp.File` or of a Flower node (`lightdp-state`), and changes nothing. It says what the
node itself counts; `lightdp audit --client` counts it again. `reset` gives a state up, whatever is left of it.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from lightdp import gaussian
from lightdp._files import locked
from lightdp._validate import counted, positive, probability, rounded_down, rounded_up
from lightdp.cli import table
from lightdp.errors import ArgumentError, LightDPError
from lightdp.federation import Kept
from lightdp.planning import NEVER, Plan
from lightdp.protocol import File
from lightdp.protocol.host import Host

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")

command = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help=HELP)

_Path = Annotated[Path, typer.Argument(help="A node's state file.")]
_Anchor = Annotated[Path | None, typer.Option(help="The node's lightdp-anchor, if it has one.")]
_Epsilon = Annotated[float | None, typer.Option(help="The node's lightdp-total-epsilon, over all runs.")]
_Delta = Annotated[float | None, typer.Option(help="The node's lightdp-total-delta.")]


@command.command()
def show(
    *,
    path: _Path,
    anchor: _Anchor = None,
    total_epsilon: _Epsilon = None,
    total_delta: _Delta = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a state file holds: its run, plan and rounds, what is spent and what is left. No key is printed."""
    total = _total(total_epsilon, total_delta)
    kept = Kept.read(_file(path, anchor), anchor=anchor)
    if as_json:
        typer.echo(json.dumps(_facts(path, kept, total), indent=2, allow_nan=False))
        return
    typer.echo(f"{path}: {kept.name} in run {kept.run}")
    typer.echo(f"serial {kept.serial}, saved {_where(kept)}")
    typer.echo(_plan(kept.plan))
    _show_rosters(kept)
    _show_spent(kept)
    if kept.before is not None or total is not None:
        _show_total(kept, total)


@command.command()
def reset(
    *,
    path: _Path,
    anchor: _Anchor = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give a state up: say what is lost, ask, and remove the file, its serial and its anchor. Stop the node first."""
    store = File(_file(path, anchor), anchor=anchor)
    for line in _lost(path, anchor):
        typer.echo(line)
    files = [str(each) for each in (store.path, anchor, f"{store.path}.serial") if each and Path(each).exists()]
    typer.echo(f"This removes {', '.join(files)}")
    try:
        sure = yes or typer.confirm("Give this state up for good?", err=True)
    except click.Abort:
        sure = False
    if not sure:
        raise ArgumentError("nothing was given up: answer y, or say --yes")
    with ExitStack() as held:
        if Path(f"{store.path}.lock").exists():  # a Flower node's, while it handles a message
            held.enter_context(locked(f"{store.path}.lock"))
        store.give_up()
    typer.echo("given up: the node begins anew at its next key round")


def _file(path: Path, anchor: Path | None) -> Path:
    if path.is_dir():
        found = sorted(each.name for each in path.glob("*.json"))
        raise ArgumentError(
            f"PATH must be a state file, got the folder {str(path)!r} with {', '.join(found) or 'none'}"
        )
    serial = Path(f"{path.expanduser()}.serial")
    marked = (serial.exists() and serial.stat().st_size > 0) or (anchor is not None and anchor.exists())
    if not path.exists() and not marked:
        why = "it was given up, and a node begins anew there" if serial.exists() else "there is no such file"
        raise ArgumentError(f"PATH must be a state file, got PATH={str(path)!r}: {why}")
    return path


def _total(epsilon: float | None, delta: float | None) -> tuple[float, float] | None:
    if (epsilon is None) != (delta is None):
        raise ArgumentError("--total-epsilon and --total-delta must be given together, got one of them")
    if epsilon is None or delta is None:
        return None
    return positive("total-epsilon", epsilon), probability("total-delta", delta)


def _where(kept: Kept) -> str:
    here = Host.here()
    if not kept.host.same(here):
        return "on another machine, or before a reboot of one without a machine id: a node refuses it here"
    return "on this machine" if kept.host.boot == here.boot else "on this machine, before it was started last"


def _plan(plan: Plan) -> str:
    """The plan in one line."""
    names = ("clients", "population", "colluders", "stragglers", "rounds", "calibration")
    words = [f"{name} {value}" for name in names if (value := getattr(plan.request, name)) is not None]
    of = f"for one {plan.unit}, {plan.adjacency}"
    return f"plan: {', '.join(words)}; ε = {plan.budget:g} at δ = {plan.delta:g} {of}"


def _show_rosters(kept: Kept) -> None:
    if not kept.rosters and kept.ended == 0:
        typer.echo("in no roster yet")
        return
    names = ["clients", "answered", "used", "too late", "void", "open", "closing"]
    lines = table.new(None, ["roster"], names)
    for each in kept.rosters:
        counts = each.clients, each.answered, each.used, each.late, each.void, each.open, each.closing
        lines.add_row(str(each.roster), *map(str, counts))
    if kept.ended > 0:
        lines.add_row("earlier ones", "", str(kept.ended))
    table.show(lines)


def _show_spent(kept: Kept) -> None:
    plan = kept.plan
    head = "μ" if plan.gdp else "μ at this δ"
    lines = table.new(None, ["this run"], [head, f"ε at δ = {plan.delta:g}"])
    lines.add_row("as announced", rounded_up(kept.mu), rounded_up(kept.epsilon))
    lines.add_row("at worst", rounded_up(kept.worst_mu), rounded_up(kept.worst_epsilon))
    lines.add_row("budget", rounded_up(gaussian.mu(plan.budget, plan.delta, up=True)), rounded_up(plan.budget))
    lines.add_row("left, at worst", rounded_down(kept.left_mu), rounded_down(kept.left_epsilon))
    table.show(lines)


def _show_total(kept: Kept, total: tuple[float, float] | None) -> None:
    facts, delta = _sums(kept, total), kept.plan.delta if total is None else total[1]
    lines = table.new(None, ["all runs"], ["μ", f"ε at δ = {delta:g}"])
    for name, title in (("earlier", "earlier runs"), ("run", "this run, at worst"), ("spent", "together")):
        lines.add_row(title, rounded_up(facts[name]["mu"]), rounded_up(facts[name]["epsilon"]))
    if total is not None:
        lines.add_row("total", rounded_up(facts["total"]["mu"]), rounded_up(facts["total"]["epsilon"]))
        lines.add_row("left", rounded_down(facts["left"]["mu"]), rounded_down(facts["left"]["epsilon"]))
    table.show(lines)
    if kept.before is None:
        typer.echo("This file counts one run: what others have spent is not in it.")
    if len(kept.kinds) > 1:
        kinds = ", ".join(f"{unit} ({adjacency})" for unit, adjacency in kept.kinds)
        typer.echo(f"It counts runs of several kinds, which add up to no single statement: {kinds}")


def _sums(kept: Kept, total: tuple[float, float] | None) -> dict[str, dict[str, float]]:
    """What all runs have spent, and what is left of a total, each as μ and ε at the δ of the total or the plan.

    What drawn masks may fail counts as the node counts it (B2): in this run alone it is covered at the plan's δ.
    """
    before, delta = kept.before or 0.0, kept.plan.delta if total is None else total[1]
    squares = {"earlier": before, "run": kept.square, "spent": before + kept.square}
    figures = {name: square**0.5 for name, square in squares.items()}
    if total is not None:
        figures["left"] = kept.left_of(*total)
    alone = kept.plan.masks.fails(kept.length) if kept.plan.masks.left(delta) == 0 else NEVER
    fails = {"earlier": kept.failed, "run": alone, "spent": kept.fails, "left": NEVER}
    found = {
        name: {"mu": mu, "epsilon": fails[name].epsilon(mu, delta) if mu > 0 else 0.0} for name, mu in figures.items()
    }
    if total is not None:
        found["total"] = {"mu": gaussian.mu(*total), "epsilon": total[0]}
    return found


def _facts(path: Path, kept: Kept, total: tuple[float, float] | None) -> dict[str, Any]:
    """Everything as JSON values."""
    plan, sums = kept.plan, _sums(kept, total)
    finite = {name: {key: None if value == math.inf else value for key, value in sums[name].items()} for name in sums}
    return {
        "state": str(path),
        "name": kept.name,
        "run": kept.run,
        "serial": kept.serial,
        "here": kept.host.same(Host.here()),
        "plan": json.loads(plan.to_json()),
        "delta": plan.delta,
        "gdp": plan.gdp,
        "rosters": [vars(each) for each in kept.rosters],
        "ended": kept.ended,
        "announced": {"mu": kept.mu, "epsilon": kept.epsilon},
        "worst": {"mu": kept.worst_mu, "epsilon": kept.worst_epsilon},
        "budget": {"mu": gaussian.mu(plan.budget, plan.delta, up=True), "epsilon": plan.budget},
        "left": {"mu": kept.left_mu, "epsilon": kept.left_epsilon},
        "kinds": [list(each) for each in kept.kinds],
        "counts_earlier_runs": kept.before is not None,
        "all_runs": finite,
    }


def _lost(path: Path, anchor: Path | None) -> list[str]:
    """What is lost with a state, in sentences."""
    try:
        kept = Kept.read(path, anchor=anchor)
    except LightDPError as error:
        return [f"What this state has spent cannot be said: {error}"]
    spent = _sums(kept, None)["spent"]
    figures = f"ε = {rounded_up(spent['epsilon'])} at δ = {kept.plan.delta:g} (μ = {rounded_up(spent['mu'])})"
    runs = "in this run" if kept.before is None else "in all runs"
    rounds = counted(kept.answered, "round")
    return [
        f"{path}: {kept.name} in run {kept.run}, {rounds} answered. It can answer no further one there.",
        f"Its data has cost {figures} at worst, {runs}. This is forgotten, but stays spent: lower the total.",
    ]

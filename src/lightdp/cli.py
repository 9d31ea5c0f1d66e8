"""`lightdp`: parse, call, print."""

from __future__ import annotations

import csv
import json
import math
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lightdp import design, stragglers
from lightdp._check import ArgumentError, LightDPError
from lightdp.accountant import paper_claims
from lightdp.design import Calibration, Late, Plan, Reserve, Unit
from lightdp.sampling import Adjacency

if TYPE_CHECKING:
    from lightdp.design import PerClientPlan

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")

PLAN_HELP = """How much noise must clients add, what does it really guarantee, and what does it cost?

Examples:

- `lightdp plan --clients 50 --colluders 10 --stragglers 10 --rounds 150 --epsilon 3 --delta 1e-5`

- `lightdp plan ... --calibration repair --compare`: every scheme at the same true guarantee

- `lightdp plan ... --graph circulant:20 --straggler-law binomial:0.05 --json`

- `lightdp plan ... --plot plan.html`: noise against colluders, stragglers and ε
"""

MIXED_HELP = """Noise for clients that differ in privacy budget and reliability.

FILE is a CSV with a header and one line per kind of client: how many, how often one misses a round, and its ε:

    clients,straggling,epsilon

    40,0.02,3

    10,0.5,3

Example: `lightdp plan-mixed kinds.csv --colluders 10 --rounds 150 --delta 1e-5`
"""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"lightdp {version('lightdp-fl')}")
        raise typer.Exit


@app.callback()
def lightdp(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Federated learning that stays private against its own server."""


@app.command("plan", help=PLAN_HELP)
def plan_command(
    *,
    clients: Annotated[int, typer.Option(help="N, all clients of the training.")],
    colluders: Annotated[int, typer.Option(help="C̄, clients that may help the server.")],
    stragglers: Annotated[int, typer.Option(help="S̄, the most clients that miss a round.")],
    rounds: Annotated[int, typer.Option(help="T, rounds of the whole training.")],
    epsilon: Annotated[float, typer.Option(help="ε of the whole training.")],
    delta: Annotated[float, typer.Option(help="δ of the whole training.")],
    calibration: Annotated[Calibration, typer.Option(help="How noise is chosen.")] = "exact",
    clip: Annotated[float, typer.Option(help="L2 bound on what one unit contributes.")] = 1.0,
    unit: Annotated[Unit, typer.Option(help="What is protected.")] = "record",
    adjacency: Annotated[Adjacency, typer.Option(help="What may change between neighbouring data.")] = "add-remove",
    sampling_rate: Annotated[float, typer.Option(help="Poisson rate of local batches.")] = 1.0,
    graph: Annotated[str, typer.Option(help="complete, circulant:DEGREE or circulant:DEGREE:SEED.")] = "complete",
    straggler_law: Annotated[str, typer.Option(help="uniform, binomial:P or pmf:P0,P1,...")] = "uniform",
    gamma: Annotated[float | None, typer.Option(help="σ_K²/σ_U², instead of the best one.")] = None,
    reserve: Annotated[
        Reserve, typer.Option(help="With repair: stragglers that the budget must last for.")
    ] = "expected",
    late: Annotated[Late, typer.Option(help="With repair: whether the server may see late uploads.")] = "seen",
    records: Annotated[int | None, typer.Option(help="Records of all clients together.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the model.")] = None,
    coordinate_range: Annotated[
        float | None, typer.Option(help="Your own bound on one coordinate of an upload before noise.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Every scheme at the same true guarantee.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the noise to FILE.html, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a plan."""
    degree, seed = _graph(graph, clients)
    chosen = design.plan(
        clients=clients,
        colluders=colluders,
        stragglers=stragglers,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        calibration=calibration,
        gamma=gamma,
        unit=unit,
        adjacency=adjacency,
        sampling_rate=sampling_rate,
        degree=degree,
        graph_seed=seed,
        straggler_law=_law(straggler_law, clients, stragglers),
        records=records,
        parameters=parameters,
        coordinate_range=coordinate_range,
        reserve=reserve,
        late=late,
    )
    rows = design.compare(chosen) if compare else ()
    if plot is not None:
        from lightdp.report import plan_chart, save  # noqa: PLC0415  an optional dependency

        save(plan_chart(chosen), plot)
    if as_json:
        typer.echo(json.dumps(chosen.to_dict() | _compare_json(rows), indent=2, allow_nan=False))
        return
    typer.echo(str(chosen))
    if calibration == "paper":
        _print_claims(chosen)
    if rows:
        _print_comparison(chosen, rows)
    if plot is not None:
        typer.echo(f"\nwrote {plot}")


@app.command("plan-mixed", help=MIXED_HELP)
def plan_mixed_command(
    *,
    file: Annotated[Path, typer.Argument(help="CSV with columns clients, straggling, epsilon.")],
    colluders: Annotated[int, typer.Option(help="C̄, clients that may help the server.")],
    rounds: Annotated[int, typer.Option(help="T, rounds of the whole training.")],
    delta: Annotated[float, typer.Option(help="δ of the whole training.")],
    sensitivity: Annotated[float, typer.Option(help="Δ, how far one unit can move an upload.")] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the noise of every client and pair.")
    ] = False,
) -> None:
    """Print a plan per kind of client."""
    kinds = _kinds(file)
    mixed = design.plan_per_client(
        epsilons=[e for count, _, e in kinds for _ in range(count)],
        straggling=[p for count, p, _ in kinds for _ in range(count)],
        colluders=colluders,
        rounds=rounds,
        delta=delta,
        sensitivity=sensitivity,
    )
    if as_json:
        typer.echo(json.dumps(mixed.to_dict(), indent=2, allow_nan=False))
    else:
        _print_mixed(mixed, [count for count, _, _ in kinds])


def _graph(text: str, clients: int) -> tuple[int | None, int]:
    kind, *rest = text.split(":")
    if kind == "complete" and not rest:
        return None, 0
    if kind == "circulant" and len(rest) in (1, 2) and all(part.isdecimal() for part in rest):
        degree = int(rest[0])
        if degree >= clients:
            raise ArgumentError(f"graph must have a degree below clients={clients}, got graph={text!r}")
        return degree, int(rest[1]) if len(rest) == 2 else 0
    raise ArgumentError(f"graph must be complete, circulant:DEGREE or circulant:DEGREE:SEED, got graph={text!r}")


def _law(text: str, clients: int, bound: int) -> stragglers.StragglerLaw | None:
    kind, _, rest = text.partition(":")
    if text == "uniform" or not 0 <= bound <= clients:  # the plan refuses the latter in its own words
        return None
    try:
        if kind == "binomial":
            return stragglers.binomial(bound, clients, float(rest))
        if kind == "pmf":
            return stragglers.custom(bound, [float(part) for part in rest.split(",")])
    except ArgumentError:
        raise
    except ValueError:
        pass
    raise ArgumentError(f"straggler_law must be uniform, binomial:P or pmf:P0,P1,..., got straggler_law={text!r}")


def _kinds(file: Path) -> list[tuple[int, float, float]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        return [(int(row["clients"]), float(row["straggling"]), float(row["epsilon"])) for row in rows]
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"file must be a readable CSV, got {file}: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(f"file must have numbers in columns clients, straggling, epsilon; {file} has not") from None


def _compare_json(rows: tuple[design.Comparison, ...]) -> dict[str, Any]:
    if not rows:
        return {}
    return {
        "compare": [
            {
                "scheme": row.scheme.calibration,
                "noise_in_mean": row.noise_in_mean,
                "round_trips": row.scheme.round_trips,
                "bytes_per_parameter": row.bytes_per_parameter,
                "breaks": row.scheme.breaks,
                "impossible": row.reason or None,
            }
            for row in rows
        ]
    }


def _print_comparison(chosen: Plan, rows: tuple[design.Comparison, ...]) -> None:
    title = f"\nThe same true guarantee, ε = {chosen.budget:g} at δ = {chosen.delta:g}"
    table = _table(title)
    table.add_column("scheme", no_wrap=True)
    for name in ("noise", "× central", "trips", "B/param"):
        table.add_column(name, justify="right")
    table.add_column("what breaks it", overflow="fold")
    central = rows[0].noise_in_mean
    for row in rows:
        style = "bold" if row.scheme.calibration == chosen.calibration else ""
        if row.noise_in_mean is None or row.bytes_per_parameter is None or central is None:
            table.add_row(row.scheme.title, "impossible", "", "", "", row.reason, style=style)
            continue
        table.add_row(
            row.scheme.title,
            f"{row.noise_in_mean:.4g}",
            f"{row.noise_in_mean / central:.3g}",
            str(row.scheme.round_trips),
            f"{row.bytes_per_parameter:.3g}",
            row.scheme.breaks,
            style=style,
        )
    _print(table)
    typer.echo("noise: variance in the mean of a round; trips: messages up and down before the sum is known")


def _print_claims(chosen: Plan) -> None:
    table = _table("\nThe paper's ε, claimed and true")
    table.add_column("rule for T rounds")
    for name in ("rounds", "ε claimed", "ε true"):
        table.add_column(name, justify="right")
    for claim in paper_claims(chosen):
        table.add_row(claim.rule, str(claim.rounds), f"{claim.claimed:g}", f"{claim.true:.4f}")
    _print(table)


def _print_mixed(mixed: PerClientPlan, counts: list[int]) -> None:
    starts = [sum(counts[:kind]) for kind in range(len(counts))]
    typer.echo(
        f"Noise per client, {mixed.graph.clients:,} clients of {len(counts)} kinds, {mixed.rounds:,} rounds, "
        f"δ = {mixed.delta:g}, against the server with any {mixed.colluders:,} others\n"
    )
    table = _table(None)
    for name in (
        "kind",
        "clients",
        "straggling",
        "ε",
        "σ_U",
        "σ_eff",
        *(f"σ_K to {k + 1}" for k in range(len(counts))),
    ):
        table.add_column(name, justify="right")
    true = mixed.epsilon()
    for kind, first in enumerate(starts):
        shared = [
            mixed.sigma_pairwise[first, other + (other == first)]
            if other + (other == first) < sum(counts)
            else math.nan
            for other in starts
        ]
        table.add_row(
            str(kind + 1),
            str(counts[kind]),
            f"{mixed.straggling[first]:g}",
            f"{true[first]:.4f}",
            f"{mixed.sigma_individual[first]:.5g}",
            f"{mixed.sigma_effective[first]:.5g}",
            *("" if math.isnan(sigma) else f"{sigma:.4g}" for sigma in shared),
        )
    _print(table)
    ratio = mixed.noise_equal / mixed.noise
    typer.echo(f"noise variance in the mean {mixed.noise:.5g}")
    typer.echo(f"with equal variances for all it would be {mixed.noise_equal:.5g}, {ratio:.2f} times as much")


def _table(title: str | None) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _print(table: Table) -> None:
    """To the terminal as wide as it is; to a file or pipe as wide as the page."""
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def main() -> None:
    """Run the command line; user mistakes end in one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except LightDPError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)

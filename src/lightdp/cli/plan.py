"""`lightdp plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lightdp import planning
from lightdp._validate import rounded_up
from lightdp.cli import table
from lightdp.errors import ArgumentError
from lightdp.planning import CalibrationName, Late, Plan, Reserve, Unit
from lightdp.sampling import Adjacency

HELP = """How much noise must clients add, what does it really guarantee, and what does it cost?

Examples:

- `lightdp plan --clients 50 --colluders 10 --stragglers 10 --rounds 150 --epsilon 3 --delta 1e-5`

- `lightdp plan ... --calibration repair --compare`: every scheme at the same true guarantee

- `lightdp plan ... --graph circulant:20 --straggler-law binomial:0.05 --json`

- `lightdp plan ... --plot plan.html`: noise against colluders, stragglers and ε
"""


def command(
    *,
    clients: Annotated[int, typer.Option(help="N, all clients of the training.")],
    colluders: Annotated[int, typer.Option(help="C̄, clients that may help the server.")],
    stragglers: Annotated[int, typer.Option(help="S̄, the most clients that miss a round.")],
    rounds: Annotated[int, typer.Option(help="T, rounds of the whole training.")],
    epsilon: Annotated[float, typer.Option(help="ε of the whole training.")],
    delta: Annotated[float, typer.Option(help="δ of the whole training.")],
    calibration: Annotated[CalibrationName, typer.Option(help="How noise is chosen.")] = "exact",
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
    late: Annotated[
        Late, typer.Option(help="Whether the server may see uploads that come too late; unseen ones cost nothing.")
    ] = "seen",
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
    chosen = planning.plan(
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
        straggler_law=straggler_law,
        records=records,
        parameters=parameters,
        coordinate_range=coordinate_range,
        reserve=reserve,
        late=late,
    )
    rows = planning.compare(chosen) if compare else ()
    if plot is not None:
        from lightdp.report import plan_chart, save  # noqa: PLC0415  an optional dependency

        with Console(stderr=True).status(f"drawing {plot}"):
            save(plan_chart(chosen), plot)
    if as_json:
        typer.echo(json.dumps(chosen.to_dict() | _compare_json(rows), indent=2, allow_nan=False))
        return
    typer.echo(str(chosen))
    if chosen.understates and sampling_rate == 1:
        _print_claims(chosen)
    if rows:
        _print_comparison(chosen, rows)
    if plot is not None:
        typer.echo(f"\nwrote {plot}")


def _graph(text: str, clients: int) -> tuple[int | None, int]:
    kind, *rest = text.split(":")
    if kind == "complete" and not rest:
        return None, 0
    if kind == "circulant" and len(rest) in (1, 2) and all(re.fullmatch("[0-9]{1,20}", part) for part in rest):
        degree = int(rest[0])
        if degree >= clients:
            raise ArgumentError(f"graph must have a degree below clients={clients}, got graph={text!r}")
        return degree, int(rest[1]) if len(rest) == 2 else 0
    raise ArgumentError(f"graph must be complete, circulant:DEGREE or circulant:DEGREE:SEED, got graph={text!r}")


def _compare_json(rows: tuple[planning.Comparison, ...]) -> dict[str, Any]:
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


def _print_comparison(chosen: Plan, rows: tuple[planning.Comparison, ...]) -> None:
    title = f"\nThe same true guarantee, ε = {chosen.budget:g} at δ = {chosen.delta:g}"
    lines = table.new(title)
    lines.add_column("scheme", no_wrap=True)
    for name in ("noise", "× central", "trips", "B/param"):
        lines.add_column(name, justify="right")
    lines.add_column("what breaks it", overflow="fold")
    central = rows[0].noise_in_mean
    for row in rows:
        style = "bold" if row.scheme.calibration == chosen.request.calibration else ""
        if row.noise_in_mean is None or row.bytes_per_parameter is None or central is None:
            lines.add_row(row.scheme.title, "impossible", "", "", "", row.reason, style=style)
            continue
        lines.add_row(
            row.scheme.title,
            f"{row.noise_in_mean:.4g}",
            f"{row.noise_in_mean / central:.3g}",
            str(row.scheme.round_trips),
            f"{row.bytes_per_parameter:.3g}",
            row.scheme.breaks,
            style=style,
        )
    table.show(lines)
    typer.echo("noise: variance in the mean of a round; trips: messages up and down before the sum is known")


def _print_claims(chosen: Plan) -> None:
    lines = table.new("\nThe paper's ε, claimed and true")
    lines.add_column("rule for T rounds")
    for name in ("rounds", "ε claimed", "ε true"):
        lines.add_column(name, justify="right")
    for claim in planning.paper_claims(chosen):
        lines.add_row(claim.rule, str(claim.rounds), f"{claim.claimed:g}", rounded_up(claim.true))
    table.show(lines)

"""`lightdp plan`: the noise of a training, its true guarantee and its cost.

The flags are the fields of `lightdp.planning.Request`, with `--graph` for its degree and seed. Printed is the page of
the plan (`str(plan)`) or, with `--json`, its `to_dict`; with `--population` both say what cohorts cost and gain beside
all clients, and beside the same ones, in every round. Two tables may follow:

- `--compare`: every scheme at the same true (ε, δ), with the noise it leaves in the mean and what breaks it. A scheme
  that cannot have this guarantee stays in the table, with the reason.
- for the paper's calibration: the ε that each of its composition rules claims, beside the true one, rounded up.

With `--plot` a page or its charts are written as well; the path is checked before anything is computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lightdp import gaussian, planning
from lightdp._validate import rounded_up
from lightdp.cli import table
from lightdp.cli.options import GRAPH, command_line, with_settings
from lightdp.planning import Plan, Request

HELP = """How much noise must clients add, what does it really guarantee, and what does it cost?

Examples:

- `lightdp plan --clients 50 --colluders 10 --stragglers 10 --rounds 150 --epsilon 3 --delta 1e-5`

- `lightdp plan ... --calibration repair --compare`: every scheme at the same true guarantee

- `lightdp plan --clients 20 --population 100 ...`: cohorts of 20 that take turns, beside all 100 and a fixed 20

- `lightdp plan ... --graph circulant:20 --straggler-law binomial:0.05 --json`

- `lightdp plan --clients 100000 ... --graph auto`: an expander of few peers each, for large rosters

- `lightdp plan ... --plot plan.html`: noise against colluders, stragglers and ε
"""


_LARGE_DELTA = 1e-3


def _plan(
    flags: dict[str, Any],
    *,
    graph: Annotated[str, typer.Option(help=GRAPH)] = "complete",
    compare: Annotated[bool, typer.Option("--compare", help="Every scheme at the same true guarantee.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a page to FILE.html, or its charts to .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan, draw if asked, then print."""
    if plot is not None:
        from lightdp.report import check_path, save_plan  # noqa: PLC0415  an optional dependency

        check_path(plot, "plot")  # before the work
    chosen = planning.plan(**flags, graph=graph)
    if chosen.delta > _LARGE_DELTA or chosen.delta * chosen.clients >= 1:
        rule = f"at most {_LARGE_DELTA:g} and below one over the number of clients or people"
        typer.echo(f"delta = {chosen.delta:g} is a large probability to fail: usual is {rule}", err=True)
    rows = planning.compare(chosen) if compare else ()
    if plot is not None:
        from rich.console import Console  # noqa: PLC0415  slow to import

        with Console(stderr=True).status(f"drawing {plot}"):
            save_plan(chosen, plot, command_line())
    if as_json:
        more: dict[str, Any] = {"compare": [_row_json(row) for row in rows]} if compare else {}
        if found := planning.memberships(chosen):
            more["memberships"] = [_membership_json(each) for each in found]
        typer.echo(json.dumps(chosen.to_dict() | more, indent=2, allow_nan=False))
        return
    typer.echo(str(chosen))
    if chosen.understates and chosen.sampling_rate == 1:
        _print_claims(chosen)
    if compare:
        _print_comparison(chosen, rows)
    if plot is not None:
        typer.echo(f"\nwrote {plot}")


command = with_settings(_plan, Request, leave_out=("degree", "graph", "graph_seed", "random"))  # `graph` says them


def _row_json(row: planning.Comparison) -> dict[str, Any]:
    """A row of `--compare --json`; "impossible" is null or says why there is no such plan."""
    return {
        "scheme": row.scheme.name,
        "noise_in_mean": row.noise_in_mean,
        "round_trips": row.scheme.trips,
        "bytes_per_parameter": row.bytes_per_parameter,
        "breaks": row.breaks,
        "impossible": row.reason or None,
    }


def _membership_json(row: planning.Membership) -> dict[str, Any]:
    """An entry of "memberships"; "impossible" is null or says why there is no such plan."""
    facts: dict[str, Any] = {"who": row.name, "title": row.title, "impossible": row.reason or None}
    if (plan := row.plan) is None:
        return facts
    names = "clients", "population", "colluders", "stragglers", "rounds", "turns"
    told = plan.to_dict()
    facts |= {name: told[name] for name in (*names, "epsilon_true", "noise_in_mean", "transient_in_mean")}
    return facts


def _print_comparison(chosen: Plan, rows: tuple[planning.Comparison, ...]) -> None:
    """The table of `--compare`; the scheme that was asked for is bold."""
    mu = rounded_up(gaussian.mu(chosen.budget, chosen.delta, up=True))
    words = f"{'' if chosen.gdp else 'at this δ as with '}μ = {mu}"
    title = f"\nThe same true guarantee, ε = {chosen.budget:g} at δ = {chosen.delta:g} ({words})"
    name, *figures, last = planning.HEADINGS
    lines = table.new(title, [name], figures)
    lines.columns[0].no_wrap = True
    lines.add_column(last, overflow="fold")
    for row in rows:
        lines.add_row(
            *row.cells(rows[0].noise_in_mean), style="bold" if row.scheme.name == chosen.request.calibration else ""
        )
    table.show(lines)
    typer.echo("noise: variance in the mean of a round; trips: messages up and down before the sum is known")


def _print_claims(chosen: Plan) -> None:
    """The ε of each composition rule of the paper (P1-P3), and the true one."""
    lines = table.new(
        "\nThe paper's ε, claimed and true", ["rule for T rounds"], ["rounds", "ε claimed", "ε true", "μ"]
    )
    for claim in planning.paper_claims(chosen):
        lines.add_row(claim.rule, str(claim.rounds), f"{claim.claimed:g}", rounded_up(claim.true), rounded_up(claim.mu))
    table.show(lines)

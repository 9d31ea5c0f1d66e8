"""`lightdp plan-mixed`: noise for clients that differ in privacy budget and reliability.

Clients of one kind share a line of a CSV file and get the same noise (`lightdp.planning.plan_per_client`). The table
has a row for each kind: its true ε and μ, rounded up, what an attacker finds of it, the individual noise σ_U, the noise
σ_eff that protects one of its clients, and σ_K with each kind. Below it stands the variance in the mean of a round, and
that of equal noise for all.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated

import typer

from lightdp import attack, gaussian, planning
from lightdp._validate import integer, rounded_up
from lightdp.cli import table
from lightdp.errors import ArgumentError
from lightdp.planning import PerClientPlan

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_MOST_CLIENTS = 100_000  # there is a variance for each pair of them


def command(
    *,
    file: Annotated[Path, typer.Argument(help="CSV with columns clients, straggling, epsilon.")],
    colluders: Annotated[int, typer.Option(help="C̄, clients that may help the server.")],
    rounds: Annotated[int, typer.Option(help="T, rounds of the whole training.")],
    delta: Annotated[float, typer.Option(help="δ of the whole training.")],
    sensitivity: Annotated[float, typer.Option(help="Δ, how far one unit can move an upload.")] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the noise of each client and pair.")
    ] = False,
) -> None:
    """Read the kinds, plan for each of their clients, print a row for each kind or all as JSON."""
    kinds = _kinds(file)
    mixed = planning.plan_per_client(
        epsilons=[epsilon for count, _, epsilon in kinds for _ in range(count)],
        straggling=[share for count, share, _ in kinds for _ in range(count)],
        colluders=colluders, rounds=rounds, delta=delta, sensitivity=sensitivity,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(mixed.to_dict(), indent=2, allow_nan=False))
    else:
        _print_mixed(mixed, [count for count, _, _ in kinds])


def _kinds(file: Path) -> list[tuple[int, float, float]]:
    """Clients, probability of straggling and ε of each kind.

    Ranges are checked by the planner, except the number of clients, which decides how much memory that takes.

    Raises:
        ArgumentError: the file cannot be read, is empty or lacks a number; the message names the kind.
    """
    got = f"got file={str(file)!r}"
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = list(csv.DictReader(lines, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"file must be a readable CSV, {got}: {reason}") from None
    if not rows:
        raise ArgumentError(f"file must have a header and a line for each kind of client, {got}")
    result = []
    for number, row in enumerate(rows, 1):
        try:
            kind = int(row["clients"]), float(row["straggling"]), float(row["epsilon"])
        except (KeyError, TypeError, ValueError):
            raise ArgumentError(
                f"file must have numbers in columns clients, straggling, epsilon, {got} without in kind {number}"
            ) from None
        integer(f"clients of kind {number}", kind[0], 1, _MOST_CLIENTS)
        result.append(kind)
    return result


def _print_mixed(mixed: PerClientPlan, counts: list[int]) -> None:
    typer.echo(
        f"Noise per client, {mixed.graph.clients:,} clients of {len(counts)} kinds, {mixed.rounds:,} rounds, "
        f"δ = {mixed.delta:g}, against the server with any {mixed.colluders:,} others\n"
    )
    shared = (f"σ_K to {kind}" for kind in range(1, len(counts) + 1))
    lines = table.new(None, right=["kind", "clients", "straggling", "ε", "μ", "found", "σ_U", "σ_eff", *shared])
    starts, true = [sum(counts[:kind]) for kind in range(len(counts))], mixed.epsilon()
    for kind, (first, count) in enumerate(zip(starts, counts, strict=True), 1):
        cells = [str(kind), str(count), f"{mixed.straggling[first]:g}", rounded_up(true[first])]
        cells += [rounded_up(mixed.mu[first]), _found(mixed.mu[first])]
        cells += [f"{sigma[first]:.5g}" for sigma in (mixed.sigma_individual, mixed.sigma_effective)]
        lines.add_row(*cells, *(_shared(mixed, first, *other) for other in zip(starts, counts, strict=True)))
    table.show(lines)
    ratio = mixed.noise_equal / mixed.noise
    typer.echo(attack.sentence(None, "client", "add-remove"))
    typer.echo(f"noise variance in the mean {mixed.noise:.5g}")
    typer.echo(f"with equal variances for all it would be {mixed.noise_equal:.5g}, {ratio:.2f} times as much")


def _found(mu: float) -> str:
    return f"{rounded_up(100 * gaussian.power(mu, attack.FALSE_POSITIVES), 1)} %"


def _shared(mixed: PerClientPlan, client: int, first: int, size: int) -> str:
    """σ_K of `client` and another one of the `size` clients from `first` on; nothing where there is no other."""
    if client != first:
        return f"{mixed.sigma_pairwise[client, first]:.4g}"
    return f"{mixed.sigma_pairwise[first, first + 1]:.4g}" if size > 1 else ""

"""`lightdp bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lightdp.cli import table
from lightdp_lab.cli._progress import progress

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help="How fast is it on this machine?"
)

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_PEAKS = "peak memory of that round, in vectors of the model's size, the data included, by number of masks"
_TITLES = {"philox": "Philox Gaussian (unfit)", "uniform": "AES uniform mask", "upload": "lightdp, whole upload"}


@app.callback()
def bench() -> None:
    """A group, even with one command."""


@app.command(help=HELP)
def masks(
    *,
    dimension: Annotated[int, typer.Option(help="Parameters of the model.")] = 11_200_000,
    peers: Annotated[int, typer.Option(help="Clients with which one client shares noise.")] = 49,
    rounds: Annotated[int, typer.Option(help="Turns of each method; at most 3 of the whole round.")] = 11,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print rates, ratios and memory."""
    from lightdp_lab import bench  # noqa: PLC0415  refuses, when imported, a path that is not there

    with progress(quiet=True) as bar:
        record = bench.masks(dimension, peers, rounds, bar.track)
    if as_json:
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
    else:
        show(record)


def show(record: dict[str, Any]) -> None:
    """Print a record of `lightdp_lab.bench.masks`."""
    conditions = record["rates"]["conditions"]
    typer.echo(f"path in use: {conditions['backend']}")
    typer.echo(f"{conditions['cpu']}, {conditions['cores']} cores, load {conditions['load']}")
    _show_rates("Every method", record["rates"])
    _show_rates("A client's whole round", record["client_round"])
    peaks = record["peak_memory_in_vectors"]
    if peaks is not None:
        each = ", ".join(f"{vectors:.2f} for {peers}" for peers, vectors in peaks.items())
        typer.echo(f"{_PEAKS}: {each}")


def _show_rates(title: str, rates: dict[str, Any]) -> None:
    work = f"{rates['peers']:,} masks of {rates['d']:,} samples, one thread, {rates['rounds']} turns"
    lines = table.new(f"\n{title}: {work}", ["method"], ["seconds", "M samples/s", "× Philox", "× AES uniform"])
    lines.columns[0].no_wrap = True
    path = rates["conditions"]["backend"].split()[0]
    for name, row in rates["methods"].items():
        shown = [f"{row['seconds']:.4f}", f"{row['rate'] / 1e6:.0f}"]
        shown += [f"{row[ratio]:.2f}" for ratio in ("x_philox", "x_uniform")]
        lines.add_row(_TITLES.get(name, f"lightdp, {name}"), *shown, style="bold" if name == path else "")
    table.show(lines)

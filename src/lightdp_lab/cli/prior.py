"""`lightdp prior`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lightdp.cli.options import with_settings
from lightdp.errors import MissingExtraError
from lightdp_lab.cli._progress import progress
from lightdp_lab.prior.recipe import Recipe

if TYPE_CHECKING:
    from lightdp_lab.prior.pretrain import Made

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
Schemes = Annotated[str, typer.Option(help="Whose noise, with commas between them.")]
Budgets = Annotated[str, typer.Option(help="Budgets, with commas between them.")]
Seeds = Annotated[str, typer.Option(help="Of the trials, with commas between them.")]
Changes = Annotated[list[str], typer.Option("--set", help="NAME=VALUE, a setting of lightdp run.")]
Folder = Annotated[Path, typer.Option(help="Folder of the lines that are kept.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")]
Start = Annotated[Path, typer.Argument(help="The file of a start.")]
DataPath = Annotated[Path | None, typer.Option(help="Folder or archive of CIFAR-10.")]
HeldOut = Annotated[bool, typer.Option("--held-out", help="Test on a tenth of the training records.")]
_MAKE = "Make a start from noise."

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help=HELP)


def _commands() -> Any:  # noqa: ANN401  a module that needs torch
    try:
        from lightdp_lab.prior import commands  # noqa: PLC0415  needs optional dependencies
    except ImportError:
        raise MissingExtraError("train", "lightdp prior") from None
    return commands


def _make(
    flags: dict[str, Any],
    *,
    seconds: Annotated[float | None, typer.Option(help="The most that it may take.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("start.safetensors"),
    device: Device = "auto",
) -> None:
    """Train with a progress bar on standard error, and write the file."""
    recipe = Recipe(**flags)
    with progress() as bar:
        task = bar.add_task("making images", total=recipe.steps)

        def watch(made: Made) -> None:
            words = f"loss {made.loss:.3f}, {made.rate:,.0f} views/s"
            bar.update(task, completed=made.step, total=made.steps, description=words)

        try:
            _commands().make(recipe, out=out, seconds=seconds, device=device, watch=watch)
        except KeyboardInterrupt:
            bar.stop()
            _interrupted(f"interrupted; {out} has the weights so far" if out.exists() else "interrupted")


app.command(name="make", help=_MAKE)(with_settings(_make, Recipe))


@app.command(help="A linear model on the features of a start, without noise.")
def probe(start: Start, *, data_path: DataPath = None, held_out: HeldOut = False, device: Device = "auto") -> None:
    """Print its accuracy."""
    _commands().probe(start=start, data_path=data_path, held_out=held_out, device=device)


@app.command(help="Train privately from a start.")
def train(
    start: Start,
    *,
    epsilon: Budgets = "3,6,9",
    seeds: Seeds = "0,1,2",
    schemes: Schemes = "repair",
    data_path: DataPath = None,
    held_out: HeldOut = False,
    length: Annotated[float, typer.Option(help="Length of every filter.")] = 1.5,
    changes: Changes = [],  # noqa: B006  typer's way
    results: Folder = Path("results"),
    device: Device = "auto",
) -> None:
    """Run what is missing, and print."""
    try:
        _commands().train(
            start=start, epsilon=epsilon, seeds=seeds, schemes=schemes, data_path=data_path, held_out=held_out,
            length=length, changes=changes, results=results, device=device,
        )  # fmt: skip
    except KeyboardInterrupt:
        _interrupted("interrupted; the same command goes on from here")


@app.command(help="A private linear model on the features of a start and those of scattering, side by side.")
def linear(
    start: Start,
    *,
    epsilon: Budgets = "3",
    seeds: Seeds = "0,1,2",
    schemes: Schemes = "repair",
    data_path: DataPath = None,
    held_out: HeldOut = False,
    scale: Annotated[float, typer.Option(help="Of the start's features.")] = 14.0,
    changes: Changes = [],  # noqa: B006
    results: Folder = Path("results"),
    device: Device = "auto",
) -> None:
    """Run what is missing, and print."""
    try:
        _commands().linear(
            start=start, epsilon=epsilon, seeds=seeds, schemes=schemes, data_path=data_path, held_out=held_out,
            scale=scale, changes=changes, results=results, device=device,
        )  # fmt: skip
    except KeyboardInterrupt:
        _interrupted("interrupted; the same command goes on from here")


def _interrupted(text: str) -> None:
    typer.echo(text, err=True)
    sys.exit(130)

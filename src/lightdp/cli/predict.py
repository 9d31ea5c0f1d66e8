"""`lightdp predict`: a model that `lightdp run --save-model` kept, used on the rows of a table.

A row in, a line out: the class that is predicted, and the probability of each. What is more to say (values beyond
bounds, the accuracy on rows with labels) goes to standard error, so that standard output is a table.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lightdp._files import durable
from lightdp._validate import counted
from lightdp.cli import _output
from lightdp.errors import MissingExtraError

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def command(
    *,
    model: Annotated[Path, typer.Argument(help="The model: a .safetensors file of a run on a table.")],
    table: Annotated[Path, typer.Argument(help="The rows: a .csv, .parquet or .npz file.")],
    out: Annotated[Path | None, typer.Option(help="Write the predictions to this new .csv file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --out replace a file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of CSV.")] = False,
) -> None:
    """Read both, predict, and write a line for each row."""
    if out is not None:
        _output.check("out", out, [".csv"], overwrite=overwrite)  # before the work
    try:
        from lightdp.training.predict import predict  # noqa: PLC0415  takes seconds to import
    except ImportError:
        raise MissingExtraError("train", "lightdp predict") from None
    found = predict(model, table)
    text = _csv(found)
    if out is not None:
        _write(out, text, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(_json(found), allow_nan=False))
        return
    for note in found.notes:
        typer.echo(note, err=True)
    if found.accuracy is not None:
        on = counted(found.labelled, "row")
        typer.echo(f"accuracy {found.accuracy:.2%} on {on}: not private, a figure of these rows alone", err=True)
    typer.echo(text if out is None else f"wrote {out}", nl=out is not None)


def _csv(found: Any) -> str:  # noqa: ANN401  imported late
    """The class and the probabilities of each row."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["predicted", *(f"probability_{name}" for name in found.classes)])
    for name, shares in zip(found.names, found.probabilities.tolist(), strict=True):
        lines.writerow([name, *(f"{share:.6f}" for share in shares)])
    return text.getvalue()


def _json(found: Any) -> dict[str, Any]:  # noqa: ANN401  likewise
    """All that was found."""
    told = zip(found.names, found.probabilities.tolist(), strict=True)
    return {
        "label": found.label,
        "classes": [*found.classes],
        "predictions": [
            {"predicted": name, "probabilities": dict(zip(found.classes, shares, strict=True))} for name, shares in told
        ],
        "accuracy": found.accuracy,
        "labelled": found.labelled,
        "notes": [*found.notes],
    }


def _write(out: Path, text: str, *, overwrite: bool) -> None:
    """The text in a file, whole or not at all; one that came since the check is not replaced unasked."""
    try:
        with durable(out, replace=overwrite) as file:
            file.write(text.encode())
    except FileExistsError:
        raise _output.used("out", out) from None

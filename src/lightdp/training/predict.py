"""A model that was kept (`Run.save`), used on the rows of another table.

The file of the model says how rows become features, so that they are encoded as in training, by the same code:
`lightdp.training.data.Schema`. Nothing here costs privacy: a private model may be used as often as one likes. What is
predicted for a row depends on that row, though, and is as private as that row is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lightdp._validate import counted
from lightdp.errors import ArgumentError
from lightdp.training import bounds, models, weights
from lightdp.training.bounds import Bounds, Unscaled
from lightdp.training.data import Schema, read_for

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of the rows of a table.

    Attributes:
        label: the column that it predicts.
        classes: their names.
        places: the class of each row, by its place in `classes`. (n,)
        probabilities: of each class, by the model. (n, classes)
        labelled: how many rows have a label.
        accuracy: the share of these that was predicted, in the clear; None without any.
        notes: what to know of the rows, in plain words.
    """

    label: str
    classes: tuple[str, ...]
    places: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    labelled: int
    accuracy: float | None
    notes: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The class of each row."""
        return [self.classes[place] for place in self.places.tolist()]


@dataclass(frozen=True, eq=False)
class _Kept:
    """A model as its file has it.

    Attributes:
        schema: how rows become features.
        found: bounds that were found privately, by column.
        module: the model.
    """

    schema: Schema
    found: dict[str, Bounds]
    module: torch.nn.Module


def predict(model: Path | str, table: Path | str) -> Predictions:
    r"""Classes of the rows of a table, by a model that a run on another table has kept.

    >>> import lightdp
    >>> settings = {"clients": 4, "colluders": 1, "stragglers": 1, "rounds": 3, "epsilon": 8.0}
    >>> _ = Path("columns.toml").write_text('age = [0, 100]', encoding="utf-8")
    >>> _ = Path("old.csv").write_text("age,sick\n" + "20,no\n80,yes\n" * 40, encoding="utf-8")
    >>> _ = Path("new.csv").write_text("age\n90\n", encoding="utf-8")
    >>> config = lightdp.Config(data="old.csv", label="sick", columns="columns.toml", **settings)
    >>> run = lightdp.Run(config, "old.jsonl")
    >>> _ = run.finish()
    >>> run.save("old.safetensors")
    >>> lightdp.predict("old.safetensors", "new.csv").names
    ['yes']

    Args:
        model: a .safetensors file that `Run.save` or `--save-model` wrote after a run on a table.
        table: a .csv, .parquet or .npz file with the columns that the model sees, in any order; others are ignored but
            that of the label, if there is one, which gives the accuracy on these rows.

    Raises:
        ArgumentError: a file is missing, damaged or something else, or a column that the model needs is missing or
            wrong.
        MissingExtraError: Parquet without pyarrow.
    """
    kept = _read(Path(model))
    schema = kept.schema
    cells = read_for(Path(table), schema)
    encoded, unscaled = schema.encoded(cells)
    raw = torch.from_numpy(encoded)
    at = [place for _, place in unscaled]
    x = Unscaled(at, raw[:, at].clone()).scaled(raw, [kept.found[name] for name, _ in unscaled])
    with torch.no_grad():
        scores = torch.cat([kept.module(part) for part in x.split(models.EVALUATION_BATCH)])
    if not bool(torch.isfinite(scores).all()):
        raise ArgumentError(f"model must give finite scores, got others from model={str(model)!r}")
    places = scores.argmax(dim=1).numpy()
    truth = schema.labels(cells)
    known = np.zeros(len(places), bool) if truth is None else truth != -2
    notes = schema.remarks(cells, {name: (low, high) for name, low, high, _ in kept.found.values()})
    return Predictions(
        label=schema.label, classes=schema.classes, places=places,
        probabilities=scores.double().softmax(dim=1).numpy(), labelled=int(known.sum()),
        accuracy=float((places == truth)[known].mean()) if known.any() else None,
        notes=(*notes, *_strange(schema, truth)),
    )  # fmt: skip


def _strange(schema: Schema, truth: NDArray[np.int64] | None) -> list[str]:
    """How many rows have a label that the model does not know, if any do."""
    count = 0 if truth is None else int((truth == -1).sum())
    what = f"{schema.label}: {counted(count, 'row')} with a label that is no class of the model, counted as wrong"
    return [what] if count > 0 else []


def _read(path: Path) -> _Kept:
    """The model in a file.

    Raises:
        ArgumentError: it is none that a run on a table has kept, or damaged.
    """
    file = weights.read(path, option="model")
    if "table" not in file.facts:
        raise ArgumentError(
            "model must be a .safetensors file that says how rows become features, as a run on a table with a file of "
            f"columns keeps it (--save-model), got model={str(path)!r}, which does not say so"
        )
    try:
        told = json.loads(file.facts["table"])
        schema = Schema.from_dict(told)
        found = bounds.of_facts(json.loads(file.facts.get("bounds", "{}")))
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ArgumentError(f"model must say how rows become features, got model={str(path)!r}: {why}") from None
    name = told.get("model")
    if not isinstance(name, str):
        raise ArgumentError(f"model must be one that lightdp builds, got an own module in model={str(path)!r}")
    if unknown := [each for each in schema.private if each not in found]:
        raise ArgumentError(
            f"model must have the bounds of its private columns, got model={str(path)!r} without those of "
            f"{', '.join(unknown)}: its run ended before they were found"
        )
    return _Kept(schema, found, _module(path, name, schema, file))


def _module(path: Path, name: str, schema: Schema, file: weights.File) -> torch.nn.Module:
    """The model that a file names, with its weights.

    Raises:
        ArgumentError: there is none of that name for rows of a table, or the weights do not fit.
    """
    result = None
    if schema.width * len(schema.classes) <= sum(value.numel() for value in file.tensors.values()):  # a bounded size
        result = models.build(name, (schema.width,), len(schema.classes), seed=0)
        fits = {key: value.shape for key, value in result.state_dict().items()}
    if result is None or fits != {key: value.shape for key, value in file.tensors.items()}:
        made = f"{counted(schema.width, 'feature')} and {len(schema.classes)} classes"
        raise ArgumentError(f"model must have weights for {made}, got others in model={str(path)!r}")
    if not all(value.dtype in _FLOATS and bool(value.isfinite().all()) for value in file.tensors.values()):
        wanted = "finite weights of float16, bfloat16, float32 or float64"
        raise ArgumentError(f"model must have {wanted}, got others in model={str(path)!r}")
    result.load_state_dict(dict(file.tensors))
    return result

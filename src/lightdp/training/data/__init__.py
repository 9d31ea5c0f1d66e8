"""Records and labels to train on: embedded, from the publishers' own files, or from a file of the user's own.

Files come from outside and are not trusted: nothing in them is executed, and a file that is missing, truncated or wrong
ends in one line that says what was wanted, where it was looked for, and how to get it. Nothing is downloaded.

>>> digits = load("digits")
>>> digits.train_x.shape, digits.test_x.shape, digits.classes
((1438, 1, 8, 8), (359, 1, 8, 8), 10)
"""

from __future__ import annotations

import dataclasses
import importlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training.data import _cifar10, _fashion_mnist, _heart, _own, _table
from lightdp.training.data._made import VARIABLE, Dataset, made, reading, unit
from lightdp.training.data._own import Layout, Owners
from lightdp.training.data._schema import Schema
from lightdp.training.data._table import Table

__all__ = [
    "NAMES", "NATURAL", "VARIABLE", "Dataset", "Layout", "Schema", "Table", "load", "read_for",
]  # fmt: skip

_PUBLISHED = {source.name: source for source in (_fashion_mnist.SOURCE, _cifar10.SOURCE)}
NAMES = ("digits", "heart", *_PUBLISHED)
NATURAL = ("heart",)
"""Data that come from clients of their own."""
_DRAWN = Layout()
_NPZ_HELP = "numpy.savez writes such files: with x_train, y_train, x_test and y_test, or with x and y"


def load(name: str, path: Path | None = None, layout: Layout = _DRAWN) -> Dataset:
    """The data called `name`: the same bits on every call.

    Guarantee: a `Dataset` is checked (finite records, one label for each, labels in 0..classes-1), and reading it
    runs no code from the files, not even from pickles.

    >>> sorted(set(load("digits").test_y.tolist()))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> load("heart").client_names
    ('cleveland', 'hungarian', 'switzerland', 'va')

    Args:
        name: one of `NAMES`, or the path of a .csv, .parquet or .npz file. An .npz without a label in `layout` holds
            x and y: uint8 is scaled by 1/255 and every other number is taken as it is; images are (n, height, width)
            or channels first; x and y alone are split.
        path: the folder (or for `cifar10` the publishers' archive) to read. By default the folder that the
            environment variable LIGHTDP_DATA names, and for `fashion-mnist` then where Debian's package puts it.
        layout: what the columns of a table are, and what is held out to test.

    Raises:
        ArgumentError: a file is missing, damaged or not what it should be.
        MissingExtraError: `digits` without scikit-learn, or Parquet without pyarrow.
    """
    if path is not None and name not in _PUBLISHED:
        raise ArgumentError(f"data={name!r} takes no path, got path={str(path)!r}")
    file = Path(name)
    if file.suffix in _table.KINDS:
        return _own.read(file, layout) if layout.label is not None or file.suffix != ".npz" else _npz(file, layout)
    for option, value in layout.asked.items():
        if (name, option) != ("heart", "test_fraction"):
            raise ArgumentError(f"{option} is for tables ({', '.join(_table.KINDS)}), got {option}={value!r}")
    if name in _PUBLISHED:
        return _PUBLISHED[name].load(path)
    if name == "digits":
        return _digits()
    if name == "heart":
        return _heart.load(layout)
    kinds = ", ".join(_table.KINDS[:-1])
    raise ArgumentError(
        f"data must be one of {', '.join(NAMES)} or a path ending in {kinds} or {_table.KINDS[-1]}, got data={name!r}"
    )


def read_for(path: Path, schema: Schema) -> Table:
    """The columns of a table that a model is to be used on.

    Args:
        path: a .csv, .parquet or .npz file.
        schema: what the model needs of it.

    Raises:
        ArgumentError: the file is missing, damaged or empty, or a column that the model needs is missing or wrong.
        MissingExtraError: Parquet without pyarrow.
    """
    if path.suffix not in _table.KINDS:
        raise ArgumentError(f"table must be a file that ends in {', '.join(_table.KINDS)}, got table={str(path)!r}")
    found = _table.read(path)
    schema.check(found)
    return found


def _digits() -> Dataset:
    """1,797 handwritten digits of 8 × 8 pixels with values 0..16, embedded in scikit-learn."""
    try:
        source: Any = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtraError("train", "data='digits'") from error
    pixels, labels = source.load_digits(return_X_y=True)
    return _split("digits", (pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32), labels, classes=10)


def _npz(path: Path, layout: Layout) -> Dataset:
    """Arrays of the user's own, never objects; one that says of each record at which client it is, or whose."""
    if layout.columns is not None:
        raise ArgumentError(f"columns needs label, since x is taken as it is, got columns={layout.columns!r}")
    with reading(path, _NPZ_HELP), path.open("rb") as raw:  # numpy itself would leave a damaged file open
        if not zipfile.is_zipfile(raw):
            raise ValueError("it is cut short or no .npz file")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in file]
            if not missing:
                for option, value in layout.asked.items():
                    raise ArgumentError(f"{option} needs x and y that are not split yet, got {option}={value!r}")
                train_x, test_x = (_features(name, file[name]) for name in ("x_train", "x_test"))
                return made(str(path), (train_x, file["y_train"]), (test_x, file["y_test"]))
            if "x" not in file or "y" not in file:
                raise ValueError(f"{', '.join(missing)} not found in it")
            x, y = _features("x", file["x"]), file["y"]
            if len(x) < 5 or y.shape != (len(x),):
                raise ValueError(f"x {x.shape} and y {y.shape} must hold 5 or more records with one label each")
            others = {name: file[name] for name in file.files if name not in {"x", "y"} and file[name].ndim == 1}
            owners = Owners.of(layout, others, len(x))
            return _split(str(path), x, y, owners=owners, fraction=layout.held_out)


def _features(name: str, x: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as float32, bytes scaled to [0, 1], images with their channels first."""
    if x.dtype.kind not in "uif":
        raise ValueError(f"{name} must hold numbers, got {x.dtype}")
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"{name} must have shape (n, features) or (n, channels, height, width), got {x.shape}")
    if x.ndim == 4 and x.shape[1] == x.shape[2] > 3 >= x.shape[3]:
        raise ValueError(f"{name} must have its channels first, got shape {x.shape}")
    with np.errstate(over="ignore"):  # too large values become infinite, and are then refused
        values = unit(x) if x.dtype == np.uint8 else x.astype(np.float32)
    return values[:, None] if x.ndim == 3 else values


def _split(
    name: str, x: NDArray[np.float32], y: NDArray[Any], classes: int | None = None, *,
    owners: Owners | None = None, fraction: float = _own.HELD_OUT,
) -> Dataset:  # fmt: skip
    """Records in one fixed random order: the first ones to test, the rest to train on."""
    whose = Owners.of(_DRAWN, {}, len(x)) if owners is None else owners
    train, test = whose.parts(fraction)
    result = made(name, (x[train], y[train]), (x[test], y[test]), classes)
    return dataclasses.replace(result, **whose.fields(train, test))

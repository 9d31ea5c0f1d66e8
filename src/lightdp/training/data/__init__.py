"""Records and labels to train on: embedded, from the publishers' own files, or from an .npz of the user's.

Files come from outside and are not trusted: nothing they hold is run, and whatever is missing, cut short or out
of range ends in one line that says what was looked for, where, and where to get it. Nothing is ever downloaded.
"""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training.data._cifar10 import cifar10
from lightdp.training.data._fashion_mnist import fashion_mnist
from lightdp.training.data._made import VARIABLE, Dataset, made, reading, unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NAMES", "VARIABLE", "Dataset", "load"]

NAMES = ("digits", "fashion-mnist", "cifar10")

_NPZ_HELP = "numpy.savez writes such files: with x_train, y_train, x_test and y_test, or with x and y"


def load(name: str, path: Path | None = None) -> Dataset:
    """The data called `name`: the same bits on every call.

    Args:
        name: one of `NAMES`, or the path of an .npz. Of an .npz, uint8 is scaled by 1/255 and every other number is
            taken as it is; pictures are (n, height, width) or channels first; x and y alone are split 80/20.
        path: the folder (or for `cifar10` the publishers' archive) to read. By default the folder that the
            environment variable LIGHTDP_DATA names, and for `fashion-mnist` then where Debian's package puts it.

    Raises:
        ArgumentError: a file is missing, damaged or not what it should be.
        MissingExtraError: `digits` without scikit-learn.
    """
    if path is not None and name not in NAMES[1:]:
        raise ArgumentError(f"data={name!r} takes no path, got path={str(path)!r}")
    if name == "digits":
        return _digits()
    if name == "fashion-mnist":
        return fashion_mnist(path)
    if name == "cifar10":
        return cifar10(path)
    if name.endswith(".npz"):
        return _npz(Path(name))
    raise ArgumentError(f"data must be one of {', '.join(NAMES)} or a path ending in .npz, got data={name!r}")


def _digits() -> Dataset:
    """1,797 handwritten digits of 8 × 8 points with values 0..16, embedded in scikit-learn."""
    try:
        source: Any = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtraError("train", "data='digits'") from error
    points, labels = source.load_digits(return_X_y=True)
    x = (points.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    train, test = _held_out(len(x))
    return made("digits", (x[train], labels[train]), (x[test], labels[test]), classes=10)


def _npz(path: Path) -> Dataset:
    """Arrays of the user's own, never objects."""
    with reading(path, _NPZ_HELP), path.open("rb") as raw:  # numpy itself would leave a damaged file open
        if not zipfile.is_zipfile(raw):
            raise ValueError("it is cut short or no .npz file")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            if missing := [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in file]:
                if "x" not in file or "y" not in file:
                    raise ValueError(f"{', '.join(missing)} not found in it")
                x, y = _features("x", file["x"]), file["y"]
                if len(x) < 5 or y.shape != (len(x),):
                    raise ValueError(f"x {x.shape} and y {y.shape} must hold 5 or more records with one label each")
                train, test = _held_out(len(x))
                return made(str(path), (x[train], y[train]), (x[test], y[test]))
            train_x, test_x = (_features(name, file[name]) for name in ("x_train", "x_test"))
            return made(str(path), (train_x, file["y_train"]), (test_x, file["y_test"]))


def _features(name: str, x: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as float32, bytes scaled to [0, 1], pictures with their channels first."""
    if x.dtype.kind not in "uif":
        raise ValueError(f"{name} must hold numbers, got {x.dtype}")
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"{name} must have shape (n, features) or (n, channels, height, width), got {x.shape}")
    if x.ndim == 4 and x.shape[1] == x.shape[2] > 3 >= x.shape[3]:
        raise ValueError(f"{name} must have its channels first, got shape {x.shape}")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and that is refused
        values = unit(x) if x.dtype == np.uint8 else x.astype(np.float32)
    return values[:, None] if x.ndim == 3 else values


def _held_out(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """n records in one fixed random order: the last four fifths to train on, the first fifth to test."""
    # the raw words of a bit generator are the same in every version of numpy, its shuffles need not be
    words = np.random.PCG64(0).random_raw(n)  # noqa: TID251  shuffling, nothing that protects
    order = np.argsort(words, kind="stable")
    return order[n // 5 :], order[: n // 5]

"""What every source of data shares: the checked result, where to look, and one line for any damage."""

from __future__ import annotations

import dataclasses
import os
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import integer
from lightdp.errors import ArgumentError, LightDPError

if TYPE_CHECKING:
    from lightdp.training.data._schema import Schema

Part = tuple["NDArray[Any]", "NDArray[Any]"]  # records and labels
VARIABLE = "LIGHTDP_DATA"  # an environment variable: the folder that holds fashion-mnist/ and cifar10/

_DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, MemoryError),
    *(zlib.error, zipfile.BadZipFile, tarfile.TarError, tokenize.TokenError),  # the last from numpy
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test records, checked: finite, one label for each record, labels in 0..classes-1.

    >>> x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    >>> Dataset(name="mine", train_x=x, test_x=x, train_y=y, test_y=y, classes=2).train_x.shape
    (4, 3)

    Attributes:
        name: what was loaded.
        train_x: float32, (n, features) or images as (n, channels, height, width), best scaled to [0, 1].
        test_x: as train_x.
        train_y: int64. (n,)
        test_y: as train_y.
        classes: how many labels there are.
        client_names: names of the clients that the data come from; none if clients are to be drawn.
        train_client: which of them holds each training record, each of them at least one. (n,)
        test_client: as train_client; some may have none.
        train_person: whose record it is, by any number; None if each record is a person's only one. (n,)
        unscaled: names and places of features that are numbers of any size, NaN where one is missing, whose bounds the
            first rounds of a run find (E6).
        notes: what to know of the data, in plain words.
        encoded: how rows of a table became features and labels, by public knowledge, and the arrays of these: those of
            training and test records, and their labels. None for all else.

    Raises:
        ArgumentError: an array has another type or shape, or a value is out of range; the message names it.
    """

    name: str
    train_x: NDArray[np.float32]
    test_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_y: NDArray[np.int64]
    classes: int
    client_names: tuple[str, ...] = ()
    train_client: NDArray[np.int64] | None = None
    test_client: NDArray[np.int64] | None = None
    train_person: NDArray[np.int64] | None = None
    unscaled: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    encoded: tuple[Schema, tuple[NDArray[Any], ...]] | None = dataclasses.field(default=None, repr=False)

    @property
    def schema(self) -> Schema | None:
        """How rows of a table became these records, which a file of the model says as well (`Run.save`).

        Guarantee: None if one of the arrays is not the one that was made so, as it may be in a changed copy.
        """
        if self.encoded is None:
            return None
        schema, made = self.encoded
        arrays = self.train_x, self.test_x, self.train_y, self.test_y
        return schema if all(one is other for one, other in zip(made, arrays, strict=True)) else None

    def __post_init__(self) -> None:
        integer("classes", self.classes, 2)
        self._check_parts()
        self._check_finite()
        self._check_owners()

    def _check_owners(self) -> None:
        """Clients and persons must fit the records, and a person be at one client."""
        records, named = {"train": len(self.train_y), "test": len(self.test_y)}, len(self.client_names)
        for name in ("train_client", "test_client", "train_person"):
            value, wanted = getattr(self, name), records[name.partition("_")[0]]
            if value is None and (named == 0 or name == "train_person"):
                continue
            _check_array(name, value, np.int64)
            if value.shape != (wanted,):
                raise ArgumentError(f"{name} must have shape ({wanted},), got {value.shape}")
            if name != "train_person" and not (named and 0 <= value.min() <= value.max() < named):
                raise ArgumentError(f"{name} must be in 0..{named - 1}, got {value.min()}..{value.max()}")
        if self.train_client is None:
            return
        if len(set(self.client_names)) < named or len(np.unique(self.train_client)) < named:
            raise ArgumentError(f"client_names must be different, each with training records, got {named} names")
        if self.train_person is not None:
            pairs = np.unique(np.stack([self.train_person, self.train_client]), axis=1)
            if len(np.unique(pairs[0])) < pairs.shape[1]:
                raise ArgumentError("train_person must have each person at one client, got one at several")

    def _check_parts(self) -> None:
        """Records and labels must be what they should be."""
        shape = np.shape(self.train_x)[1:]
        for part in ("train", "test"):
            x, y = getattr(self, f"{part}_x"), getattr(self, f"{part}_y")
            _check_array(f"{part}_x", x, np.float32)
            if x.ndim < 2 or x.size == 0 or x.shape[1:] != shape:
                wanted = ", ".join(["n", *map(str, shape)]) if part == "test" and x.ndim >= 2 else "n, features"
                raise ArgumentError(f"{part}_x must have shape ({wanted}) and hold records, got shape {x.shape}")
            _check_array(f"{part}_y", y, np.int64)
            if y.shape != (len(x),):
                raise ArgumentError(f"{part}_y must have shape ({len(x)},), a label for each record, got {y.shape}")
            if not 0 <= y.min() <= y.max() < self.classes:
                raise ArgumentError(f"{part}_y must be in 0..{self.classes - 1}, got {y.min()}..{y.max()}")

    def _check_finite(self) -> None:
        """Features must be finite; unscaled ones may be missing."""
        places, width = [place for _, place in self.unscaled], self.train_x.shape[1]
        for place in places:
            integer("unscaled", place, 0, width - 1)
        if places and (self.train_x.ndim != 2 or len(set(places)) < len(places)):
            raise ArgumentError(f"unscaled must be different features of records without pixels, got {self.unscaled}")
        for part in ("train_x", "test_x"):
            x = getattr(self, part)
            wrong = ~np.isfinite(x)
            wrong[:, places] &= ~np.isnan(x[:, places])
            if wrong.any():
                raise ArgumentError(f"{part} must be finite, got {x[wrong][0]}")


def made(name: str, train: Part, test: Part, classes: int | None = None) -> Dataset:
    """A `Dataset` with everything that it promises, or ValueError.

    Where `classes` is not known, the labels must be 0..k-1 with each of them used: labels that begin at 1, or
    numbers that are no labels at all, are found out.
    """
    for part, (x, y) in (("training", train), ("test", test)):
        if x.size == 0 or x.shape[1:] != train[0].shape[1:]:
            raise ValueError(f"the {part} records have shape {x.shape}, the training records {train[0].shape}")
        if y.dtype.kind not in "ui" or y.shape != (len(x),):
            raise ValueError(f"the {part} labels must be {len(x)} integers, got {y.dtype} of shape {y.shape}")
    used = np.unique(np.concatenate([np.unique(y).astype(object) for _, y in (train, test)]))
    top = len(used) - 1 if classes is None else classes - 1
    if used[0] < 0 or used[-1] > top:
        raise ValueError(f"the labels must be 0..{top}, got {len(used)} different ones in {used[0]}..{used[-1]}")
    if top < 1:
        raise ValueError("all records have the same label")
    try:
        return Dataset(name, train[0], test[0], train[1].astype(np.int64), test[1].astype(np.int64), top + 1)
    except ArgumentError as error:
        raise ValueError(str(error)) from None


def _check_array(name: str, value: object, dtype: type[np.generic]) -> None:
    if not isinstance(value, np.ndarray):
        raise ArgumentError(f"{name} must be a numpy array of {dtype.__name__}, got {type(value).__name__}")
    if value.dtype != dtype:
        raise ArgumentError(f"{name} must be of {dtype.__name__}, got {value.dtype}")


def unit(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """0..255 as 0..1."""
    return np.divide(x, np.float32(255), order="C")


@dataclass(frozen=True)
class Source:
    """Files of images in ten classes that somebody else publishes.

    Attributes:
        name: of the data, and of its folder under $LIGHTDP_DATA.
        sought: the files, in words.
        where: how to get them, in words.
        files: their names.
        read: gives training and test images, in bytes, and their labels from the place that holds the files.
        usual: folders to look into after those of a path or the environment variable.
        inner: archives and folders that may hold the files inside such a folder.
    """

    name: str
    sought: str
    where: str
    files: tuple[str, ...]
    read: Callable[[Path], tuple[Part, Part]]
    usual: tuple[Path, ...] = ()
    inner: tuple[str, ...] = ()

    def load(self, path: Path | None) -> Dataset:
        """The data, from `path` if given."""
        place = self.find(path)
        with reading(place, self.where):
            train, test = ((unit(x), y) for x, y in self.read(place))
            return made(self.name, train, test, classes=10)

    def find(self, path: Path | None) -> Path:
        """The first archive, or folder with any of the files: in `path` if given, else in the default places."""
        named = [Path(os.environ[VARIABLE], self.name)] if VARIABLE in os.environ else []
        roots = [*named, *self.usual] if path is None else [Path(path)]
        for place in (root / inner for root in roots for inner in ("", *self.inner)):
            if place.is_file() or any((place / file).is_file() for file in self.files):
                return place
        looked = " and ".join(map(str, roots)) or f"no folder, as ${VARIABLE} is not set"
        raise ArgumentError(f"{self.name} not found: looked for {self.sought} in {looked}; {self.where}")


@contextmanager
def reading(place: Path, where: str) -> Iterator[None]:
    """Turn any damage of the files at `place` into one line that ends with where to get good ones."""
    try:
        yield
    except LightDPError:
        raise
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror is not None else str(error)
        text = " ".join(reason.split()) or type(error).__name__
        raise ArgumentError(f"cannot read the data in {place}: {text}; {where}") from error

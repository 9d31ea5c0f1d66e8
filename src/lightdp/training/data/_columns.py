"""What is publicly known about the columns of a table, and features made of nothing else.

A TOML file has a line for each column that the model sees:

    age = [20, 80]                 # a number and its bounds
    sex = ["f", "m"]               # a category and its values
    chol = [100, 400, "missing"]   # "missing" adds a feature: 1 where the cell is empty
    crp = "private"                # a number whose bounds the first rounds find, or "private, missing"

Bounds and values must come from public knowledge (what a doctor would write down without seeing the table), since no
noise covers them. Numbers are moved to the nearest bound and scaled to [-1, 1]; a missing one counts as the middle of
its bounds. A category is one feature for each value; a missing or unlisted one has 0 in all of them. So the number of
features, and what a row becomes, depend on the file and on that row alone.

`STATISTICS` instead of a file takes bounds and values from the training part. That is not private, and is said.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import counted
from lightdp.errors import ArgumentError
from lightdp.runlog import STATISTICS
from lightdp.training.data._table import Column, Table, listed, missing, numbers, quoted, texts

_MISSING, _PRIVATE = "missing", "private"
_FORM = 'NAME = [LOW, HIGH] or NAME = "private" for numbers or NAME = ["a", "b"] for categories'
_MOST_VALUES = 1000
LARGEST = 1e30
"""Of a bound, so that sums and products stay finite."""


@dataclass(frozen=True)
class Number:
    """A number between two bounds.

    >>> Number("age", 20, 80).features(np.array([20.0, 50.0, 95.0, np.nan])).ravel().tolist()
    [-1.0, 0.0, 1.0, 0.0]

    Attributes:
        name: of its column.
        low: the least value.
        high: the largest.
        shows_missing: whether a feature says that the cell is empty.
    """

    name: str
    low: float
    high: float
    shows_missing: bool = False

    def features(self, cells: Column) -> NDArray[np.float32]:
        """(rows, 1), or (rows, 2) where missing cells are shown."""
        found = numbers(self.name, cells)
        scaled = 2 * (np.clip(found, self.low, self.high) - self.low) / (self.high - self.low) - 1
        empty = np.isnan(found)
        return _joined([np.where(empty, 0.0, scaled)], empty, shown=self.shows_missing)

    def remark(self, cells: Column, *, strict: bool = True) -> str | None:
        """How many values lie outside of the bounds, if any do; where all do, an error if `strict`."""
        found = numbers(self.name, cells)
        outside, held = int(((found < self.low) | (found > self.high)).sum()), int((~np.isnan(found)).sum())
        if strict and 0 < held == outside:
            bounds = f"{self.name} = [{self.low:g}, {self.high:g}]"
            raise ArgumentError(f"columns must have bounds between which values lie, got {bounds} and none between")
        moved = f"{outside:,} of {counted(held, 'value')} moved to the bounds {self.low:g} and {self.high:g}"
        return f"{self.name}: {moved}" if outside > 0 else None


@dataclass(frozen=True)
class Category:
    """One of several values.

    >>> Category("sex", ("f", "m")).features(np.array(["m", "f", "?"], dtype=object)).tolist()
    [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]

    Attributes:
        name: of its column.
        values: all that it may have.
        shows_missing: whether a feature says that the cell is empty.
    """

    name: str
    values: tuple[str, ...]
    shows_missing: bool = False

    def places(self, cells: Column) -> NDArray[np.int64]:
        """Where each cell stands among the values: -1 if it is none of them, -2 if it is missing."""
        known = {_plain(value): place for place, value in enumerate(self.values)}
        known |= {value: place for place, value in enumerate(self.values)}
        raw = (cell.strip() if isinstance(cell, str) else cell for cell in cells.tolist())  # "NA" may be a value
        found = (known.get(cell, -3) if isinstance(cell, str) else -3 for cell in raw)
        rest = ((-2 if text == "" else known.get(_plain(text), -1)) for text in texts(cells))
        return np.array([place if place >= 0 else other for place, other in zip(found, rest, strict=True)], np.int64)

    def features(self, cells: Column) -> NDArray[np.float32]:
        """(rows, values), and one more where missing cells are shown."""
        places = self.places(cells)
        return _joined([places == place for place in range(len(self.values))], places == -2, shown=self.shows_missing)

    def remark(self, cells: Column, *, strict: bool = True) -> str | None:
        """How many cells are none of the values, if any are; where all are, an error if `strict`."""
        places = self.places(cells)
        other, held = int((places == -1).sum()), int((places != -2).sum())
        if strict and 0 < held == other:
            first = quoted(texts(cells)[int(np.flatnonzero(places == -1)[0])])
            what = f"{self.name} = {list(self.values)[:8]} and cells such as {first}"
            raise ArgumentError(f"columns must have values that occur, got {what}")
        return f"{self.name}: {other:,} of {counted(held, 'value')} not listed, taken as missing" if other > 0 else None


@dataclass(frozen=True)
class Unbounded:
    """A number whose bounds the first rounds of a run find (E6).

    >>> Unbounded("crp").features(np.array(["3", "", "1e40"], dtype=object)).ravel().tolist()
    [3.0, nan, 1.0000000150474662e+30]

    Attributes:
        name: of its column.
        shows_missing: whether a feature says that the cell is empty.
    """

    name: str
    shows_missing: bool = False

    def features(self, cells: Column) -> NDArray[np.float32]:
        """(rows, 1), as the table has it, NaN where it is missing; or (rows, 2) where missing cells are shown."""
        found = numbers(self.name, cells, form='"private"')
        return _joined([np.clip(found, -LARGEST, LARGEST)], np.isnan(found), shown=self.shows_missing)

    def remark(self, cells: Column, *, strict: bool = True) -> str | None:
        """Nothing: bounds are not known yet."""


Feature = Number | Category | Unbounded


def read(path: Path) -> dict[str, Feature]:
    """The columns that a file describes, by name.

    Raises:
        ArgumentError: the file is missing or no TOML, or describes a column in another form.
    """
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror is not None else error
        raise ArgumentError(
            f"columns must be a TOML file with {_FORM}, or {STATISTICS}, got columns={str(path)!r}: {reason}"
        ) from None
    if not written:
        raise ArgumentError(f"columns must describe columns as {_FORM}, got an empty file {str(path)!r}")
    if hidden := [name for name in written if not name.isprintable()]:
        raise ArgumentError(f"columns must have names that can be printed, got {quoted(hidden[0])}")
    return {name: _feature(name, value) for name, value in written.items()}


def measured(table: Table, names: Iterable[str]) -> tuple[list[Feature], list[str]]:
    """Columns described by their own values, which is not private; and names of those that hold one value at most.

    Args:
        table: the training part.
        names: of the columns.

    Raises:
        ArgumentError: a column of texts has too many values for a category.
    """
    found: list[Feature] = []
    constant = []
    for name in names:
        cells = table[name]
        held = np.array([not missing(cell) for cell in cells.tolist()])
        shown = not bool(held.all())
        try:
            values = numbers(name, cells)[held]
        except ArgumentError:
            different = sorted(set(texts(cells[held])))
            if len(different) > min(_MOST_VALUES, max(2, len(cells) // 2)):
                many = f"{len(different):,} different ones in {len(cells):,} rows"
                raise ArgumentError(
                    f"columns must leave out {name!r}, which has too many values for a category ({many}); write a "
                    f"file of columns instead, got columns={STATISTICS!r}"
                ) from None
            found += [Category(name, tuple(different), shown)] if len(different) > 1 else []
        else:
            found += [Number(name, values.min(), values.max(), shown)] if len(np.unique(values)) > 1 else []
        constant += [] if found and found[-1].name == name else [name]
    return found, constant


def _feature(name: str, value: object) -> Feature:
    """What the file says of a column."""
    if isinstance(value, str) and (words := value.replace(" ", "")) in {_PRIVATE, f"{_PRIVATE},{_MISSING}"}:
        return Unbounded(name, words != _PRIVATE)
    if not isinstance(value, list):
        raise _wrong(name, value)
    entries, shown = (value[:-1], True) if len(value) > 1 and value[-1] == _MISSING else (value, False)
    if entries and all(isinstance(each, str) for each in entries):
        values = tuple(each.strip() for each in entries)
        different = {_plain(each) for each in values if each.isprintable()} - {""}
        if len(different) < len(values) or len(values) > _MOST_VALUES:
            what = f"1 to {_MOST_VALUES:,} printable values, each once, none empty"
            raise ArgumentError(f"columns must list {what}, got {name} = {_short(value)}")
        return Category(name, values, shown)
    if len(entries) != 2 or any(isinstance(each, bool) or not isinstance(each, int | float) for each in entries):
        raise _wrong(name, value)
    try:
        low, high = map(float, entries)
    except OverflowError:
        raise _wrong(name, value) from None
    if not -LARGEST <= low < high <= LARGEST:  # False for NaN
        raise ArgumentError(f"columns must have bounds LOW < HIGH within ±{LARGEST:g}, got {name} = {_short(value)}")
    return Number(name, low, high, shown)


def _wrong(name: str, value: object) -> ArgumentError:
    return ArgumentError(f"columns must describe columns as {_FORM}, got {name} = {_short(value)}")


def _short(value: Any) -> str:  # noqa: ANN401  from TOML
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."


def _plain(text: str) -> str:
    """A text, or one way to write the number that it is: 3.0 and 3 are one category."""
    try:
        value = float(text)
    except ValueError:
        return text
    return repr(value)


def _joined(parts: list[NDArray[Any]], empty: NDArray[np.bool_], *, shown: bool) -> NDArray[np.float32]:
    return np.stack([*parts, empty] if shown else parts, axis=1).astype(np.float32)


def described(names: Iterable[str]) -> str:
    """How to describe some columns, for a message."""
    return f"{_FORM}: {listed(names)}"

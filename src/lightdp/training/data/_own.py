"""A table of the user's own as a `Dataset`: labels, features, natural clients, persons, and what is held out.

Rows of one person belong together: they are at one client, and all of them are trained on or all are held out. Of each
client the same share is held out, so that accuracy can be told for each.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import counted, probability
from lightdp.errors import ArgumentError
from lightdp.runlog import STATISTICS
from lightdp.training.data import _columns, _table
from lightdp.training.data._made import Dataset
from lightdp.training.data._schema import Schema

HELD_OUT = 0.2
"""The share of records, or of persons, that is held out to test, where none is asked for."""
_MOST_CLASSES = 1000
_PERSON = re.compile(r"(?:^|[\W_])id(?:$|[\W_])|patient|person|subject", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the columns of a table are.

    >>> Layout(label="sick", client_column="hospital").test_fraction is None
    True

    Attributes:
        label: the column of the classes.
        client_column: the column that says at which client a row is; None for clients that are drawn.
        person_column: the column that says whose row it is; None if each row is a unit of its own.
        columns: a TOML file that describes features, see `lightdp.training.data._columns`, or "statistics".
        test_fraction: share of each client's records, or persons, that is held out.

    Raises:
        ArgumentError: a value has the wrong type or range, or two columns are the same.
    """

    label: str | None = None
    client_column: str | None = None
    person_column: str | None = None
    columns: str | None = None
    test_fraction: float | None = None

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for name in ("label", "client_column", "person_column", "columns"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or value == ""):
                raise ArgumentError(f"{name} must be text, got {name}={value!r}")
            if name != "columns" and value is not None and seen.setdefault(value, name) != name:
                raise ArgumentError(f"{name} must be another column than {seen[value]}, got {name}={value!r}")
        if self.test_fraction is not None:
            probability("test_fraction", self.test_fraction)

    @property
    def asked(self) -> dict[str, Any]:
        """What was given, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def held_out(self) -> float:
        """The share that is held out."""
        return HELD_OUT if self.test_fraction is None else self.test_fraction


@dataclass(frozen=True, eq=False)
class Owners:
    """Whose rows are whose.

    Attributes:
        names: of natural clients; none if clients are drawn.
        client: the client of each row; 0 if clients are drawn. (n,)
        person: the person of each row, or the row itself. (n,)
        persons: whether persons were named.
    """

    names: tuple[str, ...]
    client: NDArray[np.int64]
    person: NDArray[np.int64]
    persons: bool

    @classmethod
    def of(cls, layout: Layout, table: _table.Table, rows: int) -> Owners:
        """Read them from the columns that `layout` names.

        Raises:
            ArgumentError: a column or a cell is missing, there is one client only, or a person has several.
        """
        names: tuple[str, ...] = ()
        client, person = np.zeros(rows, np.int64), np.arange(rows)
        if layout.client_column is not None:
            names, client = _numbered(table, "client_column", layout.client_column, rows)
            if hidden := [name for name in names if not name.isprintable()]:
                raise ArgumentError(f"client_column must have printable names, got {_table.quoted(hidden[0])}")
            if len(names) < 2:
                raise ArgumentError(
                    f"client_column must name 2 or more clients, got client_column={layout.client_column!r} with "
                    f"{names[0]!r} alone"
                )
        if layout.person_column is not None:
            _, person = _numbered(table, "person_column", layout.person_column, rows)
            pairs = np.unique(np.stack([person, client]), axis=1)
            several = int((np.bincount(pairs[0]) > 1).sum())
            if several > 0:
                raise ArgumentError(
                    f"person_column must have each person at one client, got {counted(several, 'person')} with rows at "
                    f"several in person_column={layout.person_column!r}: merge each person's rows at one client, or "
                    "name coarser clients by client_column"
                )
        return cls(names, client, person, layout.person_column is not None)

    def split(self, fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows to train on and rows to test, sorted by client and then in one fixed random order of persons.

        Guarantee: of a client with k persons, ⌊k fraction⌋ are held out, so each client has one to train on. The choice
        depends on places in the table, and a guarantee of privacy is for the training part, with the choice fixed.
        """
        _, first, owner = np.unique(self.person, return_index=True, return_inverse=True)
        # the raw words of a bit generator are the same in every version of numpy, its shuffles need not be
        words = np.random.PCG64(0).random_raw(len(first))  # noqa: TID251  shuffling, nothing that protects
        client = self.client[first]
        order = np.lexsort((words, client))
        sizes = np.bincount(client)
        begins = np.cumsum(sizes) - sizes
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        held = np.array([math.floor(size * fraction + 1e-9) for size in sizes.tolist()])
        test = rank - begins[client] < held[client]
        rows = np.argsort(rank[owner], kind="stable")
        return rows[~test[owner][rows]], rows[test[owner][rows]]

    def parts(self, fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `split`, with something to test on.

        Raises:
            ArgumentError: every client has too few records, or persons, to hold one out.
        """
        train, test = self.split(fraction)
        if len(test) == 0:
            owners = self.client[np.unique(self.person, return_index=True)[1]]
            what, where = "person" if self.persons else "record", f"the {len(owners):,}"
            if self.names:
                largest, least = int(np.bincount(owners).max()), math.ceil(1 / fraction - 1e-9)
                where = f"a client that has {least:,} or more, but none of the {len(self.names):,} has over {largest:,}"
            raise ArgumentError(f"test_fraction must hold out a {what} of {where}, got test_fraction={fraction:g}")
        return train, test

    def fields(self, train: NDArray[np.int64], test: NDArray[np.int64]) -> dict[str, Any]:
        """What a `Dataset` says of them, for these rows."""
        result: dict[str, Any] = {}
        if self.names:
            result |= {"client_names": self.names, "train_client": self.client[train], "test_client": self.client[test]}
        if self.persons:
            result["train_person"] = self.person[train]
        return result


def dataset(name: str, layout: Layout, table: _table.Table, features: dict[str, _columns.Feature] | None) -> Dataset:
    """The table as data to train on.

    Args:
        name: what it is called.
        layout: what its columns are; a label at least.
        table: its columns.
        features: the columns that the model sees; None to describe all others by statistics of the training part.

    Raises:
        ArgumentError: the columns are not as described; the message names the option and its value.
    """
    label, cells = _labels(layout, table)
    owners = Owners.of(layout, table, len(cells))
    used = {label, layout.client_column, layout.person_column}
    described = dict(features or {})
    classes, y = _classes(label, cells, described.pop(label, None))
    train, test = owners.parts(layout.held_out)
    notes = [f"classes, taken as public: {_table.listed(classes)}"]
    if features is None:
        others = [column for column in table if column not in used]
        chosen, constant = _columns.measured({column: table[column][train] for column in others}, others)
        notes += [f"left out, since constant: {_table.listed(constant)}"] if constant else []
    else:
        for column in described:
            _table.column(table, "columns", column)
            if column in used:
                raise ArgumentError(f"columns must describe features, not clients or persons, got {column!r}")
        chosen = list(described.values())
        if ignored := [column for column in table if column not in used and column not in described]:
            notes.append(f"left out, since not described: {_table.listed(ignored)}")
            notes += _persons({column: table[column] for column in ignored}) if layout.person_column is None else []
    if not chosen:
        raise ArgumentError(f"columns must describe a feature that varies, got none by columns={layout.columns!r}")
    schema = Schema(label, classes, tuple(chosen))
    x, unscaled = schema.encoded(table)
    notes += [remark for each in chosen if (remark := each.remark(table[each.name][train])) is not None]
    if len(classes) < 2:
        raise ArgumentError(f"label must have 2 or more classes, got label={label!r} with {classes[0]!r} alone")
    arrays = x[train], x[test], y[train], y[test]
    return Dataset(
        name, *arrays, classes=len(classes), unscaled=unscaled, notes=tuple(notes), **owners.fields(train, test),
        encoded=None if features is None else (schema, arrays),  # statistics of records stay out of files
    )  # fmt: skip


def _labels(layout: Layout, table: _table.Table) -> tuple[str, _table.Column]:
    """The name of the column of the classes, and its cells."""
    if layout.label is None:
        columns = _table.columns(table)
        raise ArgumentError(f"label must be the column of the classes, one of {columns}, got label=None")
    return layout.label, _table.column(table, "label", layout.label)


def read(path: Path, layout: Layout) -> Dataset:
    """A file as data to train on.

    Raises:
        ArgumentError: the file or a column is not as it should be, or nothing describes the columns.
        MissingExtraError: Parquet without pyarrow.
    """
    table = _table.read(path)
    if layout.columns == STATISTICS:
        return dataset(str(path), layout, table, None)
    if layout.columns is None:
        used = {_labels(layout, table)[0], layout.client_column, layout.person_column}
        raise ArgumentError(
            "columns must be a TOML file that describes features by public knowledge, with lines "
            f"{_columns.described(column for column in table if column not in used)}; or "
            f"{STATISTICS!r}, which is not private, got columns=None: say --columns FILE"
        )
    return dataset(str(path), layout, table, _columns.read(Path(layout.columns)))


def _persons(columns: _table.Table) -> list[str]:
    """A question about the column that most looks as if it named persons with several rows each, if there is one."""
    found = []
    for name, cells in columns.items():
        counts = Counter(text for text in _table.texts(cells) if text != "")
        repeated = sum(count > 1 for count in counts.values())
        named = _PERSON.search(name) is not None
        identifies = 2 * repeated > len(counts) > math.sqrt(len(cells)) and _table.no_number(cells) is not None
        if repeated > 0 and (named or identifies):
            found.append((not named, name))
    if not found:
        return []
    _, name = min(found)
    name = _table.listed([name])
    return [f"column {name} repeats: does it name persons? then --person-column {name} protects each whole person"]


def _classes(
    label: str, cells: _table.Column, described: _columns.Feature | None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes, and the class of each row."""
    if described is not None and not isinstance(described, _columns.Category):
        raise ArgumentError(f"columns must list the classes of the label in quotes, got bounds for {label!r}")
    found = _table.texts(cells)
    _check_full("label", label, found)
    if described is None:
        names = tuple(sorted(set(found), key=_natural))
        if len(names) > min(_MOST_CLASSES, max(2, len(found) // 2)):
            raise ArgumentError(
                f"label must have classes, got label={label!r} with {len(names):,} different values in "
                f"{len(found):,} rows"
            )
        if hidden := [name for name in names if not name.isprintable()]:
            raise ArgumentError(f"label must have printable classes, got {_table.quoted(hidden[0])} in {label!r}")
        place = {name: at for at, name in enumerate(names)}
        return names, np.array([place[text] for text in found], np.int64)
    y = described.places(cells)
    if (y < 0).any():
        row = int(np.flatnonzero(y < 0)[0])
        raise ArgumentError(
            f"columns must list all classes of label={label!r}, got {_table.quoted(found[row])} in row {row + 1}"
        )
    return described.values, y


def _natural(text: str) -> tuple[bool, float, str]:
    """Numbers by their value, before texts."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _numbered(table: _table.Table, option: str, name: str, rows: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different texts of a column, and which one each row has."""
    cells = _table.texts(_table.column(table, option, name))
    if len(cells) != rows:
        raise ArgumentError(f"{option} must have {rows} cells, one a record, got {option}={name!r} with {len(cells)}")
    _check_full(option, name, cells)
    names, place = np.unique(np.array(cells), return_inverse=True)
    return tuple(names.tolist()), place.astype(np.int64)


def _check_full(option: str, name: str, cells: list[str]) -> None:
    empty = [row for row, cell in enumerate(cells, 1) if cell == ""]
    if empty:
        raise ArgumentError(
            f"{option} must have a value in every row, got {option}={name!r} with "
            f"{counted(len(empty), 'missing cell')}, the first in row {empty[0]}"
        )

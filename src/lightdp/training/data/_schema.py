"""How rows of a table become features, and what its classes are called: what a model must know to be used again.

All of it is public: names and bounds come from a file of columns, classes are taken as public. A training and
`lightdp predict` encode rows here, by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp.errors import ArgumentError
from lightdp.training.data import _table
from lightdp.training.data._columns import LARGEST, Category, Feature, Number, Unbounded


@dataclass(frozen=True)
class Schema:
    """The columns of a table that a model sees, in the order of its features, and its classes.

    >>> schema = Schema("sick", ("no", "yes"), (Number("age", 20, 80, True), Category("sex", ("f", "m"))))
    >>> table = {"sex": np.array(["m", "f"]), "age": np.array([50.0, np.nan])}
    >>> schema.encoded(table)[0].tolist()
    [[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
    >>> Schema.from_dict(schema.to_dict()) == schema
    True

    Attributes:
        label: the column of the classes.
        classes: their names, in the order of the model's outputs.
        features: the columns.
    """

    label: str
    classes: tuple[str, ...]
    features: tuple[Feature, ...]

    def encoded(self, table: _table.Table) -> tuple[NDArray[np.float32], tuple[tuple[str, int], ...]]:
        """The features of each row, and the names and places of those whose bounds are private.

        Args:
            table: has the columns, and any others.

        Raises:
            ArgumentError: a number is something else; the message names the column.
        """
        parts = [each.features(table[each.name]) for each in self.features]
        places = np.cumsum([0, *(part.shape[1] for part in parts)]).tolist()
        named = zip(self.features, places, strict=False)
        return np.concatenate(parts, axis=1), tuple(
            (each.name, at) for each, at in named if isinstance(each, Unbounded)
        )

    def check(self, table: _table.Table) -> None:
        """Refuse a table that has not what the model needs.

        Args:
            table: its columns.

        Raises:
            ArgumentError: a column is missing, or a number is something else.
        """
        if absent := [each.name for each in self.features if each.name not in table]:
            wanted = _table.listed(each.name for each in self.features)
            raise ArgumentError(
                f"table must have the columns of the model ({wanted}), got one without {_table.listed(absent)}"
            )
        for each in self.features:
            if isinstance(each, Category):
                continue
            cells = table[each.name]
            if (row := _table.no_number(cells)) is not None:
                got = f"{_table.quoted(cells.tolist()[row])} in row {row + 1}"
                raise ArgumentError(f"table must have finite numbers in column {each.name!r}, got {got}")

    def labels(self, table: _table.Table) -> NDArray[np.int64] | None:
        """The class of each row, -1 for a label of no class and -2 for a missing one; None without such a column.

        Args:
            table: its columns.
        """
        return Category(self.label, self.classes).places(table[self.label]) if self.label in table else None

    def remarks(self, table: _table.Table, bounds: Mapping[str, tuple[float, float]]) -> list[str]:
        """How many values were moved to bounds or taken as missing, for each column with some.

        Args:
            table: its columns.
            bounds: of the private columns.
        """
        known = [
            Number(each.name, *bounds[each.name]) if isinstance(each, Unbounded) else each for each in self.features
        ]
        found = [each.remark(table[each.name], strict=False) for each in known]
        return [remark for remark in found if remark is not None]

    @property
    def private(self) -> list[str]:
        """The columns whose bounds are private."""
        return [each.name for each in self.features if isinstance(each, Unbounded)]

    @property
    def width(self) -> int:
        """How many features there are."""
        nothing = {each.name: np.array([], dtype=object) for each in self.features}
        return self.encoded(nothing)[0].shape[1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"label": self.label, "classes": [*self.classes], "columns": [_written(each) for each in self.features]}

    @classmethod
    def from_dict(cls, written: object) -> Schema:
        """The schema that `to_dict` wrote.

        Args:
            written: what a file says.

        Raises:
            ValueError: it is something else.
        """
        match written:
            case {"label": str(label), "classes": [_, _, *_] as classes, "columns": [_, *_] as columns}:
                found = cls(label, _different("classes", classes), tuple(_feature(each) for each in columns))
                _different("columns", [label, *(each.name for each in found.features)])
                return found
        raise ValueError("it has not a label, two classes or more, and columns")


def _written(feature: Feature) -> dict[str, Any]:
    """A column as JSON has it."""
    told: Mapping[str, Any]
    match feature:
        case Number(low=low, high=high):
            told = {"kind": "number", "low": float(low), "high": float(high)}
        case Category(values=values):
            told = {"kind": "category", "values": [*values]}
        case Unbounded():
            told = {"kind": "private"}
    return {"name": feature.name, **told, "missing": feature.shows_missing}


def _feature(written: object) -> Feature:
    """The column that `_written` wrote."""
    match written:
        case {"name": str(name), "kind": "number", "low": float(low), "high": float(high), "missing": bool(shown)}:
            if -LARGEST <= low < high <= LARGEST:
                return Number(name, low, high, shown)
        case {"name": str(name), "kind": "category", "values": [_, *_] as values, "missing": bool(shown)}:
            return Category(name, _different("values", values), shown)
        case {"name": str(name), "kind": "private", "missing": bool(shown)}:
            return Unbounded(name, shown)
    raise ValueError(f"it has a column {_table.quoted(written)}")


def _different(what: str, names: list[object]) -> tuple[str, ...]:
    """Texts that can be printed, each once; other ones are a ValueError."""
    texts = tuple(name for name in names if isinstance(name, str) and name.isprintable())
    if len(set(texts)) < len(names):
        raise ValueError(f"its {what} are not different printable texts")
    return texts

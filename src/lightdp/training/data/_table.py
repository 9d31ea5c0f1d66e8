"""Tables of the user's own: a file into named columns, and columns into numbers or texts.

A column is an array with a cell for each row, as its file has it: texts of a CSV file, numbers and texts of Parquet and
NumPy. What a column means is not guessed here: `numbers` and `texts` read it as it is asked for.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import math
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training.data._made import reading

Column: TypeAlias = NDArray[Any]
Table: TypeAlias = dict[str, Column]

KINDS = (".csv", ".parquet", ".npz")
"""What the name of a file of a table ends with."""
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})
"""Cells that hold no value, in lower case; Parquet has nulls and NumPy NaN beside them."""
_HELP = "a table has one row for each record and a header with the names of its columns"
_LONGEST = 40  # letters of a cell that a message quotes
_MOST_COLUMNS = 20  # that a message lists


def read(path: Path) -> Table:
    """The columns of a .csv, .parquet or .npz file, by name; nothing in the file is executed.

    CSV: UTF-8, cells separated by commas, semicolons or tabs (whichever the header has most of), names in the first
    line, a dot in decimal numbers. NumPy: one array of one dimension for each column.

    Raises:
        ArgumentError: the file is missing, damaged or no table; the message is one line.
        MissingExtraError: Parquet without pyarrow.
    """
    with reading(path, _HELP):
        try:
            table = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}[path.suffix](path)
        except UnicodeDecodeError:
            raise ValueError("its text is no UTF-8: save it as UTF-8") from None
        if not table or len(next(iter(table.values()))) == 0:
            raise ValueError("it has no rows")
        return table


def column(table: Table, option: str, name: str) -> Column:
    """The column that an option names.

    Raises:
        ArgumentError: there is none of that name.
    """
    if name not in table:
        close = difflib.get_close_matches(name, table, n=1)
        meant = f": did you mean {close[0]!r}?" if close else ""
        raise ArgumentError(f"{option} must be a column of the table ({columns(table)}), got {option}={name!r}{meant}")
    return table[name]


def numbers(name: str, cells: Column, *, form: str | None = None) -> NDArray[np.float64]:
    """The cells as numbers, NaN where one is missing.

    Args:
        name: of the column.
        cells: its cells.
        form: how the column was described, where a message should say so.

    Raises:
        ArgumentError: a cell is something else, or infinite; the message names the column and the row.
    """
    if cells.dtype.kind in "iufb":
        found = cells.astype(np.float64)
    else:
        plain = [math.nan if missing(cell) else cell for cell in cells.tolist()]
        try:
            found = np.array([float(cell) for cell in plain])
        except (TypeError, ValueError, OverflowError):
            row = next(row for row, cell in enumerate(plain) if not _number(cell))
            instead = "" if form is None else f", not {form}"
            raise ArgumentError(
                f"columns must have texts for {name!r}{instead}, whose row {row + 1} is no number, got "
                f"{quoted(plain[row])}"
            ) from None
    if np.isinf(found).any():
        row = int(np.flatnonzero(np.isinf(found))[0])
        raise ArgumentError(f"data must be finite, got {found[row]} in row {row + 1} of column {name!r}")
    return found


def texts(cells: Column) -> list[str]:
    """The cells as texts without spaces around them, "" where one is missing; a whole number has no point."""
    return [_text(cell) for cell in cells.tolist()]


def no_number(cells: Column) -> int | None:
    """The first row, from 0, whose cell is neither missing nor a finite number."""
    rows = enumerate(cells.tolist())
    return next((row for row, cell in rows if not missing(cell) and not _number(cell, finite=True)), None)


def missing(cell: object) -> bool:
    """Whether a cell holds no value."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def listed(names: Any, most: int = 8) -> str:  # noqa: ANN401  anything with names
    """Names for a message, not too many of them."""
    found = [name if name.isprintable() else repr(name) for name in (str(name)[:_LONGEST] for name in names)]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def columns(table: Table) -> str:
    """The columns for a message, the last one, which often is the label, among them."""
    return listed(table, _MOST_COLUMNS) + (f", the last {listed([*table][-1:])}" if len(table) > _MOST_COLUMNS else "")


def quoted(cell: object) -> str:
    """A cell for a message."""
    return repr(cell if len(str(cell)) <= _LONGEST else f"{str(cell)[:_LONGEST]}...")


def _number(cell: object, *, finite: bool = False) -> bool:
    try:
        found = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(found) or not finite


def _text(cell: object) -> str:
    if missing(cell):
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def _csv(path: Path) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
        body = []
        try:
            names = [name.strip() for name in next(rows, [])]
            for row in rows:
                if row and len(row) != len(names):
                    raise ValueError(f"line {rows.line_num} has {len(row)} cells, its header {len(names)}")
                body += [row] if row else []
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: {error}") from None
    _check_names(names)
    return {name: np.array(cells, dtype=object) for name, cells in zip(names, zip(*body, strict=True), strict=False)}


def _parquet(path: Path) -> Table:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("parquet", f"data={str(path)!r}") from error
    with path.open("rb") as raw:
        found = parquet.read_table(raw)
    _check_names(found.column_names)
    return {name: _arrow(cells) for name, cells in zip(found.column_names, found.columns, strict=True)}


def _arrow(cells: Any) -> Column:  # noqa: ANN401  pyarrow has no types
    """Numbers as they are; with nulls, and all else, as objects, so that a long integer stays exact."""
    if cells.null_count == 0:
        plain = cells.to_numpy()
        if plain.dtype.kind in "iufb":
            return np.asarray(plain)
    result = np.empty(len(cells), dtype=object)
    result[:] = cells.to_pylist()
    return result


def _npz(path: Path) -> Table:
    with path.open("rb") as raw:  # numpy itself would leave a damaged file open
        if not zipfile.is_zipfile(raw):
            raise ValueError("it is cut short or no .npz file")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            table = {name: file[name] for name in file.files}
    _check_names(list(table))
    for name, cells in table.items():
        if cells.ndim != 1 or cells.dtype.kind not in "iufbU":
            raise ValueError(f"{name} must be one column of numbers or texts, got {cells.dtype} of shape {cells.shape}")
        if len(cells) != len(next(iter(table.values()))):
            raise ValueError(f"its columns differ in length: {name} has {len(cells)} cells")
    return table


def _check_names(names: list[str]) -> None:
    if not names:
        raise ValueError("it is empty")
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} of its header has no name")
    if hidden := [name for name in names if not name.isprintable()]:
        raise ValueError(f"the name of a column must be printable, got {quoted(hidden[0])}")
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise ValueError(f"column {twice[0]!r} occurs twice in its header")

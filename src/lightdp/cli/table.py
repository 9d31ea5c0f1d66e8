"""Tables of the command line in one style, also in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def new(title: str | None, left: Iterable[str] = (), right: Iterable[str] = ()) -> Table:
    """An empty table with columns of text, then columns of numbers.

    Args:
        title: above the table, if any.
        left: headings of columns that are aligned to the left.
        right: headings of columns that are aligned to the right.

    >>> lines = new("Noise in the mean", ["scheme"], ["variance"])
    >>> lines.add_row("exact", "1.647")
    >>> [column.justify for column in lines.columns]
    ['left', 'right']
    """
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import, and JSON needs no tables
    from rich.table import Table  # noqa: PLC0415  likewise

    table = Table(*left, title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in right:
        table.add_column(name, justify="right")
    return table


def show(table: Table) -> None:
    """Print a table: to a terminal as wide as it is, to a file or pipe 100 columns wide."""
    from rich.console import Console  # noqa: PLC0415  likewise

    Console(width=None if sys.stdout.isatty() else 100).print(table)

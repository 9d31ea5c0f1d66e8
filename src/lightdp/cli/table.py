"""Tables that look alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def new(title: str | None) -> Table:
    """An empty table."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import, and JSON needs no tables
    from rich.table import Table  # noqa: PLC0415  likewise

    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def show(table: Table) -> None:
    """To the terminal as wide as it is; to a file or pipe as wide as the page."""
    from rich.console import Console  # noqa: PLC0415  likewise

    Console(width=None if sys.stdout.isatty() else 100).print(table)

"""Tables that look alike."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def new(title: str | None) -> Table:
    """An empty table."""
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def show(table: Table) -> None:
    """To the terminal as wide as it is; to a file or pipe as wide as the page."""
    Console(width=None if sys.stdout.isatty() else 100).print(table)

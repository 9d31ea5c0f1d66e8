"""The progress bar of the lab's commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def progress(*, quiet: bool = False) -> Progress:
    """A bar on a terminal's stderr.

    Args:
        quiet: drawn between steps only; a thread that draws would take time from what is measured.
    """
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=screen, transient=True, auto_refresh=not quiet, disable=not screen.is_terminal)

"""What every audit returns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table


class Finding(Protocol):
    """The result of an audit, as the command line prints it."""

    @property
    def holds(self) -> bool:
        """Whether everything that was claimed holds; the command exits with 1 otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""

    def shown(self) -> Iterable[str | Table]:
        """Lines and tables for the terminal, in order."""


MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What content of a file raises that no check has foreseen."""


def regular(name: str, path: Path) -> Path:
    """`path` if it is a file that can be read to its end, or is missing, which reading it says."""
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{name} must be a regular file, got {name}={str(path)!r}")
    return path

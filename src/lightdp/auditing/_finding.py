"""What every audit returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

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

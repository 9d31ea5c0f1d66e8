"""Where a client's state lives: private, written whole or not at all, and before what it speaks of has left (W3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lightdp._files import durable
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    import os


class Store(Protocol):
    """What keeps a client's state, which holds a private key.

    `save` returns only when `load`, after any crash, would return these bytes or later ones.
    """

    def save(self, state: bytes) -> None:
        """Keep the newest state."""

    def load(self) -> bytes:
        """The newest state."""


class File:
    """A state in a file that only its owner can read, replaced atomically and durably."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def save(self, state: bytes) -> None:
        """Replace the file."""
        with durable(self.path) as file:
            file.write(state)

    def load(self) -> bytes:
        """What the file holds."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}: {error}") from None

"""Where a client's state lives: private, written whole or not at all, and before what it speaks of has left (W3)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from lightdp._check import ArgumentError


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
        folder = self.path.parent
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".state-")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def load(self) -> bytes:
        """What the file holds."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}: {error}") from None

"""A client's state on disk: private, written whole or not at all, and before what it speaks of has left (W3)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from lightdp._check import ArgumentError

_VERSION = 1


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the file at `path` atomically and durably; only its owner can read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".state-")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(state | {"version": _VERSION}, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"path must hold a client's state, got path={str(path)!r}: {error}") from None
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise ArgumentError(f"path must hold a client's state of version {_VERSION}, got path={str(path)!r}")
    return state

"""Files that a command writes at its end, checked before its work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lightdp.errors import ArgumentError


def check(name: str, path: Path, suffixes: Sequence[str], *, overwrite: bool = False) -> None:
    """Refuse a file that could not be written, or that would replace another.

    Args:
        name: what errors call it.
        path: the file.
        suffixes: those it may have.
        overwrite: whether it may replace a file.

    Raises:
        ArgumentError: it has another suffix, its folder does not exist, it is there already, or it is a folder or not
            writable.
    """
    if path.suffix not in suffixes or not path.parent.is_dir():
        kinds = " or ".join(suffixes)
        raise ArgumentError(f"{name} must be a {kinds} file in an existing folder, got {name}={str(path)!r}")
    if path.exists() and not overwrite:
        raise used(name, path)
    if path.is_dir() or not all(os.access(each, os.W_OK) for each in (path.parent, path) if each.exists()):
        raise ArgumentError(f"{name} must be writable, got {name}={str(path)!r}")


def used(name: str, path: Path) -> ArgumentError:
    """What is said of a file that is there already."""
    return ArgumentError(f"{name} must be a new file: --overwrite replaces it, got {name}={str(path)!r}")

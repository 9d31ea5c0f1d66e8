"""Files that are there whole or not at all, whenever the machine stops."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def durable(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[IO[bytes]]:
    """A file to write that only its owner can read; it takes its name once it is whole and on the disk.

    Raises:
        FileExistsError: there is one of that name, and `replace` is false.
    """
    folder = Path(path).parent
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".lightdp-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            Path(temporary).replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, fails if there is one
    finally:
        Path(temporary).unlink(missing_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that appear complete or not at all, even if the machine stops."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def durable(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to write, with mode 0600; it gets its name when the block ends without an exception.

    Formal guarantee: `path` names the old content or the complete new one, never a part, also after a power failure;
    once the block has ended, the new content is on the disk.

    Args:
        path: the name; its folder must exist and take temporary files.
        replace: whether the new file may replace an old one.

    Raises:
        FileExistsError: `path` exists, and `replace` is false.

    >>> with durable("state.json") as file:
    ...     _ = file.write(b"{}")
    >>> Path("state.json").read_bytes()
    b'{}'
    """
    folder = Path(path).parent
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".lightdp-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        (os.replace if replace else os.link)(temporary, path)  # a link fails if `path` exists
    finally:
        Path(temporary).unlink(missing_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

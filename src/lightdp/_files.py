"""Files that appear complete or not at all, even if the machine stops, and files that are locks."""

from __future__ import annotations

import fcntl
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


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock that is the file `path`, which is made if there is none; all others who want it wait.

    Args:
        path: the name; its folder must exist, on a file system with locks.

    >>> with locked("state.lock"):
    ...     pass
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # not by closing alone: a forked child may hold it open
        os.close(descriptor)

"""Files that appear complete or not at all, even if the machine stops, and files that are locks."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lightdp.errors import ArgumentError

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened without waiting for its other end


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
    synchronise(folder)


def extend(path: str | os.PathLike[str], data: bytes, *, end: int) -> None:
    r"""Write `data` after the first `end` bytes of a file, in place of what is there; it returns when that is on disk.

    Formal guarantee: after any crash the file has its first `end` bytes, and after them a part of `data` or of what was
    there; once the call has returned, all of `data` and nothing else. If not all of it can be written, none stays.

    Args:
        path: its name.
        data: what to write.
        end: of what stays; the file has at least so many bytes.

    >>> with durable("log") as file:
    ...     _ = file.write(b"one\ntw")
    >>> extend("log", b"two\n", end=4)
    >>> Path("log").read_bytes()
    b'one\ntwo\n'
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | _AT_ONCE)
    try:
        if os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except BaseException:
            os.ftruncate(descriptor, end)
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synchronise(path: str | os.PathLike[str]) -> None:
    """Return when a file, or the names in a folder, are on their disk.

    >>> synchronise(".")
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: bool = True) -> Iterator[None]:
    """Hold the lock that is the file `path`, which is made if there is none; all others who want it wait.

    Args:
        path: the name; its folder must exist, on a file system with locks.
        wait: whether to wait until another holder has released it.

    Raises:
        ArgumentError: the system or the file system has no locks.
        BlockingIOError: another one holds the lock, and `wait` is False.

    >>> with locked("state.lock"):
    ...     pass
    """
    try:
        import fcntl  # noqa: PLC0415  not on every system, and all else works without it
    except ImportError:
        raise ArgumentError(f"{os.fspath(path)} cannot be locked: this system has no flock") from None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise ArgumentError(
                f"{os.fspath(path)} cannot be locked: its file system has no locks ({error.strerror})"
            ) from None
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # not by closing alone: a forked child may hold it open
    finally:
        os.close(descriptor)


def contents(path: str | os.PathLike[str], *, limit: int, private: bool = False) -> bytes:
    """What a regular file holds; pipes and devices, which could be waited for without end, are refused.

    Args:
        path: its name.
        limit: the most bytes that it may have.
        private: whether nobody but its owner may be able to read or write it.

    Raises:
        OSError: it cannot be opened.
        ArgumentError: it is not such a file.

    >>> with durable("note") as file:
    ...     _ = file.write(b"text")
    >>> contents("note", limit=4, private=True)
    b'text'
    """
    name, descriptor = str(path), os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        facts = os.fstat(descriptor)
        mode = stat.S_IMODE(facts.st_mode)
        if not stat.S_ISREG(facts.st_mode):
            raise ArgumentError(f"path must be a regular file, got path={name!r}")
        if private and mode & 0o077 != 0:
            raise ArgumentError(f"path must be private (mode 0600), got path={name!r} mode {mode:04o}")
        if facts.st_size > limit:
            raise ArgumentError(f"path must have at most {limit} bytes, got path={name!r} of {facts.st_size}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(facts.st_size)
    finally:
        os.close(descriptor)


@contextmanager
def overwritten(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a regular file to write in place, and yield its descriptor; it is made with mode 0600 if there is none.

    Raises:
        ArgumentError: it cannot be written.

    >>> with overwritten("number") as descriptor:
    ...     _ = os.pwrite(descriptor, b"1", 0)
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _AT_ONCE, 0o600)
    except OSError as error:
        raise ArgumentError(f"path must be writable, got path={str(path)!r}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArgumentError(f"path must be a regular file, got path={str(path)!r}")
        yield descriptor
    finally:
        os.close(descriptor)

"""Files that appear complete or not at all, even if the machine stops, and files that are locks.

All that differs between systems is here:

| | Linux | macOS | Windows |
| --- | --- | --- | --- |
| lock | flock | flock | a byte beyond the end of the file (msvcrt) |
| content is on the disk | fsync | F_FULLFSYNC: fsync stops at the drive's cache | fsync |
| a name is on the disk | fsync of the folder | F_FULLFSYNC of the folder | left to the file system's journal |
| only the owner reads a file | mode 0600, checked | mode 0600, checked | as its folder allows, not checked |

Linux alone is tested; the code for Windows is tested with a stand-in for msvcrt.
"""

from __future__ import annotations

import errno
import importlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lightdp.errors import ArgumentError

_WINDOWS = os.name == "nt"
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened without waiting for its other end
_BYTES = getattr(os, "O_BINARY", 0)  # Windows would translate ends of lines
_LOCKED_BYTE = 2**30  # Windows lets nobody read what is locked, so that is beyond what a lock's file holds
_PAUSE_S = 0.02  # between attempts to get a lock that cannot be waited for


def _module(name: str) -> Any:  # noqa: ANN401  a module that the type checker does not find on this system
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_FCNTL, _MSVCRT = _module("fcntl"), _module("msvcrt")


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
            flush(file.fileno())
        if replace:
            Path(temporary).replace(path)
        else:
            (os.rename if _WINDOWS else os.link)(temporary, path)  # fails if `path` exists
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
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | _AT_ONCE | _BYTES)
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
        flush(descriptor)
    finally:
        os.close(descriptor)


def synchronise(path: str | os.PathLike[str]) -> None:
    """Return when a file, or the names in a folder, are on their disk.

    >>> synchronise(".")
    """
    if _WINDOWS and Path(path).is_dir():  # cannot be opened
        return
    descriptor = os.open(path, (os.O_RDWR if _WINDOWS else os.O_RDONLY) | _BYTES)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """Return when what was written to a descriptor is on its disk.

    >>> with overwritten("number") as descriptor:
    ...     flush(descriptor)
    """
    if hasattr(_FCNTL, "F_FULLFSYNC"):
        with suppress(OSError):  # some file systems do not have it
            _FCNTL.fcntl(descriptor, _FCNTL.F_FULLFSYNC)
            return
    os.fsync(descriptor)


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
    if _FCNTL is None and _MSVCRT is None:
        raise ArgumentError(f"{os.fspath(path)} cannot be locked: this system has neither flock nor msvcrt")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BYTES, 0o600)
    try:
        try:
            _lock(descriptor, wait=wait)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise ArgumentError(
                f"{os.fspath(path)} cannot be locked: its file system has no locks ({error.strerror})"
            ) from None
        try:
            yield
        finally:
            _unlock(descriptor)  # not by closing alone: a forked child may hold it open
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    if _FCNTL is not None:
        _FCNTL.flock(descriptor, _FCNTL.LOCK_EX | (0 if wait else _FCNTL.LOCK_NB))
        return
    while True:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            _MSVCRT.locking(descriptor, _MSVCRT.LK_NBLCK, 1)
        except PermissionError as error:  # another one holds it
            if not wait:
                raise BlockingIOError(errno.EAGAIN, "another one holds the lock") from error
            time.sleep(_PAUSE_S)
        else:
            return


def _unlock(descriptor: int) -> None:
    if _FCNTL is not None:
        _FCNTL.flock(descriptor, _FCNTL.LOCK_UN)
    else:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        _MSVCRT.locking(descriptor, _MSVCRT.LK_UNLCK, 1)


def contents(path: str | os.PathLike[str], *, limit: int, private: bool = False) -> bytes:
    """What a regular file holds; pipes and devices, which could be waited for without end, are refused.

    Args:
        path: its name.
        limit: the most bytes that it may have.
        private: whether nobody but its owner may be able to read or write it; Windows, which has no modes, does not
            tell.

    Raises:
        OSError: it cannot be opened.
        ArgumentError: it is not such a file.

    >>> with durable("note") as file:
    ...     _ = file.write(b"text")
    >>> contents("note", limit=4, private=True)
    b'text'
    """
    name, descriptor = str(path), os.open(path, os.O_RDONLY | _AT_ONCE | _BYTES)
    try:
        facts = os.fstat(descriptor)
        mode = stat.S_IMODE(facts.st_mode)
        if not stat.S_ISREG(facts.st_mode):
            raise ArgumentError(f"path must be a regular file, got path={name!r}")
        if private and not _WINDOWS and mode & 0o077 != 0:
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
    ...     write(descriptor, b"1")
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _AT_ONCE | _BYTES, 0o600)
    except OSError as error:
        raise ArgumentError(f"path must be writable, got path={str(path)!r}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArgumentError(f"path must be a regular file, got path={str(path)!r}")
        yield descriptor
    finally:
        os.close(descriptor)


def write(descriptor: int, data: bytes) -> None:
    """Put bytes at the start of an open file, in place.

    >>> with overwritten("number") as descriptor:
    ...     write(descriptor, b"12")
    ...     write(descriptor, b"3")
    >>> contents("number", limit=2)
    b'32'
    """
    os.lseek(descriptor, 0, os.SEEK_SET)
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, "the file was not written in full")

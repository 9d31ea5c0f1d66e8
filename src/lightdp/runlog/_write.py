"""A log that is written: line by line, or cut back to go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Self

from lightdp.errors import ArgumentError
from lightdp.runlog._lines import Line
from lightdp.runlog._log import RunLog
from lightdp.runlog._read import check


class ResumeError(ArgumentError):
    """A training cannot go on from its log and checkpoint; both files are unchanged."""


class LogWriter:
    """Writes a log, line by line; each is handed to the operating system at once.

    >>> import tempfile
    >>> from lightdp.runlog import Started
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> with LogWriter(path) as log:
    ...     _ = log.write(
    ...         Started(config={}, plan=None, versions={}, commit=None, partition=None, parameters=3, device=None)
    ...     )
    >>> with LogWriter(path, keep=0) as log:
    ...     len(log.kept)
    1
    >>> LogWriter(path, keep=2)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
      ...
    lightdp.runlog.ResumeError: resume needs the log of the 2 rounds of its checkpoint

    Args:
        path: the file.
        keep: go on with the log in the file instead, after its first line and so many rounds. What comes after them,
            also a line that was cut in half when the training was killed, is cut off.
        replace: whether a new log may overwrite what is in the file.

    Attributes:
        kept: the lines that stay.

    Raises:
        ResumeError: the log does not have the rounds to keep; it is left as it is.
        FileExistsError: there is a file for a new log that may not replace it.
    """

    def __init__(self, path: Path, *, keep: int | None = None, replace: bool = True) -> None:
        self.kept: tuple[Line, ...] = () if keep is None else _cut(path, keep)
        self._file = path.open("a" if keep is not None else "w" if replace else "x", encoding="utf-8")
        if keep is not None:
            self._file.write("\n")  # of the last line kept, whether or not it had one

    def write(self, line: Line) -> Line:
        """Append `line`, hand it to the operating system, and return it.

        Args:
            line: the next one; its order is checked when the log is read.

        Raises:
            ArgumentError: a number or a text of it could not be read again.
        """
        text = json.dumps(line.to_dict(), allow_nan=False)
        check(text.encode())
        self._file.write(text + "\n")
        self._file.flush()
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cut(path: Path, rounds: int) -> tuple[Line, ...]:
    """Cut a log back to its first line and `rounds` more, without the last newline, and return these."""
    try:
        kept = path.read_bytes().split(b"\n")[: rounds + 1]
        log = RunLog.of(path, kept)
        if len(log.rounds) != rounds:
            raise ArgumentError  # noqa: TRY301  as any other damage
    except (OSError, ArgumentError):
        raise ResumeError(
            f"resume needs the log of the {rounds} rounds of its checkpoint, got {path} without some of them; "
            "without resume the run starts anew"
        ) from None
    os.truncate(path, len(b"\n".join(kept)))
    return log.lines

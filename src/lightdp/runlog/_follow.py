"""A log that is read while it is written: each look reads what is new, and nothing twice."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

from lightdp.errors import ArgumentError
from lightdp.runlog._lines import Ended, Line, Round, Started
from lightdp.runlog._log import RunLog
from lightdp.runlog._read import read_line

MOST_BYTES = 2**29
"""Of a log that is followed, or shown in a page."""
_MOST_LINE = 2**26  # bytes of a line
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_SEEN = 32  # moments at which rounds were seen, from which their pace follows


class Follower:
    r"""The lines of a log so far, and a mark after each, from which a reader goes on.

    Guarantee: `lines` are the whole lines of the file in order, each checked as `RunLog.read` checks it; a last line
    without its newline waits until it is whole. A mark is a hash of all lines before it, so two readers at the same
    mark have read the same lines, also after a restart. Where the file is cut back or replaced, it is read anew.
    Several threads may call `look`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> followed = Follower(path)
    >>> followed.look(), followed.there
    (False, False)
    >>> first = '{"kind": "run", "config": {}, "plan": null, "versions": {}, "commit": null, "partition": null, '
    >>> _ = path.write_text(first + '"parameters": 3, "device": null}\n{"kind": "rou')
    >>> followed.look(), len(followed.lines), followed.after(followed.mark), followed.after("another")
    (True, 1, 1, 0)

    Args:
        path: of the file; a link in its place is not followed.

    Attributes:
        lines: what was read.
        error: why nothing after `lines` can be read; None where all can.
        there: whether the file was there at the last look.
        changed: when the file was written last, in seconds since 1970; None if it never was there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.there = False
        self.changed: float | None = None
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.lines: list[Line] = []
        self.error: str | None = None
        self._marks = [""]
        self._end, self._last = 0, b""
        self._torn: tuple[int, ...] = ()  # the file as it was when its last line was not whole
        self._log: RunLog | None = None
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SEEN)

    def look(self) -> bool:
        """Read what is new, and say whether anything is."""
        with self._lock:
            before = self.mark, self.error, self.there
            try:
                with open(os.open(self.path, _FLAGS), "rb") as file:  # noqa: PTH123  a descriptor
                    self._read(file)
            except OSError:
                self.there = False
            if before[0] != self.mark:
                self._log = None
                self._seen.append((time.monotonic(), len(self.lines)))
            return before != (self.mark, self.error, self.there)

    def _read(self, file: BinaryIO) -> None:
        facts = os.fstat(file.fileno())
        self.there, self.changed = stat.S_ISREG(facts.st_mode), facts.st_mtime
        if not self.there:
            return
        if facts.st_size > MOST_BYTES:
            self.error = f"the log has {facts.st_size:,} bytes, more than the {MOST_BYTES:,} that are followed"
            return
        file.seek(self._end - len(self._last))
        if file.read(len(self._last)) != self._last:  # cut back, or another one
            self._forget()
            file.seek(0)
        seen = facts.st_ino, facts.st_size, facts.st_mtime_ns
        if self.error is not None or seen == self._torn:
            return
        while line := file.readline(_MOST_LINE):
            if not line.endswith(b"\n"):
                self._torn = seen
                if len(line) == _MOST_LINE:
                    self.error = f"line {len(self.lines) + 1} must have fewer than {_MOST_LINE:,} bytes"
                return
            try:
                self.lines.append(read_line(line[:-1], self.lines, last=False))
            except (ArgumentError, OverflowError) as error:
                said = str(error).encode("utf-8", "backslashreplace").decode()
                self.error = f"line {len(self.lines) + 1}: {said}"
                return
            self._end, self._last = self._end + len(line), line
            self._marks.append(hashlib.sha256(self.mark.encode() + line).hexdigest()[:16])

    @property
    def mark(self) -> str:
        """After the last line; before the first one, it is empty."""
        return self._marks[-1]

    def after(self, mark: str) -> int:
        """How many lines a reader has whose last mark is `mark`; 0 if it has others."""
        try:
            return self._marks.index(mark)
        except ValueError:
            return 0

    @property
    def log(self) -> RunLog | None:
        """The log so far; None before its first line is whole."""
        with self._lock:
            if self._log is None and self.lines and isinstance(self.lines[0], Started):
                rounds = tuple(line for line in self.lines if isinstance(line, Round))
                ended = self.lines[-1] if isinstance(self.lines[-1], Ended) else None
                self._log = RunLog(self.path, self.lines[0], rounds, ended)
            return self._log

    @property
    def pace(self) -> float | None:
        """Seconds a round, as they were seen to come; None before two looks have seen some."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (ended - began) / (last - first) if last > first else None

"""The place of a state in the order of all states of a file: which run, which number, and where its last line ends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from lightdp._files import contents, flush, write
from lightdp.errors import ArgumentError

_PATTERN = re.compile(r"([0-9a-f]{32}) ([0-9]{1,20})")
_ENTRY = re.compile(rb'\{"serial": ([0-9]{1,20}), "run": "([0-9a-f]{32})"(?:, "first": ([0-9]{1,20}))?, [^\n]*\}')
_BYTES = 4096  # the most that is read of a mark, which has 54


@dataclass(frozen=True)
class Mark:
    """The place of a state in the order of all states of a file."""

    run: str
    serial: int
    first: int | None = None  # the number of the run's first state, where that is known

    @classmethod
    def of(cls, state: bytes) -> Mark | None:
        """That of a state or an entry, or None if the bytes are neither; whoever goes on from it refuses those."""
        if (plain := _ENTRY.fullmatch(state)) is not None:  # as all are written; reading JSON takes longer
            return cls(plain[2].decode(), int(plain[1]), None if plain[3] is None else int(plain[3]))
        try:
            facts = json.loads(state)
            match = _PATTERN.fullmatch(f"{facts['run']} {facts['serial']}")
            first = facts.get("first")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None
        return None if match is None else cls(match[1], int(match[2]), first if type(first) is int else None)

    def __str__(self) -> str:
        return f"serial {self.serial} of run {self.run}"

    def follows(self, last: Mark | None) -> bool:
        """Whether a state may replace the last one: it is the next of its client, or the first of another run."""
        if last is None:
            return True
        if self.serial != last.serial + 1:
            return False
        if self.run != last.run:
            return self.first in {None, self.serial}
        return None in {self.first, last.first} or self.first == last.first

    def precedes(self, mark: Mark) -> bool:
        """Whether a state is not the marked one, nor came after it; after a crash it may be one ahead."""
        if self.run == mark.run:
            return self.serial < mark.serial
        return (self.serial if self.first is None else self.first) <= mark.serial

    @classmethod
    def read(cls, path: Path) -> Mark | None:
        """What `write` left in a file; None if there is nothing in it, as a power failure may leave it."""
        try:
            text = contents(path, limit=_BYTES).strip(b"\0\n ").decode("ascii", errors="replace")
        except FileNotFoundError:
            return None
        if text == "":
            return None
        if (match := _PATTERN.fullmatch(text)) is None:
            raise ArgumentError(f"{path} must hold the serial number of a state, which it does not")
        return cls(match[1], int(match[2]))

    @classmethod
    def kept(cls, path: Path) -> bool:
        """Whether a file keeps a mark, be it one that cannot be read."""
        try:
            return cls.read(path) is not None
        except ArgumentError:
            return True

    def write(self, descriptor: int, *, wait: bool) -> None:
        """Put the mark into a file, in place; the first of a run waits for the disk, or the state would not be read."""
        write(descriptor, f"{self.run} {self.serial:<20}\n".encode())
        if wait:
            flush(descriptor)


@dataclass(frozen=True)
class Found:
    """What a file holds.

    Attributes:
        newest: the mark of its last line.
        end: where that line ends.
        ended: whether it ends with a newline, which files of earlier versions do not.
    """

    newest: Mark
    end: int
    ended: bool

    @classmethod
    def of(cls, data: bytes, path: Path) -> Found | None:
        """What is in these bytes of a file; None if they do not begin with a state.

        Raises:
            ArgumentError: an entry is damaged, or does not follow the line before it.
        """
        base, *lines = data.split(b"\n")
        newest = Mark.of(base)
        if newest is None or not lines:
            return None if newest is None else cls(newest, len(data), ended=False)
        for line in lines[:-1]:  # the last has no end: a crash has left it, and nobody was told that it was kept
            mark = Mark.of(line)
            if mark is None or mark.run != newest.run or not mark.follows(newest):
                raise ArgumentError(f"path must hold whole lines, got path={str(path)!r} with another after {newest}")
            newest = mark
        return cls(newest, len(data) - len(lines[-1]), ended=True)

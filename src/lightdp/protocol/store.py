"""Where a client's state lives: private, written whole or not at all, and never older than what was written last."""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightdp._files import contents, durable, flush, locked, overwritten, synchronise, write
from lightdp.errors import ArgumentError, ProtocolError

_MARK = re.compile(r"([0-9a-f]{32}) ([0-9]{1,20})")
_MARK_BYTES = 4096  # the most that is read of a mark, which has 54
_LARGEST = 2**30  # bytes of a state: about 450 for each client of the roster, and 1/4 for each client and round


class Store(Protocol):
    """What keeps a client's state, which holds a private key.

    `save` returns only when `load`, after any crash, would return these bytes or later ones.
    """

    def save(self, state: bytes) -> None:
        """Keep the newest state."""

    def load(self) -> bytes:
        """The newest state."""


class File:
    """A state in a file that only its owner can read, replaced atomically and durably, by one client.

    A state has a serial number that grows by one with each save, and goes on when a new run takes the file over. Run
    and number are also kept in `path`.serial, which is the lock of a save too, and in `anchor` if there is one.

    Formal guarantees, for all processes that use `path` on a file system with locks:
    - of several clients that were restored from one state, one can save, and so answer a round (W3), also if other runs
      have used the file in between;
    - `load` refuses a state that is older than its number in `path`.serial or `anchor`. An older copy of all of them
      cannot be told from the newest state: keep `anchor` where backups and snapshots of `path` do not reach.

    `path`.serial is not waited for: after a power failure it may lag behind `path`, and is never ahead of it. `anchor`
    is on its disk when `save` returns. Where one of them is left and `path` is not, the state counts as lost, and no
    other takes its place: to give it up, remove them all.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5)
    >>> client = lightdp.Client.new(plan, length=4, run=bytes(16), name="ann", store=lightdp.File("ann.state"))
    >>> message = client.enrol()  # saved before the message is returned
    >>> again = lightdp.Client.restore(plan, length=4, store=lightdp.File("ann.state"))
    >>> again.enrol() == message
    True
    >>> client.enrol()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    lightdp.errors.ProtocolError: /...ann.state was saved by another client, or replaced by a copy: nothing was saved

    Args:
        path: the file; its folder must exist. Links and the working directory are followed once, now.
        anchor: a second file that keeps the number of the newest state; its folder must exist. Once there is a state,
            the anchor must exist too, or an unmounted disk would go unnoticed; for an old state, begin with an empty
            file.

    Attributes:
        path: the file, as an absolute path without links.

    Raises:
        ArgumentError: `anchor` is `path` or `path`.serial.
    """

    def __init__(self, path: str | os.PathLike[str], *, anchor: str | os.PathLike[str] | None = None) -> None:
        self.path = _resolved(path)
        self._lock, self._anchor = Path(f"{self.path}.serial"), None if anchor is None else _resolved(anchor)
        if self._anchor in {self.path, self._lock}:
            raise ArgumentError(f"anchor must be another file than path and its serial, got anchor={str(anchor)!r}")
        self._marks = (self._lock,) if self._anchor is None else (self._lock, self._anchor)

    def last(self) -> int:
        """The serial number of the newest state that was saved here, by whatever run; 0 if there was none."""
        found = self._found()
        known = [*self._kept().values()] if found is None else [*self._kept().values(), found]
        return max((mark.serial for mark in known), default=0)

    def save(self, state: bytes) -> None:
        """Replace the file.

        Raises:
            ArgumentError: the file, its serial or the anchor cannot be used; nothing was saved.
            ProtocolError: it does not hold the state that the new one follows; nothing was saved.
        """
        new = _Mark.of(state)
        if new is None:
            raise ArgumentError("state must be a JSON object with its run and serial")
        with locked(self._lock), ExitStack() as opened:
            marks, found = self._kept(), self._found()
            newest = max(marks.values(), key=lambda mark: mark.serial, default=None)
            if found is None and newest is not None and (new.first == new.serial or not new.follows(newest)):
                raise self._lost(marks)
            if not new.follows(found) or any(mark.serial >= new.serial for mark in marks.values()):
                raise ProtocolError(
                    f"{self.path} was saved by another client, or replaced by a copy: nothing was saved"
                )
            files = {path: opened.enter_context(overwritten(path)) for path in self._marks}  # fails before the state
            with durable(self.path) as file:
                file.write(state)
            for path, descriptor in files.items():
                first = path not in marks or marks[path].run != new.run
                new.write(descriptor, wait=first or path == self._anchor)

    def load(self) -> bytes:
        """What the file holds.

        Raises:
            ArgumentError: there is no such file, or others may read or write it.
            ProtocolError: it is older than what was saved last, or lost.
        """
        marks = self._kept()  # before the file, which another process may replace in between
        try:
            state = contents(self.path, limit=_LARGEST, private=True)
        except OSError as error:
            if marks and isinstance(error, FileNotFoundError):
                raise self._lost(marks) from None
            why = error.strerror
            if isinstance(error, FileNotFoundError):
                why = "it was given up" if self._lock.exists() else "there is no such file"
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}: {why}") from None
        found = _Mark.of(state)
        for path, mark in marks.items():
            if found is not None and found.precedes(mark):
                older = f"{self.path} has serial {found.serial} of run {found.run}, but {path} says that serial "
                raise ProtocolError(
                    f"{older}{mark.serial} of run {mark.run} was saved last: an older copy could answer a round again. "
                    "Move both files away to enrol anew"
                )
        return state

    def give_up(self) -> list[Path]:
        """Remove the state and what keeps its number, with all that it has spent: a new client may begin here.

        `path`.serial is emptied and stays, as the lock of whoever waits for it. If the call is interrupted, what is
        left counts as a lost state, and no client begins.

        Returns:
            The files that were there.

        Raises:
            ArgumentError: nothing says that there was a state; nothing was removed.
        """
        if not any(map(_Mark.kept, self._marks)) and (not self.path.exists() or self._found() is None):
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}, which is not there")
        with locked(self._lock):
            found = [path for path in (self.path, self._anchor, self._lock) if path is not None and path.is_file()]
            for path in found[:-1]:
                path.unlink()
                synchronise(path.parent)
            os.truncate(self._lock, 0)
            synchronise(self._lock)
        return found

    def _found(self) -> _Mark | None:
        """The mark of the state that is there; None if there is no file."""
        try:
            state = contents(self.path, limit=_LARGEST)
        except FileNotFoundError:
            return None
        if (found := _Mark.of(state)) is None:
            raise ArgumentError(f"path must hold a client's state or be free, got path={str(self.path)!r}")
        return found

    def _lost(self, marks: dict[Path, _Mark]) -> ProtocolError:
        path, mark = max(marks.items(), key=lambda item: item[1].serial)
        return ProtocolError(
            f"{self.path} is lost: {path} says that serial {mark.serial} of run {mark.run} was saved there. Bring it "
            f"back, from no backup; to give it up, with what it has spent, and enrol anew, remove "
            f"{' and '.join(map(str, marks))} too"
        )

    def _kept(self) -> dict[Path, _Mark]:
        if self._anchor is not None and self.path.exists() and not self._anchor.exists():
            raise ArgumentError(f"anchor must exist, as {self.path} does, got anchor={str(self._anchor)!r}")
        return {path: mark for path in self._marks if (mark := _Mark.read(path)) is not None}


@dataclass(frozen=True)
class _Mark:
    """The place of a state in the order of all states of a file."""

    run: str
    serial: int
    first: int | None = None  # the number of the run's first state, where that is known

    @classmethod
    def of(cls, state: bytes) -> _Mark | None:
        """That of a state, or None if the bytes are no state; whoever goes on from it refuses those."""
        try:
            facts = json.loads(state)
            match = _MARK.fullmatch(f"{facts['run']} {facts['serial']}")
            first = facts.get("first")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None
        return None if match is None else cls(match[1], int(match[2]), first if type(first) is int else None)

    def follows(self, last: _Mark | None) -> bool:
        """Whether a state may replace the last one: it is the next of its client, or the first of another run."""
        if last is None:
            return True
        if self.serial != last.serial + 1:
            return False
        if self.run != last.run:
            return self.first in {None, self.serial}
        return None in {self.first, last.first} or self.first == last.first

    def precedes(self, mark: _Mark) -> bool:
        """Whether a state is not the marked one, nor came after it; after a crash it may be one ahead."""
        if self.run == mark.run:
            return self.serial < mark.serial
        return (self.serial if self.first is None else self.first) <= mark.serial

    @classmethod
    def read(cls, path: Path) -> _Mark | None:
        """What `write` left in a file; None if there is nothing in it, as a power failure may leave it."""
        try:
            text = contents(path, limit=_MARK_BYTES).strip(b"\0\n ").decode("ascii", errors="replace")
        except FileNotFoundError:
            return None
        if text == "":
            return None
        if (match := _MARK.fullmatch(text)) is None:
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


def _resolved(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser().resolve()

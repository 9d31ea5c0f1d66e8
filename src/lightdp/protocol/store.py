"""Where a client's state lives: private, written whole or line by line, and never older than what was written last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from lightdp._files import contents, durable, extend, locked, overwritten, synchronise
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol.marks import Found, Mark

_LARGEST = 2**30  # bytes of a state: about 450 for each client of the roster, 300 and 1/4 a neighbour for each round


class Store(Protocol):
    """What keeps a client's state, which holds a private key: one line, and one more for each entry since.

    `save` and `append` return only when `load`, after any crash, would return what they were given, or more.
    """

    def save(self, state: bytes) -> None:
        """Keep the newest state, in place of all that was kept before."""

    def append(self, entry: bytes) -> None:
        """Keep what has happened since, a line that follows those that are kept.

        Raises:
            FileNotFoundError: nothing is kept that it could follow; then the whole state is saved.
        """

    def load(self) -> bytes:
        """The newest state, and after a newline each the entries that were appended to it."""


def appended(store: Store | None, entry: bytes) -> bool:
    """Append an entry where there is a store; false if the state was lost there, and must be saved as a whole."""
    try:
        if store is not None:
            store.append(entry)
    except FileNotFoundError:
        return False
    return True


class File:
    """A state in a file that only its owner can read, replaced atomically or extended by a line, by one client.

    A state has a serial number that grows by one with each save and each line, and goes on when a new run takes the
    file over. Run and number are also kept in `path`.serial, which is the lock of a save too, and in `anchor` if there
    is one. A last line without its end is what a crash left of an entry that was not kept: it does not count.

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
        self._seen: tuple[object, Found] | None = None  # what this object has read or left, and when

    def last(self) -> int:
        """The serial number of the newest state that was saved here, by whatever run; 0 if there was none."""
        found = self._found()
        known = [*self._kept().values()] if found is None else [*self._kept().values(), found.newest]
        return max((mark.serial for mark in known), default=0)

    def save(self, state: bytes) -> None:
        """Replace the file.

        Raises:
            ArgumentError: the file, its serial or the anchor cannot be used; nothing was saved.
            ProtocolError: it does not hold the state that the new one follows; nothing was saved.
        """
        new = Mark.of(state)
        if new is None or b"\n" in state:
            raise ArgumentError("state must be a JSON object with its run and serial, in one line")
        with locked(self._lock), self._following(new), durable(self.path) as file:
            file.write(state + b"\n")

    def append(self, entry: bytes) -> None:
        """Add a line to the file. What was written before is not read again if nobody else has changed the file.

        Raises:
            ArgumentError: the file, its serial or the anchor cannot be used; nothing was saved.
            ProtocolError: it does not hold the state that the entry follows; nothing was saved.
            FileNotFoundError: there is no file, and this client may put it back by `save`.
        """
        new = Mark.of(entry)
        if new is None or b"\n" in entry:
            raise ArgumentError("entry must be a JSON object with its run and serial, in one line")
        with locked(self._lock), self._following(new, entry=True) as found:
            if found is None:
                raise FileNotFoundError(f"{self.path} is not there: nothing was saved")
            extend(self.path, b"\n" * (not found.ended) + entry + b"\n", end=found.end)

    @contextmanager
    def _following(self, new: Mark, *, entry: bool = False) -> Iterator[Found | None]:
        """What the file holds before it becomes the state `new`; marks of that are left when the block has ended."""
        marks = self._kept()
        found = self._found(marks.get(self._lock) if entry else None)
        newest = max(marks.values(), key=lambda mark: mark.serial, default=None)
        if found is None and newest is not None and (new.first == new.serial or not new.follows(newest)):
            raise self._lost(marks)
        last = None if found is None else found.newest
        follows = new.follows(last) and not (entry and last is not None and last.run != new.run)
        if not follows or any(mark.serial >= new.serial for mark in marks.values()):
            raise ProtocolError(f"{self.path} was saved by another client, or replaced by a copy: nothing was saved")
        self._seen = None
        with ExitStack() as opened:
            files = {path: opened.enter_context(overwritten(path)) for path in self._marks}  # fails before the state
            yield found
            for path, descriptor in files.items():
                first = path not in marks or marks[path].run != new.run
                new.write(descriptor, wait=first or path == self._anchor)
        facts = self.path.stat()
        self._seen = _stamp(facts), Found(new, facts.st_size, ended=True)

    def load(self) -> bytes:
        """What the file holds.

        Raises:
            ArgumentError: there is no such file, others may read or write it, or a line of it is damaged.
            ProtocolError: it is older than what was saved last, or lost.
        """
        marks = self._kept()  # before the file, which another process may replace in between
        try:
            before = _stamp(self.path.stat())
            data = contents(self.path, limit=_LARGEST, private=True)
            after = _stamp(self.path.stat())
        except OSError as error:
            if marks and isinstance(error, FileNotFoundError):
                raise self._lost(marks) from None
            why = error.strerror
            if isinstance(error, FileNotFoundError):
                why = "it was given up" if self._lock.exists() else "there is no such file"
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}: {why}") from None
        found = Found.of(data, self.path)
        for path, mark in marks.items():
            if found is not None and found.newest.precedes(mark):
                newest = found.newest
                older = f"{self.path} has serial {newest.serial} of run {newest.run}, but {path} says that serial "
                raise ProtocolError(
                    f"{older}{mark.serial} of run {mark.run} was saved last: an older copy could answer a round again. "
                    "Move both files away to enrol anew"
                )
        if found is None:
            return data
        self._seen = (after, found) if before == after else None
        return data[: found.end].removesuffix(b"\n")

    def give_up(self) -> list[Path]:
        """Remove the state and what keeps its number, with all that it has spent: a new client may begin here.

        `path`.serial is emptied and stays, as the lock of whoever waits for it. If the call is interrupted, what is
        left counts as a lost state, and no client begins.

        Returns:
            The files that were there.

        Raises:
            ArgumentError: nothing says that there was a state; nothing was removed.
        """
        if not any(map(Mark.kept, self._marks)) and (not self.path.exists() or self._found() is None):
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}, which is not there")
        with locked(self._lock):
            found = [path for path in (self.path, self._anchor, self._lock) if path is not None and path.is_file()]
            for path in found[:-1]:
                path.unlink()
                synchronise(path.parent)
            os.truncate(self._lock, 0)
            synchronise(self._lock)
        return found

    def _found(self, serial: Mark | None = None) -> Found | None:
        """What is there; None if there is no file.

        Args:
            serial: what `path`.serial says. If it is the state that this object has seen last, and the file has not
                changed since, then the file is not read.
        """
        try:
            if self._seen is not None and serial is not None:
                stamp, left = self._seen
                same = (serial.run, serial.serial) == (left.newest.run, left.newest.serial)
                if same and stamp == _stamp(self.path.stat()):
                    return left
            data = contents(self.path, limit=_LARGEST)
        except FileNotFoundError:
            return None
        if (found := Found.of(data, self.path)) is None:
            raise ArgumentError(f"path must hold a client's state or be free, got path={str(self.path)!r}")
        return found

    def _lost(self, marks: dict[Path, Mark]) -> ProtocolError:
        path, mark = max(marks.items(), key=lambda item: item[1].serial)
        return ProtocolError(
            f"{self.path} is lost: {path} says that serial {mark.serial} of run {mark.run} was saved there. Bring it "
            f"back, from no backup; to give it up, with what it has spent, and enrol anew, remove "
            f"{' and '.join(map(str, marks))} too"
        )

    def _kept(self) -> dict[Path, Mark]:
        if self._anchor is not None and self.path.exists() and not self._anchor.exists():
            raise ArgumentError(f"anchor must exist, as {self.path} does, got anchor={str(self._anchor)!r}")
        return {path: mark for path in self._marks if (mark := Mark.read(path)) is not None}


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does."""
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _resolved(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser().resolve()

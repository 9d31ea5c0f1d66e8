"""The logs below one folder, and the files that belong to them; nothing else is ever opened."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from lightdp.errors import ArgumentError
from lightdp.runlog import Follower

_DEPTH = 4  # folders below the folder
_MOST_FILES = 20_000  # looked at
_WALK_S = 3.0  # for so long a walk through the folder is good
_KEEP_S = 60.0  # after so long unwatched, the lines of a log are dropped
MOST_LOGS = 500
"""The logs that are shown, those that were written last."""
_BEGIN = re.compile(rb'\s*\{\s*"kind"\s*:\s*"run"')
MODELS = (".safetensors", ".pt", ".npz", ".npy")
"""Suffixes of a model beside its log, as `lightdp run --save-model` and apps of Flower write it."""


class Folder:
    """Finds logs by their names, which are paths below the folder with slashes.

    Guarantee: what it opens is a regular file below the folder, reached without a link: a `.jsonl` file that begins as
    logs do, or a model of the same name beside one.

    Args:
        path: the folder.

    Attributes:
        label: the folder as text to show.

    Raises:
        ArgumentError: it is none.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ArgumentError(f"FOLDER must be a folder, got FOLDER={str(path)!r}")
        self.path = path.resolve()
        self.label = os.fsencode(self.path).decode("utf-8", "replace")
        self._followed: dict[str, Follower] = {}
        self._asked: dict[str, float] = {}  # when each was last
        self._walked: tuple[float, list[str]] = (-math.inf, [])
        self._lock, self._walking = threading.Lock(), threading.Lock()

    def file(self, name: str, suffix: str = ".jsonl") -> Path:
        """The file of a log with this name, or the one beside it with another suffix.

        Raises:
            ArgumentError: there is none below the folder.
        """
        parts = PurePosixPath(name).parts
        plain = bool(parts) and name == "/".join(parts) and "\0" not in name and "\\" not in name
        if plain and name.endswith(".jsonl") and not any(part.startswith((".", "/")) or _odd(part) for part in parts):
            log = self.path.joinpath(*parts)
            found = log.with_suffix(suffix)
            try:
                if _plain(log) and _plain(found) and _begins(log):
                    return found
            except (OSError, RuntimeError):
                pass
        raise ArgumentError(f"run must be the name of a log in the folder, got run={name!r}")

    def model(self, name: str) -> Path | None:
        """The model beside a log, if there is one."""
        for suffix in MODELS:
            try:
                return self.file(name, suffix)
            except ArgumentError:
                continue
        return None

    def follow(self, name: str) -> Follower:
        """The log of this name; while it is asked for it stays the same object, also if its file is away.

        Raises:
            ArgumentError: there is none, and there was none, or a link leads to it now.
        """
        now = time.monotonic()
        with self._lock:
            for each in [each for each, last in self._asked.items() if now - last > _KEEP_S and each != name]:
                del self._asked[each], self._followed[each]
            if (found := self._followed.get(name)) is not None:
                self._asked[name] = now
        if found is not None:
            if found.path.parent.resolve() != found.path.parent:  # the last step is checked as it is opened
                raise ArgumentError(f"run must be reached without a link, got run={name!r}")
            return found
        path = self.file(name)
        with self._lock:
            self._asked[name] = now
            return self._followed.setdefault(name, Follower(path))

    def logs(self) -> list[tuple[str, Follower]]:
        """Every log that is there now, looked at; what was written last comes first."""
        with self._walking:
            walked, names = self._walked
            if time.monotonic() - walked > _WALK_S:
                names = [name for name, _ in sorted(self._names(), key=lambda each: -each[1])[:MOST_LOGS]]
                self._walked = time.monotonic(), names
        found = []
        for name in names:
            try:
                followed = self.follow(name)
            except ArgumentError:  # gone meanwhile
                continue
            followed.look()
            if followed.there:
                found.append((name, followed))
        return found

    def _names(self) -> Iterator[tuple[str, float]]:
        """Files that begin as logs do, with the time of their last change."""
        looked = 0
        for place, folders, files in os.walk(self.path, followlinks=False):
            here = Path(place)
            depth = len(here.relative_to(self.path).parts)
            folders[:] = sorted(each for each in folders if not each.startswith(".")) if depth < _DEPTH else []
            for each in files:
                looked += 1
                if looked > _MOST_FILES:
                    return
                path = here / each
                if each.startswith(".") or path.suffix != ".jsonl" or path.is_symlink():
                    continue
                name = path.relative_to(self.path).as_posix()
                try:
                    name.encode("utf-8")  # no other name can be asked for
                    if name not in self._followed and not _begins(path):
                        continue
                    yield name, path.stat().st_mtime
                except (OSError, UnicodeEncodeError):
                    continue


def _odd(part: str) -> bool:
    """Whether Windows would read more into a name than a name."""
    return os.name == "nt" and ":" in part


def _plain(path: Path) -> bool:
    """Whether it is a regular file that is reached without a link."""
    return path.is_file() and path.resolve(strict=True) == path


def _begins(path: Path) -> bool:
    """Whether a regular file begins as logs do; a pipe would wait."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _BEGIN.match(file.read(64)) is not None

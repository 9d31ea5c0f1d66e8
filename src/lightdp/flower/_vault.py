"""The state of a node between messages, each of which may be handled by a new process (W3)."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict

from lightdp._files import locked
from lightdp.errors import ArgumentError, LightDPError, ProtocolError
from lightdp.federation import Member, unwrapped
from lightdp.flower._settings import KEY, LOG, unnamed
from lightdp.protocol import File

_FIELDS = {"serial": int, "client": str, "run": str, "plan": str, "length": int, "before": float, "kinds": list}

_NEWEST: dict[tuple[int, int], bytes] = {}  # the last state of each node without a file, by run and node id
_LOCKS: dict[tuple[int, int], threading.Lock] = {}

_MOST = 64  # nodes whose members stay in memory
_KEPT: OrderedDict[Hashable, Vault] = OrderedDict()  # with their members, between messages to this process
_KEEPING = threading.Lock()


class Vault:
    """A `Store` in the state file of a node or, if it has none, in `context.state`.

    With a file, the context keeps the number and a digest of the state that was kept last: an older file, or another of
    the same number, is refused. Each line of the file is a record; the first has all fields, and an entry has those
    that it changes, with "client" to be added as a line.

    Formal guarantee: the state with the highest serial number is used, and each change has a higher one. So an older
    state never answers a round again as long as a newer one is left in the file or, without a file, in the context or
    in this process. `save` and `append` return when the file is durable. A member stays in memory between messages only
    as long as the state that it has saved last is the newest: then it is what `Member.restore` would make of it.
    `refuse_copy` notices a copy in another file, or one of a node that its operator named otherwise.

    Attributes:
        record: empty if there is no state, otherwise "serial", "client" (the lines of the state of a `Member`, or of
            a `Client` in files of earlier versions), "run", "plan" (its arguments), "length", "before" (μ² of earlier
            runs) and "kinds" (unit and adjacency of all of them and of this one); and, where they are known, "path"
            (of the file in which the run began), "layout" (of the arrays that are trained in it), "node" (the node's id
            when it enrolled) and "failed" (by how much drawn masks of earlier runs may fail).

    Raises:
        ProtocolError: the state file is gone, but not what keeps its number, or is older than that says.
    """

    def __init__(self, context: Context, path: Path | None, anchor: Path | None = None) -> None:
        self._state, self._file = context.state, None
        self._member: tuple[object, Member] | None = None
        if path is not None:
            self._file = File(path, anchor=anchor)
        self._path = None if path is None else str(path.absolute())
        self._node, self._unnamed = (context.run_id, context.node_id), unnamed(context)
        found = context.state.get(KEY)
        kept = found if isinstance(found, ConfigRecord) else None
        if path is None or self._file is None:
            blobs: list[object] = [_NEWEST[self._node]] if self._node in _NEWEST else []
            blobs += [] if kept is None else [kept.get("state")]
            self.record: dict[str, Any] = max(map(_parsed, blobs), key=lambda state: state["serial"], default={})
            self._digest = b""
        else:
            lines = self._file.load().split(b"\n") if path.exists() else []
            self.record = _parsed(b"\n".join(lines)) if lines else {}
            self._digest = reduce(_digested, lines, b"")
            self._refuse_lost(kept, path, anchor)
        self._layout = self.record.get("layout")  # as it is kept

    def _refuse_lost(self, kept: ConfigRecord | None, path: Path, anchor: Path | None) -> None:
        """Refuse a file that is gone, or older than the one that the context or a mark knows of."""
        serial, digest = (0, b"") if kept is None else (kept.get("serial"), kept.get("digest"))
        if not isinstance(serial, int) or not isinstance(digest, bytes):
            raise _no_state()
        marks = [f"{mark}" for mark in (Path(f"{path}.serial"), anchor) if _marked(mark)]
        if not self.record and (marks or serial > 0):
            left = f"removing {' and '.join(marks)}" if marks else "starting the node again"
            raise ProtocolError(
                f"lightdp-state {path} is lost, and with it what this node has spent and answered. Its operator brings "
                f"it back, or gives it up by {left}"
            )
        found = self.record.get("serial", 0)
        if found < serial or (found == serial > 0 and digest != self._digest):
            raise ProtocolError(
                f"lightdp-state {path} has serial {found}, and this node has saved serial {serial}: an older copy "
                "could answer a round again. Its operator brings the newest back"
            )

    def save(self, state: bytes) -> None:
        """Store the state of a member together with the rest of the record."""
        member, self._member = self._member, None  # if this fails, nobody knows which state counts: read it again
        self.record |= {"serial": self.record.get("serial", 0) + 1, "client": state.decode()}
        self.record.setdefault("path", self._path)
        line = json.dumps({"serial": self.record["serial"], "run": self.record["run"]} | self.record).encode()
        if self._file is not None:
            self._file.save(line)
        self._member = member
        self._tell(_digested(b"", line))

    def append(self, entry: bytes) -> None:
        """Store one more entry of a member together with what else has changed in the record."""
        member, self._member = self._member, None
        changes = {"serial": self.record["serial"] + 1, "run": self.record["run"], "client": entry.decode()}
        changes |= {} if self.record["layout"] == self._layout else {"layout": self.record["layout"]}
        line = json.dumps(changes).encode()
        if self._file is not None:
            self._file.append(line)
        self._member = member
        self.record |= changes | {"client": f"{self.record['client']}\n{changes['client']}"}
        self._tell(_digested(self._digest, line))

    def _tell(self, digest: bytes) -> None:
        """Put into the context what was kept, or what is needed to know it again."""
        self._digest, self._layout = digest, self.record.get("layout")
        if self._file is None:
            _NEWEST[self._node] = blob = json.dumps(self.record).encode()
            self._state[KEY] = ConfigRecord({"state": blob})
        else:
            self._state[KEY] = ConfigRecord({"serial": self.record["serial"], "digest": digest})

    def load(self) -> bytes:
        """The newest state of the member."""
        return str(self.known()["client"]).encode()

    def member(self, like: object, made: Callable[[], Member]) -> Member:
        """The member of this state: the one in memory, if it was made with the same settings, or the one `made` makes.

        Args:
            like: the settings it is made with.
            made: makes or restores a member, whose store is this object.
        """
        if self._member is None or self._member[0] != like:
            self._member = None  # before another member of this state is made
            self._member = like, made()
        return self._member[1]

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin a run with this in the record, at the place where the state lies now; `save` makes it durable."""
        self.record |= facts | {"path": self._path, "layout": None, "node": self._node[1]}

    @property
    def node(self) -> int:
        """The id that the node had when it enrolled in the run, which its server could not yet choose by uploads."""
        return int(self.record.get("node", self._node[1]))

    def bind(self, layout: str) -> None:
        """Keep what the run trains, or refuse another than before; the next `save` makes it durable.

        Raises:
            ProtocolError: the run has trained arrays of other names or shapes.
        """
        if self.record.get("layout") not in {None, layout}:
            raise ProtocolError("the names and shapes of trained arrays must be those of this run's first round")
        self.record["layout"] = layout

    def refuse_copy(self, name: str, *, configured: str) -> None:
        """Refuse to go on in a run with a state that began it in another file, or as another node.

        Both the state and its copy would answer the same rounds with the same noise. The next run has other keys.

        Args:
            name: of the member in the state.
            configured: of the node. One that its operator has not named keeps the name that it has enrolled under.

        Raises:
            ProtocolError: it is a copy, or was moved.
        """
        if self._path is not None and (kept := self.record.get("path")) not in {None, self._path}:
            LOG.warning("lightdp: the run at hand began with the state in %s, and this one is %s", kept, self._path)
            raise ProtocolError(
                "the state has begun this run in another file, and a copy would answer the same rounds. Its operator "
                "puts it back, or lets the node join the next run, which counts what was spent"
            )
        if configured not in {name, self._unnamed}:
            raise ProtocolError(
                f"the state is that of {name} in this run, and lightdp-name is {configured}: a copy would answer the "
                "same rounds. Its operator sets the name back, or lets the node join the next run"
            )

    def refuse_older(self) -> None:
        """Refuse a state of a version of lightdp without members, which was made for the run at hand.

        Raises:
            ProtocolError: it is one; what it has spent is counted in the next run.
        """
        if self._member is None and self.older:
            raise ProtocolError(
                "the state of this run is of an earlier version of lightdp: this node joins the next run, which counts "
                "what was spent in it"
            )

    @property
    def older(self) -> bool:
        """Whether the state is of a version without members: that of a `Client`, or nothing at all."""
        return b'"member": ' not in self.load().partition(b"\n")[0]

    def followed(self, newest: Vault) -> bool:
        """Go on where a vault that was opened since begins; false if that is not where this one has ended."""
        if self._member is None or self.record != newest.record:
            return False
        self._state, self._node, self._unnamed = newest._state, newest._node, newest._unnamed
        return True

    def leave(self) -> None:
        """Let go of what belongs to a message."""
        self._state = RecordDict()

    def known(self) -> dict[str, Any]:
        """The record, which must not be empty."""
        if not self.record:
            raise ProtocolError(
                "this node has no state of the run: it missed the key round or lost its state; it may join the next"
            )
        return self.record


@contextmanager
def opened(context: Context, path: Path | None, anchor: Path | None = None) -> Iterator[Vault]:
    """The state of the node; other messages to the node wait on this machine (without a file: in this process)."""
    if path is None:
        node = context.run_id, context.node_id
        with (
            _LOCKS.setdefault(node, threading.Lock()),
            _kept(node, Vault(context, path)) as vault,
        ):  # setdefault is atomic
            yield vault
        return
    with ExitStack() as held:
        try:
            held.enter_context(locked(f"{path}.lock"))
        except OSError as error:
            raise ArgumentError(
                f"lightdp-state must be a file in a folder that exists, got {str(path)!r}: {error}"
            ) from None
        yield held.enter_context(_kept((path.resolve(), anchor), Vault(context, path, anchor)))


@contextmanager
def _kept(key: Hashable, newest: Vault) -> Iterator[Vault]:
    """The vault that this process has kept of a state, if it has and nothing was saved since; otherwise `newest`.

    It is out of reach while a message is handled, and lost if that fails for a reason that is not ours.
    """
    key = os.getpid(), key  # a fork has no members of its own
    with _KEEPING:
        old = _KEPT.pop(key, None)
    vault = old if old is not None and old.followed(newest) else newest
    try:
        yield vault
    except LightDPError:  # a refusal changes nothing
        _keep(key, vault)
        raise
    _keep(key, vault)


def _keep(key: Hashable, vault: Vault) -> None:
    vault.leave()
    with _KEEPING:
        _KEPT[key] = vault
        while len(_KEPT) > _MOST:
            _KEPT.popitem(last=False)


def _marked(path: Path | None) -> bool:
    """Whether a file that keeps the number of the newest state keeps one."""
    return path is not None and path.is_file() and path.read_bytes().strip(b"\0\n ") != b""


def _digested(digest: bytes, line: bytes) -> bytes:
    """The digest of some lines and another one."""
    return hashlib.sha256(digest + line).digest()


def _parsed(blob: object) -> dict[str, Any]:
    """A stored record. One that cannot be read is refused, since it may be the newest."""
    try:
        inner, found = unwrapped(blob) if isinstance(blob, bytes) else (b"", None)
        if found is not None:
            record = found | {"client": inner.decode()}
            if {name: type(record[name]) for name in _FIELDS} == _FIELDS:
                return record
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise _no_state()


def _no_state() -> ArgumentError:
    return ArgumentError("lightdp-state or the context holds something that is no state: move it away to enrol anew")

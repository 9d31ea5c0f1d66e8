"""A node's state between messages, each of which may be handled by a new process (W3)."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol import File

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "lightdp"

_FIELDS = {"serial": int, "client": str, "run": str, "plan": str, "length": int, "before": float, "budget": float}

_NEWEST: dict[tuple[int, int], bytes] = {}  # of nodes without a file: states that this process has seen
_LOCKS: dict[tuple[int, int], threading.Lock] = {}
_GUARD = threading.Lock()


class Vault:
    """A `Store` in `context.state` and, where there is one, in the node's file.

    Formal guarantee: of all states that are there, the one with the highest serial number is used, and each change
    has a higher one. So an older state never answers a round again while a newer one is left anywhere: in the file,
    in the context, or without a file in this process. `save` returns when the file is durable.

    Attributes:
        record: "client" (the state of a `Client`), "run", "plan" (its arguments), "length", "budget" (ε of the plan
            once something was sent under it) and "before" (ε of earlier plans); None if there is no state.
    """

    def __init__(self, context: Context, path: Path | None) -> None:
        self._context, self._file = context, None if path is None else File(path)
        found = [_parsed(blob) for blob in self._blobs()]
        self._serial = max((each["serial"] for each in found), default=0)
        self.record: dict[str, Any] | None = max(found, key=lambda each: each["serial"], default=None)

    def save(self, state: bytes) -> None:
        """Keep a client's state and what is known with it."""
        self._serial += 1
        self.record = {} if self.record is None else self.record
        self.record |= {"serial": self._serial, "client": state.decode()}
        blob = json.dumps(self.record).encode()
        if self._file is not None:
            self._file.save(blob)
        else:
            _NEWEST[_key(self._context)] = blob
        self._context.state[KEY] = ConfigRecord({"state": blob})

    def load(self) -> bytes:
        """The newest client's state."""
        return str(self.known()["client"]).encode()

    def known(self) -> dict[str, Any]:
        """The record, which must be there."""
        if self.record is None:
            raise ProtocolError(
                "this node has no state of the run: it missed the key round or lost its state, and is out for now"
            )
        return self.record

    def spent(self) -> float:
        """The ε of all plans under which something was sent."""
        return 0.0 if self.record is None else float(self.record["before"] + self.record["budget"])

    def _blobs(self) -> Iterator[bytes]:
        if self._file is not None and self._file.path.exists():
            yield self._file.load()
        if self._file is None and _key(self._context) in _NEWEST:
            yield _NEWEST[_key(self._context)]
        kept = self._context.state.config_records.get(KEY)
        if kept is not None:
            state = kept.get("state")
            yield state if isinstance(state, bytes) else b""


@contextmanager
def opened(context: Context, path: Path | None) -> Iterator[Vault]:
    """The node's state, while no other message of the node is handled on this machine (without a file: process)."""
    if path is None:
        with _GUARD:
            lock = _LOCKS.setdefault(_key(context), threading.Lock())
        with lock:
            yield Vault(context, path)
        return
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ArgumentError(
            f"lightdp-state must be a file in a folder that exists, got {str(path)!r}: {error}"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Vault(context, path)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # not by closing alone: a forked child may hold it open
        os.close(descriptor)


def _key(context: Context) -> tuple[int, int]:
    return context.run_id, context.node_id


def _parsed(blob: bytes) -> dict[str, Any]:
    """A state as it was written; what cannot be read is refused, since it may be the newest."""
    try:
        record = json.loads(blob)
        if {name: type(record[name]) for name in _FIELDS} == _FIELDS:
            return dict(record)
    except (ValueError, TypeError, KeyError):
        pass
    raise ArgumentError("lightdp-state or the context holds something that is no state: move it away to enrol anew")

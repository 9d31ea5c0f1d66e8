"""The state of a node between messages, each of which may be handled by a new process (W3)."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower._settings import KEY
from lightdp.protocol import File

_FIELDS = {"serial": int, "client": str, "run": str, "plan": str, "length": int, "before": float}

_NEWEST: dict[tuple[int, int], bytes] = {}  # the last state of each node without a file, by run and node id
_LOCKS: dict[tuple[int, int], threading.Lock] = {}


class Vault:
    """A `Store` in `context.state` and, if the node has one, in its state file.

    Formal guarantee: the state with the highest serial number is used, and each change has a higher one. So an older
    state never answers a round again as long as a newer one is left in the file, in the context or, without a file, in
    this process. `save` returns when the file is durable.

    Attributes:
        record: empty if there is no state, otherwise "serial", "client" (the state of a `Client`), "run", "plan" (its
            arguments), "length" and "before" (μ² of earlier runs).
    """

    def __init__(self, context: Context, path: Path | None, anchor: Path | None = None) -> None:
        self._context, self._file = context, None if path is None else File(path, anchor=anchor)
        self._node = context.run_id, context.node_id
        kept = context.state.config_records.get(KEY)
        blobs: list[Any] = [] if kept is None else [kept.get("state")]
        if self._file is None:
            blobs += [_NEWEST[self._node]] if self._node in _NEWEST else []
        elif self._file.path.exists():
            blobs.append(self._file.load())
        self.record: dict[str, Any] = max(map(_parsed, blobs), key=lambda state: state["serial"], default={})

    def save(self, state: bytes) -> None:
        """Store the state of a client together with the rest of the record."""
        self.record |= {"serial": self.record.get("serial", 0) + 1, "client": state.decode()}
        blob = json.dumps(self.record).encode()
        if self._file is None:
            _NEWEST[self._node] = blob
        else:
            self._file.save(blob)
        self._context.state[KEY] = ConfigRecord({"state": blob})

    def load(self) -> bytes:
        """The newest state of the client."""
        return str(self.known()["client"]).encode()

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
        with _LOCKS.setdefault((context.run_id, context.node_id), threading.Lock()):  # setdefault is atomic
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
        yield Vault(context, path, anchor)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # not by closing alone: a forked child may hold it open
        os.close(descriptor)


def _parsed(blob: bytes) -> dict[str, Any]:
    """A stored record. One that cannot be read is refused, since it may be the newest."""
    try:
        record = json.loads(blob)
        if {name: type(record[name]) for name in _FIELDS} == _FIELDS:
            return dict(record)
    except (ValueError, TypeError, KeyError):
        pass
    raise ArgumentError("lightdp-state or the context holds something that is no state: move it away to enrol anew")

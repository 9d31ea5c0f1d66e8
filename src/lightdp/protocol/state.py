"""A client's state as a value, and where it lives: private, written whole or not at all, before uploads leave (W3)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightdp._files import durable
from lightdp._validate import integer, octets
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Enrolment, KeyPair, Roster

_VERSION = 2


@dataclass(frozen=True)
class ClientState:
    """All that a client must remember; everything else follows from it and the plan.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5)
    >>> store = lightdp.File("bob.state")
    >>> _ = lightdp.Client.new(plan, length=4, run=bytes(16), name="bob", store=store).enrol()
    >>> state = ClientState.from_bytes(store.load())
    >>> lightdp.Plan.from_json(state.plan).digest() == plan.digest(), state.length, state.weighted
    (True, 4, False)

    Attributes:
        agreement: 32 bytes that bind the plan and the shape of uploads.
        plan: the plan's settings as `Plan.to_json` writes them and `Plan.from_json` reads them.
        length: number of values of an update.
        weighted: whether updates carry weights.
        run: 16 bytes that name the run.
        pair: the one-time key pair. Private.
        enrolment: its signed public half.
        roster: everybody's, once joined.
        used: the announced clients of each past round.
        sent: rounds that were answered.
        closing: the round that was answered without data, if there was one.
    """

    agreement: bytes
    plan: str
    length: int
    weighted: bool
    run: bytes
    pair: KeyPair
    enrolment: Enrolment
    roster: Roster | None = None
    used: tuple[ClientSet, ...] = ()
    sent: frozenset[int] = frozenset()
    closing: int | None = None

    def to_bytes(self) -> bytes:
        """The state as JSON, with the private key in it."""
        facts = {
            "version": _VERSION,
            "agreement": self.agreement.hex(),
            "plan": json.loads(self.plan),
            "length": self.length,
            "weighted": self.weighted,
            "run": self.run.hex(),
            "pair": self.pair.to_bytes().hex(),
            "enrolment": self.enrolment.to_bytes().hex(),
            "roster": None if self.roster is None else self.roster.to_bytes().hex(),
            "used": [used.to_bytes().hex() for used in self.used],
            "sent": sorted(self.sent),
            "closing": self.closing,
        }
        return json.dumps(facts).encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, agreement: bytes | None = None) -> ClientState:
        """What `to_bytes` returned.

        Args:
            data: the bytes.
            agreement: that of the plan, length and weights with which the client goes on; None to read any state.

        Raises:
            ArgumentError: the bytes are no state, or one of another agreement.
        """
        try:
            facts = json.loads(data)
            if facts["version"] != _VERSION:
                raise ArgumentError(f"store must hold a client's state of version {_VERSION}, got {facts['version']!r}")
            run, pair = bytes.fromhex(facts["run"]), KeyPair(bytes.fromhex(facts["pair"]))
            enrolment = Enrolment.from_bytes(bytes.fromhex(facts["enrolment"]), run=run)
            agreed = octets("agreement", bytes.fromhex(facts["agreement"]), 32)
            if agreement not in {None, agreed}:
                raise ArgumentError("plan, length and weighted must be those of the state in store")
            clients, roster = integer("clients", facts["plan"]["clients"], 2), facts["roster"]
            return cls(
                agreed,
                json.dumps(facts["plan"], sort_keys=True),
                integer("length", facts["length"], 1),
                _flag(facts["weighted"]),
                run,
                pair,
                enrolment,
                None if roster is None else Roster.from_bytes(bytes.fromhex(roster), run=run, plan=agreed),
                tuple(ClientSet.from_bytes(bytes.fromhex(used), clients) for used in facts["used"]),
                frozenset(integer("sent", t, 0) for t in facts["sent"]),
                None if facts.get("closing") is None else integer("closing", facts["closing"], 0),
            )
        except (KeyError, TypeError, ProtocolError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            # the type alone: the text of some errors quotes what was read, and that holds the private key
            raise ArgumentError(f"store must hold a client's state, got {type(error).__name__}") from None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"weighted must be true or false, got weighted={value!r}")
    return value


class Store(Protocol):
    """What keeps a client's state, which holds a private key.

    `save` returns only when `load`, after any crash, would return these bytes or later ones.
    """

    def save(self, state: bytes) -> None:
        """Keep the newest state."""

    def load(self) -> bytes:
        """The newest state."""


class File:
    """A state in a file that only its owner can read, replaced atomically and durably.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5)
    >>> client = lightdp.Client.new(plan, length=4, run=bytes(16), name="ann", store=lightdp.File("ann.state"))
    >>> message = client.enrol()  # saved before the message is returned
    >>> again = lightdp.Client.restore(plan, length=4, store=lightdp.File("ann.state"))
    >>> again.enrol() == message
    True

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def save(self, state: bytes) -> None:
        """Replace the file."""
        with durable(self.path) as file:
            file.write(state)

    def load(self) -> bytes:
        """What the file holds."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ArgumentError(f"path must hold a client's state, got path={str(self.path)!r}: {error}") from None

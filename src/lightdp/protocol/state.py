"""A client's state as a value, which is saved before what it tells of leaves (W3)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from lightdp._validate import integer, octets
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Enrolment, KeyPair, Roster
from lightdp.protocol.host import Host

_VERSION = 3


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
        used: the announced clients of each round whose set is final.
        on_time: under grace, those of each past round whose uploads came in time.
        sent: rounds that were answered.
        closing: those of them that were answered without data.
        serial: of the state where it is kept; it grows by one with each save.
        host: the machine that saved it.
        first: the serial of the client's first save, 0 before it. A `File` that an earlier run used goes on counting.
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
    on_time: tuple[ClientSet, ...] = ()
    sent: frozenset[int] = frozenset()
    closing: frozenset[int] = frozenset()
    serial: int = 0
    host: Host = field(default_factory=Host.here)
    first: int = 0

    def next(self) -> ClientState:
        """The state as it is saved: with the next serial number, and this machine."""
        serial = self.serial + 1
        return replace(self, serial=serial, first=self.first or serial, host=Host.here())

    def to_bytes(self) -> bytes:
        """The state as JSON, with the private key in it."""
        facts = {
            "version": _VERSION,
            "serial": self.serial,
            "first": self.first,
            "machine": self.host.machine,
            "boot": self.host.boot,
            "agreement": self.agreement.hex(),
            "plan": json.loads(self.plan),
            "length": self.length,
            "weighted": self.weighted,
            "run": self.run.hex(),
            "pair": self.pair.to_bytes().hex(),
            "enrolment": self.enrolment.to_bytes().hex(),
            "roster": None if self.roster is None else self.roster.to_bytes().hex(),
            "used": [each.to_bytes().hex() for each in self.used],
            "on_time": [each.to_bytes().hex() for each in self.on_time],
            "sent": sorted(self.sent),
            "closing": sorted(self.closing),
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
                None if roster is None else _roster(bytes.fromhex(roster), run, agreed),
                _sets(facts["used"], clients),
                _sets(facts["on_time"], clients),
                frozenset(integer("sent", t, 0) for t in facts["sent"]),
                frozenset(integer("closing", t, 0) for t in facts["closing"]),
                integer("serial", facts["serial"], 1),
                Host(*(None if facts[what] is None else str(facts[what]) for what in ("machine", "boot"))),
                integer("first", facts["first"], 1, facts["serial"]),
            )
        except (KeyError, RecursionError, TypeError, ProtocolError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            # the type alone: the text of some errors quotes what was read, and that holds the private key
            raise ArgumentError(f"store must hold a client's state, got {type(error).__name__}") from None


def _roster(data: bytes, run: bytes, agreed: bytes) -> Roster:
    """The roster that the client joined, and verified then.

    Verifying it anew would protect from nobody: whoever can alter the state has its private key too. By accident it
    cannot change unnoticed either: announcements carry its hash, and so do all keys.
    """
    return Roster.from_bytes(data, run=run, plan=agreed, verified=True)


def _sets(written: list[str], clients: int) -> tuple[ClientSet, ...]:
    return tuple(ClientSet.from_bytes(bytes.fromhex(each), clients) for each in written)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"weighted must be true or false, got weighted={value!r}")
    return value

"""A client's state as a value, which is saved before what it tells of leaves (W3).

It is kept as lines of JSON: first all that the client knew when it was written as a whole (on enrolling and joining),
then one `Entry` for each round that it has answered since. So what is written in a round does not grow with the run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightdp._validate import integer, octets
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Enrolment, KeyPair, Roster
from lightdp.neighbourhood import Neighbourhood
from lightdp.protocol.host import Host
from lightdp.protocol.rounds import LocalRound, on_time_sets, packed, unpacked, used_sets

_VERSION = 4
_WHOLE = 3  # the version that kept whole sets, and no chain


DAMAGED = (AttributeError, KeyError, RecursionError, TypeError, ProtocolError, ValueError)
"""What reading a damaged state may raise."""


def unreadable(whose: str, error: Exception) -> ArgumentError:
    """What to raise for a state that cannot be read; of most errors the type alone.

    The text of some quotes what was read, and that holds the private key.
    """
    if isinstance(error, ArgumentError):
        return error
    return ArgumentError(f"store must hold a {whose}'s state, got {type(error).__name__}")


def numbered(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    r"""The lines of a state: the whole one, and the entries after it, which have the numbers that follow.

    >>> numbered(b'{"serial": 4}\n{"serial": 5}')
    ({'serial': 4}, [{'serial': 5}])

    Raises:
        ArgumentError: an entry has another number.
        DAMAGED: a line is something else.
    """
    base, *entries = json.loads(b"[%s]" % data.removesuffix(b"\n").replace(b"\n", b","))
    for number, facts in enumerate(entries, base["serial"] + 1):
        if facts["serial"] != number:
            raise ArgumentError(f"store must hold all entries, got {facts['serial']!r} in the place of {number}")
    return base, entries


@dataclass(frozen=True)
class Entry:
    """What a client adds to its state when it answers a round.

    >>> entry = Entry(3, closing=False)
    >>> Entry.of(sealed(entry.facts())) == entry
    True

    Attributes:
        round: that it answers.
        closing: whether the answer is without data.
        told: what was announced of earlier rounds and is new to it.
        given: what the answer is bound to, 32 bytes (W4); None for nothing.
    """

    round: int
    closing: bool
    told: tuple[LocalRound, ...] = ()
    given: bytes | None = None

    def facts(self) -> dict[str, Any]:
        """As it is written."""
        bound = {} if self.given is None else {"given": self.given.hex()}
        return {"round": self.round, "closing": self.closing, "told": packed(self.told).hex()} | bound

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Entry:
        """What was written, `sealed`.

        Raises:
            ArgumentError: it is damaged.
            DAMAGED: it is something else.
        """
        number, closing, told, given = _checked(facts)
        return cls(number, closing, unpacked(told), given)


def _checked(facts: dict[str, Any]) -> tuple[int, bool, bytes, bytes | None]:
    """What an entry says, as far as that is whole."""
    number, closing, told = facts["round"], facts["closing"], facts["told"]
    if facts["check"] != _checksum(facts):
        raise ArgumentError(f"store must hold whole entries, and that of round {number!r} is damaged")
    given = octets("given", bytes.fromhex(facts["given"]), 32) if "given" in facts else None
    return integer("round", number, 0), _flag("closing", closing), bytes.fromhex(told), given


def sealed(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON values of a line with a checksum, which finds accidents."""
    return facts | {"check": _checksum(facts)}


def refuse_damaged(facts: dict[str, Any]) -> None:
    """Refuse the first line of a state whose checksum does not fit.

    Raises:
        ArgumentError: it does not.
    """
    if facts["check"] != _checksum(facts):
        raise ArgumentError("store must hold a whole state, and this one is damaged")


def _checksum(facts: dict[str, Any]) -> int:
    return zlib.crc32(repr([(name, value) for name, value in facts.items() if name != "check"]).encode())


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
        rounds: what it keeps of each round that was announced.
        sent: rounds that were answered.
        closing: those of them that were answered without data.
        given: what rounds that were answered are bound to, 32 bytes each (W4), as far as they are to anything.
        serial: of the state where it is kept; it grows by one with each save and each entry.
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
    rounds: tuple[LocalRound, ...] = ()
    sent: frozenset[int] = frozenset()
    closing: frozenset[int] = frozenset()
    serial: int = 0
    host: Host = field(default_factory=Host.here)
    first: int = 0
    given: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def used(self) -> tuple[ClientSet, ...]:
        """As `used_sets` of its rounds."""
        return used_sets(self.rounds)

    @property
    def on_time(self) -> tuple[ClientSet, ...]:
        """As `on_time_sets` of its rounds."""
        return on_time_sets(self.rounds)

    def next(self) -> ClientState:
        """The state as it is saved: with the next serial number, and this machine."""
        serial = self.serial + 1
        return replace(self, serial=serial, first=self.first or serial, host=Host.here())

    def after(self, entry: Entry) -> ClientState:
        """The state once this entry is kept too."""
        closing = self.closing | ({entry.round} if entry.closing else set())
        sent, rounds = self.sent | {entry.round}, self.rounds + entry.told
        given = self.given if entry.given is None else {**self.given, entry.round: entry.given}
        return replace(self, rounds=rounds, sent=sent, closing=closing, given=given, serial=self.serial + 1)

    def read(self, entries: Iterable[dict[str, Any]]) -> ClientState:
        """As `after`, from what `Entry.facts` returned.

        Raises:
            ArgumentError: an entry is damaged.
            DAMAGED: it is something else.
        """
        found = [_checked(each) for each in entries]
        told = unpacked(*(part for _, _, part, _ in found))
        return replace(
            self,
            rounds=self.rounds + told,
            sent=self.sent.union(number for number, *_ in found),
            closing=self.closing.union(number for number, closing, *_ in found if closing),
            given={**self.given, **{number: given for number, *_, given in found if given is not None}},
            serial=self.serial + len(found),
        )

    def line(self, entry: Entry) -> bytes:
        """An entry as it is kept after this state."""
        facts = {"serial": self.serial + 1, "run": self.run.hex(), "first": self.first}
        return json.dumps(sealed(facts | entry.facts())).encode()

    def facts(self) -> dict[str, Any]:
        """The state as JSON values, with the private key among them."""
        facts: dict[str, Any] = {
            "serial": self.serial,
            "run": self.run.hex(),
            "first": self.first,
            "version": _VERSION,
            "machine": self.host.machine,
            "boot": self.host.boot,
            "agreement": self.agreement.hex(),
            "plan": self.plan,
            "length": self.length,
            "weighted": self.weighted,
            "pair": self.pair.to_bytes().hex(),
            "enrolment": self.enrolment.to_bytes().hex(),
            "roster": None if self.roster is None else self.roster.to_bytes().hex(),
            "rounds": packed(self.rounds).hex(),
            "sent": sorted(self.sent),
            "closing": sorted(self.closing),
        }
        if self.given:
            facts["given"] = {str(number): given.hex() for number, given in self.given.items()}
        return sealed(facts)

    def to_bytes(self) -> bytes:
        """The whole state in one line."""
        return json.dumps(self.facts()).encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, agreement: bytes | None = None) -> ClientState:
        """What `to_bytes` returned, and a line for each entry after it.

        Args:
            data: the bytes.
            agreement: that of the plan, length and weights with which the client goes on; None to read any state.

        Raises:
            ArgumentError: the bytes are no state, or one of another agreement.
        """
        try:
            base, entries = numbered(data)
            state = cls.of(base, agreement=agreement)
            return state.read(entries) if entries else state
        except DAMAGED as error:
            raise unreadable("client", error) from None

    @classmethod
    def of(cls, facts: dict[str, Any], *, agreement: bytes | None = None) -> ClientState:
        """What `facts` returned; arguments as for `from_bytes`.

        Raises:
            ArgumentError: it is of another version or agreement, or damaged.
            DAMAGED: it is something else.
        """
        if facts["version"] not in {_WHOLE, _VERSION}:
            raise ArgumentError(f"store must hold a client's state of version {_VERSION}, got {facts['version']!r}")
        if facts["version"] == _VERSION:
            refuse_damaged(facts)
        run, pair = bytes.fromhex(facts["run"]), KeyPair(bytes.fromhex(facts["pair"]))
        enrolment = Enrolment.from_bytes(bytes.fromhex(facts["enrolment"]), run=run)
        agreed = octets("agreement", bytes.fromhex(facts["agreement"]), 32)
        if agreement not in {None, agreed}:
            raise ArgumentError("plan, length and weighted must be those of the state in store")
        joined = None if facts["roster"] is None else _roster(bytes.fromhex(facts["roster"]), run, agreed)
        if facts["version"] == _WHOLE:
            rounds = _local(facts, joined, enrolment)
        else:
            rounds = unpacked(bytes.fromhex(facts["rounds"]))
        return cls(
            agreed,
            facts["plan"] if isinstance(facts["plan"], str) else json.dumps(facts["plan"], sort_keys=True),
            integer("length", facts["length"], 1),
            _flag("weighted", facts["weighted"]),
            run,
            pair,
            enrolment,
            joined,
            rounds,
            frozenset(integer("sent", t, 0) for t in facts["sent"]),
            frozenset(integer("closing", t, 0) for t in facts["closing"]),
            integer("serial", facts["serial"], 1),
            Host(*(None if facts[what] is None else str(facts[what]) for what in ("machine", "boot"))),
            integer("first", facts["first"], 1, facts["serial"]),
            {int(at): octets("given", bytes.fromhex(each), 32) for at, each in facts.get("given", {}).items()},
        )


def _local(facts: dict[str, Any], roster: Roster | None, enrolment: Enrolment) -> tuple[LocalRound, ...]:
    """The rounds of a state that kept whole sets, on the complete graph; others count as unreadable."""
    clients = integer("clients", facts["plan"]["clients"], 2)
    used, on_time = (
        [ClientSet.from_bytes(bytes.fromhex(each), clients) for each in facts[what]] for what in ("used", "on_time")
    )
    if roster is None:
        return ()
    if facts["plan"].get("degree") not in {None, clients - 1}:
        raise ArgumentError(f"store must hold a client's state of version {_VERSION}, got {_WHOLE}")
    me, chain, rounds = roster.index(enrolment), roster.hash, list[LocalRound]()
    near = Neighbourhood(clients, me, [each for each in range(clients) if each != me])
    before = [ClientSet.none(clients), *used]
    for number, sets in enumerate(zip(before, on_time, strict=True) if on_time else zip(used, strict=True)):
        rounds.append(LocalRound.of(near, chain, number, sets))
        chain = rounds[-1].chain
    return tuple(rounds)


def _roster(data: bytes, run: bytes, agreed: bytes) -> Roster:
    """The roster that the client joined, and verified then.

    Verifying it anew would protect from nobody: whoever can alter the state has its private key too. By accident it
    cannot change unnoticed either: announcements carry its hash, and so do all keys.
    """
    return Roster.from_bytes(data, run=run, plan=agreed, verified=True)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be true or false, got {name}={value!r}")
    return value

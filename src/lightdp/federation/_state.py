"""A member's state as a value: its keys, the rosters that it is in, and what all others have cost (C1).

It is kept as that of a client is: one line with all of it, and one for each `Entry` of any roster since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightdp._validate import integer, number
from lightdp.errors import ArgumentError
from lightdp.keys import Enrolment, KeyPair
from lightdp.protocol import ClientState
from lightdp.protocol.host import Host
from lightdp.protocol.state import DAMAGED, Entry, numbered, refuse_damaged, sealed, unreadable

_VERSION = 2
_TEXTS = 1  # the version that kept the states of rosters as texts, and no entries


@dataclass(frozen=True)
class MemberState:
    """All that a member must remember; everything else follows from it and the plan.

    Attributes:
        plan: the federation's plan as `Plan.to_json` writes it.
        length: number of values of an update.
        weighted: whether updates carry weights.
        run: 16 bytes that name the federation.
        pair: the one-time key pair. Private.
        enrolment: its signed public half.
        rosters: its state in each roster that it still answers, by number.
        spent: μ² of rounds in rosters that it answers no more, each at its worst, and how many have it.
        last: the largest number of a roster that it has joined; -1 before the first.
        serial: of the state where it is kept; it grows by one with each save and each entry.
        host: the machine that saved it.
        first: the serial of the member's first save, 0 before it.
    """

    plan: str
    length: int
    weighted: bool
    run: bytes
    pair: KeyPair
    enrolment: Enrolment
    rosters: Mapping[int, ClientState] = field(default_factory=dict)
    spent: Mapping[float, int] = field(default_factory=dict)
    last: int = -1
    serial: int = 0
    host: Host = field(default_factory=Host.here)
    first: int = 0

    def next(self) -> MemberState:
        """The state as it is saved: with the next serial number, and this machine."""
        serial = self.serial + 1
        return replace(self, serial=serial, first=self.first or serial, host=Host.here())

    def after(self, roster: int, entry: Entry) -> MemberState:
        """The state once this entry of a roster is kept too."""
        return replace(
            self, rosters=dict(self.rosters) | {roster: self.rosters[roster].after(entry)}, serial=self.serial + 1
        )

    def line(self, roster: int, entry: Entry) -> bytes:
        """An entry of a roster as it is kept after this state."""
        facts = {"serial": self.serial + 1, "run": self.run.hex(), "first": self.first, "roster": roster}
        return json.dumps(sealed(facts | entry.facts())).encode()

    def to_bytes(self) -> bytes:
        """The whole state in one line of JSON, with the private key in it."""
        facts = {
            "serial": self.serial,
            "run": self.run.hex(),
            "first": self.first,
            "member": _VERSION,
            "machine": self.host.machine,
            "boot": self.host.boot,
            "plan": self.plan,
            "length": self.length,
            "weighted": self.weighted,
            "pair": self.pair.to_bytes().hex(),
            "enrolment": self.enrolment.to_bytes().hex(),
            "rosters": {str(each): state.facts() for each, state in self.rosters.items()},
            "spent": [[square, count] for square, count in self.spent.items()],
            "last": self.last,
        }
        return json.dumps(sealed(facts)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> MemberState:
        """What `to_bytes` returned, and a line for each entry after it.

        Raises:
            ArgumentError: the bytes are no state of a member.
        """
        try:
            base, entries = numbered(data)
            return cls._of(base, entries)
        except DAMAGED as error:
            raise unreadable("member", error) from None

    @classmethod
    def _of(cls, facts: dict[str, Any], entries: Sequence[dict[str, Any]]) -> MemberState:
        if facts["member"] not in {_TEXTS, _VERSION}:
            raise ArgumentError(f"store must hold a member's state of version {_VERSION}, got {facts['member']!r}")
        if facts["member"] == _VERSION:
            refuse_damaged(facts)
        run = bytes.fromhex(facts["run"])
        parts = {
            int(each): json.loads(part) if isinstance(part, str) else part for each, part in facts["rosters"].items()
        }
        states = {each: ClientState.of(part) for each, part in parts.items()}
        added: dict[int, list[dict[str, Any]]] = {each: [] for each in states}
        for entry in entries:
            added[entry["roster"]].append(entry)
        return cls(
            facts["plan"] if isinstance(facts["plan"], str) else json.dumps(facts["plan"], sort_keys=True),
            integer("length", facts["length"], 1),
            facts["weighted"] is True,
            run,
            KeyPair(bytes.fromhex(facts["pair"])),
            Enrolment.from_bytes(bytes.fromhex(facts["enrolment"]), run=run),
            {each: state.read(added[each]) if added[each] else state for each, state in states.items()},
            Counter({number("spent", square): integer("spent", count, 1) for square, count in facts["spent"]}),
            integer("last", facts["last"], -1),
            integer("serial", facts["serial"], 1) + len(entries),
            Host(*(None if facts[what] is None else str(facts[what]) for what in ("machine", "boot"))),
            integer("first", facts["first"], 1, facts["serial"]),
        )

"""A member's state as a value: its keys, the rosters that it is in, and what all others have cost (C1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lightdp._validate import integer, number
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Enrolment, KeyPair
from lightdp.protocol.host import Host

_VERSION = 1


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
        rosters: what `ClientState.to_bytes` wrote of each roster that it still answers, by number.
        spent: μ² of rounds in rosters that it answers no more, each at its worst, and how many have it.
        last: the largest number of a roster that it has joined; -1 before the first.
        serial: of the state where it is kept; it grows by one with each save.
        host: the machine that saved it.
        first: the serial of the member's first save, 0 before it.
    """

    plan: str
    length: int
    weighted: bool
    run: bytes
    pair: KeyPair
    enrolment: Enrolment
    rosters: Mapping[int, bytes] = field(default_factory=dict)
    spent: Mapping[float, int] = field(default_factory=dict)
    last: int = -1
    serial: int = 0
    host: Host = field(default_factory=Host.here)
    first: int = 0

    def next(self) -> MemberState:
        """The state as it is saved: with the next serial number, and this machine."""
        serial = self.serial + 1
        return replace(self, serial=serial, first=self.first or serial, host=Host.here())

    def to_bytes(self) -> bytes:
        """The state as JSON, with the private key in it."""
        facts = {
            "member": _VERSION,
            "serial": self.serial,
            "first": self.first,
            "machine": self.host.machine,
            "boot": self.host.boot,
            "plan": json.loads(self.plan),
            "length": self.length,
            "weighted": self.weighted,
            "run": self.run.hex(),
            "pair": self.pair.to_bytes().hex(),
            "enrolment": self.enrolment.to_bytes().hex(),
            "rosters": {str(each): state.decode() for each, state in self.rosters.items()},
            "spent": [[square, count] for square, count in self.spent.items()],
            "last": self.last,
        }
        return json.dumps(facts).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> MemberState:
        """What `to_bytes` returned.

        Raises:
            ArgumentError: the bytes are no state of a member.
        """
        try:
            facts = json.loads(data)
            if facts["member"] != _VERSION:
                raise ArgumentError(f"store must hold a member's state of version {_VERSION}, got {facts['member']!r}")
            run = bytes.fromhex(facts["run"])
            rosters = {int(each): str(part).encode() for each, part in facts["rosters"].items()}
            return cls(
                json.dumps(facts["plan"], sort_keys=True),
                integer("length", facts["length"], 1),
                facts["weighted"] is True,
                run,
                KeyPair(bytes.fromhex(facts["pair"])),
                Enrolment.from_bytes(bytes.fromhex(facts["enrolment"]), run=run),
                rosters,
                Counter({number("spent", square): integer("spent", count, 1) for square, count in facts["spent"]}),
                integer("last", facts["last"], -1),
                integer("serial", facts["serial"], 1),
                Host(*(None if facts[what] is None else str(facts[what]) for what in ("machine", "boot"))),
                integer("first", facts["first"], 1, facts["serial"]),
            )
        except (KeyError, RecursionError, TypeError, ProtocolError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            # the type alone: the text of some errors quotes what was read, and that holds the private key
            raise ArgumentError(f"store must hold a member's state, got {type(error).__name__}") from None

"""The roster: all clients of a run as canonical bytes with a hash; and pins, the identities a client expects (W4)."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lightdp._validate import integer, octets
from lightdp.errors import ArgumentError, WireError
from lightdp.keys.identity import NAME, Enrolment

_PIN = re.compile(rf"({NAME.pattern})\s+([0-9a-f]{{64}})")
_VERSION = 3
_ROSTER = struct.Struct("<7sB16sI32sI")  # magic, version, run id, roster number, plan digest, number of clients


@dataclass(frozen=True)
class Roster:
    """The clients of a run: their enrolments in the order of their names. Client i is `enrolments[i]`.

    Formal guarantee: a roster that exists holds at least two valid enrolments, all for its run, sorted by name, with
    unique names, identities and one-time keys; equal rosters have equal bytes and hashes. A run may have several
    rosters, told apart by their numbers: as the hash goes into every key, no two of them share noise (C1).

    Bytes: "lightdp", version (1), run id (16), number (4), plan digest (32), number of clients (4), the enrolments.

    Attributes:
        run: the run id, 16 bytes.
        plan: 32 bytes on which all clients must agree.
        enrolments: one for each client.
        number: of the roster in its run, from 0.

    Raises:
        WireError: the enrolments break one of these rules.
    """

    run: bytes
    plan: bytes
    enrolments: tuple[Enrolment, ...]
    number: int = 0

    def __post_init__(self) -> None:
        if not 2 <= len(self) < 2**32 - 1:
            raise WireError(f"roster must have at least 2 clients, got {len(self)}")
        names = [enrolment.name for enrolment in self.enrolments]
        if names != sorted(names):
            raise WireError("roster must be sorted by name")
        for what in ("name", "identity", "public"):
            if len({getattr(enrolment, what) for enrolment in self.enrolments}) < len(self):
                raise WireError(f"roster has two clients with one {what}")
        if any(enrolment.run != self.run for enrolment in self.enrolments):
            raise WireError("roster has an enrolment for another run")

    @classmethod
    def of(cls, enrolments: Iterable[Enrolment], *, run: bytes, plan: bytes, number: int = 0) -> Roster:
        """The roster of these clients.

        Args:
            enrolments: one for each client, in any order.
            run: the run id, 16 bytes.
            plan: 32 bytes on which all clients must agree.
            number: of the roster in its run.

        >>> from lightdp.keys import Identity, KeyPair
        >>> run = bytes(16)
        >>> def enrol(name): return Identity.generate().enrol(KeyPair.generate(), run=run, name=name)
        >>> roster = Roster.of([enrol("bob"), enrol("ann")], run=run, plan=bytes(32))
        >>> [client.name for client in roster.enrolments]
        ['ann', 'bob']
        >>> Roster.from_bytes(roster.to_bytes(), run=run, plan=bytes(32)).hash == roster.hash
        True
        """
        ordered = tuple(sorted(enrolments, key=lambda e: e.name))
        number = integer("number", number, 0, 2**32 - 1)
        return cls(octets("run", run, 16), octets("plan", plan, 32), ordered, number)

    def __len__(self) -> int:
        return len(self.enrolments)

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @staticmethod
    def claims(data: bytes) -> tuple[int, int]:
        """The number of a roster and how many clients it says to have; nothing of it is verified.

        Raises:
            WireError: `data` is too short.
        """
        if len(data) < _ROSTER.size:
            raise WireError(f"roster must have at least {_ROSTER.size} bytes, got {len(data)}")
        _, _, _, number, _, count = _ROSTER.unpack_from(data)
        return number, count

    def index(self, enrolment: Enrolment) -> int:
        """The number of the client with exactly this enrolment.

        Raises:
            WireError: the roster omits or alters the enrolment.
        """
        if enrolment not in self.enrolments:
            raise WireError(f"roster does not contain the enrolment of {enrolment.name}")
        return self.enrolments.index(enrolment)

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        header = _ROSTER.pack(b"lightdp", _VERSION, self.run, self.number, self.plan, len(self))
        return header + b"".join(enrolment.to_bytes() for enrolment in self.enrolments)

    @classmethod
    def from_bytes(
        cls, data: bytes, *, run: bytes, plan: bytes | None, clients: int | None = None, verified: bool = False
    ) -> Roster:
        """Decode and verify the roster of this run and plan.

        Args:
            data: the bytes.
            run: the run id, 16 bytes.
            plan: 32 bytes on which all clients must agree; None if the caller compares them with `plan` of the result.
            clients: how many there must be, if that is known; another number is refused before a signature is verified.
            verified: as for `Enrolment.read_all`.

        Raises:
            WireError: `data` is not a valid roster of this run and plan.
        """
        data = bytes(data)
        if len(data) < _ROSTER.size:
            raise WireError(f"roster must have at least {_ROSTER.size} bytes, got {len(data)}")
        magic, version, its_run, number, its_plan, count = _ROSTER.unpack_from(data)
        if (magic, version) != (b"lightdp", _VERSION):
            raise WireError(f"roster must be of version {_VERSION}, got {magic!r} version {version}")
        if its_run != run or plan not in {None, its_plan}:
            raise WireError("roster is of another run or plan")
        if clients not in {None, count}:
            raise WireError(f"roster must have {clients} clients, got {count}")
        enrolments = Enrolment.read_all(data[_ROSTER.size :], run=run, count=count, verified=verified)
        return cls(run, its_plan, enrolments, number)


@dataclass(frozen=True)
class Pins:
    """The identities that a client expects, by name.

    As text: one "name 64-lower-case-hex-digits" a line; empty lines and everything after "#" are skipped.

    Attributes:
        identities: public Ed25519 keys by name.

    >>> pins = Pins.parse("ann " + 32 * "0a" + "  # checked by telephone")
    >>> pins.identities["ann"].hex()[:6]
    '0a0a0a'
    """

    identities: Mapping[str, bytes]

    @classmethod
    def parse(cls, text: str) -> Pins:
        """Read pins from text.

        Raises:
            ArgumentError: a line has another form, or repeats a name or identity. A line of another form is not
                quoted: the text may come from any file, and the message may be sent to others.
        """
        identities: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if (content := line.partition("#")[0].strip()) == "":
                continue
            if (match := _PIN.fullmatch(content)) is None:
                raise ArgumentError(f"pins must be 'name 64-hex-digits' lines, which line {number} is not")
            name, identity = match[1], bytes.fromhex(match[2])
            if name in identities or identity in identities.values():
                raise ArgumentError(f"pins must be unique, got line {number}: {name}")
            identities[name] = identity
        return cls(identities)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pins:
        """Read pins from a file; raises as `parse` does."""
        return cls.parse(Path(path).read_text(encoding="ascii"))

    def check(self, roster: Roster, *, complete: bool = False) -> None:
        """Refuse a roster that contradicts the pins; pinned clients may be absent from it.

        Formal guarantee: after `check` returns, each pinned name in `roster` has its pinned identity, and each
        pinned identity its name.

        Args:
            roster: the roster that the server sent.
            complete: whether to refuse clients that are not pinned as well.

        Raises:
            WireError: the roster contradicts the pins.
        """
        for client in roster.enrolments:
            self.check_one(client, complete=complete)

    def check_one(self, client: Enrolment, *, complete: bool = False) -> None:
        """Refuse an enrolment that contradicts the pins; arguments and errors as for `check`."""
        expected = self.identities.get(client.name)
        if expected is None and complete:
            raise WireError(f"{client.name} is not pinned")
        if expected not in {None, client.identity}:
            raise WireError(f"{client.name} has an identity other than the pinned one")
        if (name := self._names.get(client.identity, client.name)) != client.name:
            raise WireError(f"{client.name} has the pinned identity of {name}")

    def allow(self, client: Enrolment) -> bool:
        """Whether an enrolment has a pinned name and its identity."""
        return self.identities.get(client.name) == client.identity

    @cached_property
    def _names(self) -> dict[bytes, str]:
        return {identity: name for name, identity in self.identities.items()}

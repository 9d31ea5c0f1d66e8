"""Pins: the identities that a client expects of others (W4)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lightdp.errors import ArgumentError, WireError
from lightdp.keys.identity import NAME, Enrolment
from lightdp.keys.roster import Roster

_PIN = re.compile(rf"({NAME.pattern})\s+([0-9a-f]{{64}})")


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
        for client in roster.enrolments.values():
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

"""Who has enrolled at a server: verified keys, each name, identity and key once."""

from __future__ import annotations

from lightdp._validate import octets
from lightdp.errors import ProtocolError
from lightdp.keys import Enrolment, Pins
from lightdp.wire import Kind, Message


def challenge(run: bytes, nonce: bytes) -> bytes:
    """The bytes that a client signs with its one-time key, to show that it has sent its ENROL message itself.

    Args:
        run: 16 bytes that name the run.
        nonce: 32 bytes that the server has drawn for this message alone.
    """
    return b"lightdp/3 member" + octets("run", run, 16) + octets("nonce", nonce, 32)


class Enrolments:
    """The enrolments of one run.

    Formal guarantee: all are signed for this run, kept to the pins when they enrolled, and no two share a name, an
    identity or a key.

    Args:
        run: 16 bytes that name the run.
        pins: the identities of all who may enrol, by name. Without them the first to use a name has it.
        limit: how many there may be; None for any number.

    Attributes:
        by_name: what was enrolled.
    """

    def __init__(self, run: bytes, pins: Pins | None = None, limit: int | None = None) -> None:
        self.by_name: dict[str, Enrolment] = {}
        self._run, self._pins, self._limit = run, pins, limit
        self._taken: dict[tuple[str, bytes], str] = {}  # identities and one-time keys, by whom

    def add(self, message: bytes, *, pinned: bool = True, proof: tuple[bytes, bytes] | None = None) -> str:
        """Take in an ENROL message and return the client's name; a second one of a name must be the same.

        Args:
            message: the bytes.
            pinned: whether it must keep to the pins; one that was taken in before a restart need not.
            proof: a nonce and the client's signature of its `challenge`; None if who sent the message is known.

        Raises:
            WireError: it is malformed, of another run, contradicts the pins, or is not proven; nothing changed.
            ProtocolError: its name, identity or key is taken, or there are as many as there may be; nothing changed.
        """
        content = Message.from_bytes(message, run=self._run)
        if content.kind != Kind.ENROL:
            raise ProtocolError(f"expected ENROL, got {content.kind.name}")
        new = Enrolment.from_bytes(bytes(content.payload), run=self._run)
        if proof is not None:
            new.verify(proof[1], challenge(self._run, proof[0]))
        if pinned and self._pins is not None:
            self._pins.check_one(new, complete=True)
        if self.by_name.get(new.name, new) != new:
            raise ProtocolError(f"{new.name} enrolled before with other keys")
        if new.name not in self.by_name:
            if len(self.by_name) == self._limit:
                raise ProtocolError(f"all {self._limit} clients have enrolled, and {new.name} is none of them")
            keys = ("identity", new.identity), ("key", new.public)
            for key in keys:
                if key in self._taken:
                    raise ProtocolError(f"{new.name} enrolled with the {key[0]} of {self._taken[key]}")
            self._taken |= dict.fromkeys(keys, new.name)
            self.by_name[new.name] = new
        return new.name

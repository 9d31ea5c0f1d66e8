"""The envelope of every message and its structured payloads.

Whatever the bytes, decoding returns a value or raises `WireError`, and it copies no more than it was given, but for the
sets of an announcement, whose number is limited. A length is believed only after it was compared with the bytes that
are there. The checksum finds accidents. It
does not authenticate: anyone can compute it. Enrolments and uploads are signed; `lightdp.protocol` verifies that, and
the checksum leaves out the vector of an upload, so that it is read once.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from lightdp._validate import integer, octets
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, WireError
from lightdp.wire.digests import Buffer, digest
from lightdp.wire.packing import checked, packed_size
from lightdp.wire.sets import packed_set, read_set

VERSION = 5
NO_ROSTER = bytes(32)  # the roster hash of messages that are sent before there is a roster
NOBODY = 2**32 - 1  # the client index of messages whose sender is the server, or has no index yet
UNBOUND = bytes(16)  # the tag of uploads whose round is bound to nothing

_HEADER = struct.Struct("<3sBIQ16s32sIQ")
_ROSTER = slice(32, 64)  # of the header
_ENVELOPE = _HEADER.size + 4  # 80, so that payloads stay aligned
_ANNOUNCEMENT = struct.Struct("<II")
_MASKED = 2  # closing, with pairwise noise
_UPLOAD = struct.Struct("<QQ16s64s")
_SHAPE = struct.Struct("<QQ16s")
_SHARED = 1 << 16  # bytes of an announcement, up to which it is kept for the next client of this process
_PLACE = struct.Struct("<16s16sQ32sI32s")


class Kind(IntEnum):
    """What a message carries."""

    ENROL = 1  # client to server: a signed public key
    ROSTER = 2  # server to clients: everybody's
    ANNOUNCE = 3  # server to clients: start a round; who was used in those before
    UPLOAD = 4  # client to server: one packed vector


@dataclass(frozen=True, kw_only=True)
class Message:
    """The envelope of every message: 80 bytes, little-endian, then the payload.

    In this order: "LDP", version (1 byte), kind (4), round (8), run id (16), roster hash (32), client (4),
    length of the payload (8), CRC-32 of everything else but the vector of an upload (4). Before there is a roster,
    that is in ENROL and ROSTER, the hash is `NO_ROSTER` and the round 0. Only UPLOAD names a client.
    """

    kind: Kind
    run: bytes
    payload: Buffer
    round: int = 0
    roster: bytes = NO_ROSTER
    client: int = NOBODY

    def __post_init__(self) -> None:
        octets("run", self.run, 16)
        octets("roster", self.roster, 32)
        integer("round", self.round, 0, 2**64 - 1)
        integer("client", self.client, 0, NOBODY)
        early = self.kind in {Kind.ENROL, Kind.ROSTER}
        if early != (self.roster == NO_ROSTER) or (early and self.round != 0):
            raise ArgumentError(f"{self.kind.name} must have {'no' if early else 'a'} roster hash and round")
        if (self.kind == Kind.UPLOAD) == (self.client == NOBODY):
            raise ArgumentError(f"{self.kind.name} must not have client={self.client}")

    def to_bytes(self, rest: Buffer = b"") -> bytes:
        """The message as it travels.

        Args:
            rest: of the payload, after what `payload` holds; a long vector is then copied once.
        """
        sizes = (self.client, len(self.payload) + len(rest))
        header = _HEADER.pack(b"LDP", VERSION, self.kind, self.round, self.run, self.roster, *sizes)
        return b"".join((header, _checksum(header, self.kind, self.payload, rest), self.payload, rest))

    @staticmethod
    def roster_of(data: Buffer) -> bytes:
        """The roster hash in the header of a message, of which nothing is checked."""
        return bytes(memoryview(data)[_ROSTER])

    @staticmethod
    def sender_of(data: Buffer) -> tuple[int, int]:
        """Client and round in the header of a message, of which nothing is checked."""
        fields = _HEADER.unpack(memoryview(data)[: _HEADER.size])
        return fields[6], fields[3]

    @classmethod
    def from_bytes(cls, data: Buffer, *, run: bytes, roster: bytes = NO_ROSTER) -> Message:
        """Decode a message of this run and, once there is one, roster; the payload is a view of `data`."""
        view = memoryview(data)
        if len(view) < _ENVELOPE:
            raise WireError(f"message must have at least {_ENVELOPE} bytes, got {len(view)}")
        header, payload = view[: _HEADER.size], view[_ENVELOPE:]
        magic, version, kind, number, its_run, its_roster, client, length = _HEADER.unpack(header)
        if magic != b"LDP" or version != VERSION:
            raise WireError(f"message must be LDP version {VERSION}, got {magic!r} version {version}")
        if length != len(payload):
            raise WireError(f"message says it has {length} bytes of payload, but has {len(payload)}")
        if view[_HEADER.size : _ENVELOPE] != _checksum(header, kind, payload):
            raise WireError("message has a wrong checksum")
        if its_run != run:
            raise WireError(f"message is of run {its_run.hex()}, not {run.hex()}")
        if its_roster not in {roster, NO_ROSTER}:
            raise WireError(f"message is of roster {its_roster.hex()}, not {roster.hex()}")
        try:
            fields = {"round": number, "roster": its_roster, "client": client}
            return cls(kind=Kind(kind), run=its_run, payload=payload, **fields)
        except ValueError as error:  # an unknown kind, or fields that do not belong to it
            raise WireError(f"message is inconsistent: {error}") from None


def _checksum(header: Buffer, kind: int, *payload: Buffer) -> bytes:
    found, left = zlib.crc32(header), _UPLOAD.size if kind == Kind.UPLOAD else None
    for part in payload:
        covered = memoryview(part)[:left]
        found, left = zlib.crc32(covered, found), None if left is None else left - len(covered)
    return found.to_bytes(4, "little")


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Payload of ANNOUNCE: start a round, after these sets of clients became known in the rounds just before it.

    Number of clients (4 bytes), closing (4 bytes: 0, 1, or 2 if it is masked), then what became known when each past
    round closed, oldest first, as `lightdp.wire.sets` writes sets: the clients that were used in it; or, under grace,
    those that were used in the round before it, nobody if there was none, and those that were on time in it (R5). A
    client that was away needs all that it missed; the others need the last round.

    Attributes:
        round: that begins.
        clients: N.
        past: the sets of past rounds, oldest first: one of each round or, under grace, two.
        closing: whether the round has no data.
        masked: whether it is closing and has pairwise noise all the same (S1).
        grace: rounds for which uploads may be late and are used all the same.
    """

    round: int
    clients: int
    past: tuple[ClientSet, ...] = ()
    closing: bool = False
    masked: bool = False
    grace: int = 0

    def history(self) -> Iterator[tuple[int, tuple[ClientSet, ...]]]:
        """Past rounds, oldest first, each with the sets that became known when it closed; the last is `round` - 1."""
        each = 1 + self.grace
        rounds = len(self.past) // each
        for index in range(rounds):
            yield self.round - rounds + index, self.past[index * each : (index + 1) * each]

    def to_bytes(self) -> bytes:
        """The payload."""
        return b"".join(
            (_ANNOUNCEMENT.pack(self.clients, _MASKED if self.masked else self.closing), *map(packed_set, self.past))
        )

    @classmethod
    def from_bytes(cls, data: Buffer, *, round: int, clients: int, grace: int = 0) -> Announcement:  # noqa: A002 - as its field
        """Decode the payload of the announcement of this round, among this many clients, with this much grace.

        It makes as many sets as there are past rounds, of N bits each, however short the bytes are.
        """
        read = _announcement if len(data) <= _SHARED else _announcement.__wrapped__
        return read(bytes(data), round, clients, grace)


@lru_cache(maxsize=4)  # clients of one process get the same
def _announcement(data: bytes, number: int, clients: int, grace: int) -> Announcement:
    if len(data) < _ANNOUNCEMENT.size:
        raise WireError(f"announcement must have at least {_ANNOUNCEMENT.size} bytes, got {len(data)}")
    its_clients, closing = _ANNOUNCEMENT.unpack_from(data)
    if its_clients != clients or closing > _MASKED:
        raise WireError(f"announcement has {its_clients} clients, closing={closing}; expected {clients}")
    view, at, past = memoryview(data), _ANNOUNCEMENT.size, list[ClientSet]()
    while at < len(view) and len(past) < number * (1 + grace):
        found, size = read_set(view[at:], clients)
        past.append(found)
        at += size
    if at < len(view) or len(past) % (1 + grace) != 0:
        left = f"{len(past)} sets and {len(view) - at} bytes"
        raise WireError(f"announcement of round {number} has {left}; expected {1 + grace} for each past round")
    masked = closing == _MASKED
    return Announcement(
        round=number, clients=clients, past=tuple(past), closing=closing > 0, masked=masked, grace=grace
    )


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Payload of UPLOAD: length of the vector (8 bytes), bits (8), tag (16), the client's signature (64), the vector.

    Attributes:
        length: of the vector.
        bits: of a value.
        packed: the vector, packed.
        tag: of what the round is bound to, by `tag_of`: only uploads with the same share noise that cancels (W4).
        signature: of `statement`.
    """

    length: int
    bits: int
    packed: Buffer
    tag: bytes = UNBOUND
    signature: bytes = bytes(64)

    def head(self) -> bytes:
        """The payload before the packed vector."""
        return _UPLOAD.pack(self.length, self.bits, self.tag, self.signature)

    def to_bytes(self) -> bytes:
        """The payload."""
        return b"".join((self.head(), self.packed))

    def statement(self, message: Message, *, chain: bytes) -> bytes:
        """What the client signs: this vector, in its place.

        Args:
            message: what carries the upload, for its run, round, roster and client.
            chain: 32 bytes, the hash chain of announcements before the round.
        """
        place = message.run, message.round, message.roster, message.client, octets("chain", chain, 32)
        shape = _SHAPE.pack(self.length, self.bits, self.tag)
        return _PLACE.pack(b"lightdp/5 upload", *place) + digest(shape, self.packed)

    @classmethod
    def from_bytes(cls, data: Buffer, *, length: int, bits: int) -> Upload:
        """Decode an upload of this length and modulus; the packed vector is a view of `data`."""
        size = _UPLOAD.size + packed_size(length, bits)
        if len(data) != size:
            raise WireError(f"upload must have {size} bytes, got {len(data)}")
        its_length, its_bits, tag, signature = _UPLOAD.unpack_from(data)
        if (its_length, its_bits) != (length, bits):
            raise WireError(f"upload says (length, bits)={(its_length, its_bits)}, not {(length, bits)}")
        packed = memoryview(data)[_UPLOAD.size :]
        checked(packed, length, bits)
        return cls(length=length, bits=bits, packed=packed, tag=tag, signature=signature)


def tag_of(given: bytes | None) -> bytes:
    """16 bytes that say in an upload what its round is bound to (`ClientRound.bind`).

    Args:
        given: 32 bytes; None for nothing.

    >>> tag_of(None) == UNBOUND, tag_of(bytes(32)).hex()[:8]
    (True, 'da574eec')
    """
    return UNBOUND if given is None else hashlib.sha256(b"lightdp bound" + octets("given", given, 32)).digest()[:16]

"""What a client keeps of a round: who of those near it was used, and the hash of all that was announced."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lightdp.client_set import ClientSet, bitmap_size
from lightdp.errors import WireError
from lightdp.keys import link
from lightdp.neighbourhood import Neighbourhood

_HEAD = struct.Struct("<II32sB")  # places, place, chain, number of sets
_MEMBERS = struct.Struct("<I")


@dataclass(frozen=True)
class LocalRound:
    """What became known to a client when a round closed, as far as it concerns the client.

    Without grace that is one set, of whom the round used. Under grace (R5) it is whom the round before it used, and who
    was on time in it. On the complete graph sets are whole; otherwise they are those of `Neighbourhood.near`.

    Bytes: places (4), place (4), chain (32), number of sets (1); for each set its members among all clients (4) and a
    bitmap of places.

    >>> near = Neighbourhood(clients=9, me=4, neighbours=[2, 7])
    >>> told = LocalRound.of(near, bytes(32), 0, (ClientSet.of(9, [0, 4, 7]),))
    >>> told.members, told.sets, len(told.to_bytes())
    ((3,), (ClientSet.of(3, [1, 2]),), 46)
    >>> LocalRound.from_bytes(told.to_bytes()) == told
    True

    Attributes:
        place: of the client.
        chain: the hash chain of announcements after the round (W4), 32 bytes.
        sets: by place.
        members: how many clients each set has in all.
    """

    place: int
    chain: bytes
    sets: tuple[ClientSet, ...]
    members: tuple[int, ...]

    @classmethod
    def of(cls, near: Neighbourhood, chain: bytes, number: int, sets: tuple[ClientSet, ...]) -> LocalRound:
        """What a client keeps of the sets that were announced of round `number`, after what `chain` binds."""
        announced = b"".join(each.to_bytes() for each in sets)
        after = link(chain, round=number, announcement=announced)
        return cls(near.place, after, tuple(map(near.near, sets)), tuple(map(len, sets)))

    def to_bytes(self) -> bytes:
        """As it is kept in a state."""
        parts = [_HEAD.pack(self.sets[0].clients, self.place, self.chain, len(self.sets))]
        for each, members in zip(self.sets, self.members, strict=True):
            parts += _MEMBERS.pack(members), each.to_bytes()
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> LocalRound:
        """The inverse of `to_bytes`.

        Raises:
            WireError: the bytes are no such thing.
        """
        if len(data) < _HEAD.size:
            raise WireError(f"a kept round must have at least {_HEAD.size} bytes, got {len(data)}")
        places, place, chain, count = _HEAD.unpack_from(data)
        each = _MEMBERS.size + bitmap_size(places)
        if place >= places or count not in {1, 2} or len(data) != _HEAD.size + count * each:
            raise WireError(f"a kept round has {len(data)} bytes, {count} sets and place {place} of {places}")
        sets, members = [], []
        for at in range(_HEAD.size, len(data), each):
            members.append(_MEMBERS.unpack_from(data, at)[0])
            sets.append(ClientSet.from_bytes(data[at + _MEMBERS.size : at + each], places))
            if members[-1] < len(sets[-1]):
                raise WireError(f"a kept round has a set of {members[-1]} clients with {len(sets[-1])} of them near")
        return cls(place, chain, tuple(sets), tuple(members))


def final_rounds(rounds: Sequence[LocalRound]) -> Sequence[LocalRound]:
    """What tells whom each round used, in its first set: under grace that is the announcement of the next one (R5)."""
    return rounds[1:] if rounds and len(rounds[0].sets) > 1 else rounds


def used_sets(rounds: Sequence[LocalRound]) -> tuple[ClientSet, ...]:
    """Whom each round used, by place, as far as that is final."""
    return tuple(each.sets[0] for each in final_rounds(rounds))


def on_time_sets(rounds: Sequence[LocalRound]) -> tuple[ClientSet, ...]:
    """Under grace, who was on time in each round, by place; nothing without it."""
    return tuple(each.sets[1] for each in rounds if len(each.sets) > 1)

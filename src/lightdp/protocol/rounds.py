"""What a client keeps of a round: who of those near it was used, and the hash of all that was announced."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lightdp.client_set import ClientSet, bitmap_size
from lightdp.errors import WireError
from lightdp.keys import link
from lightdp.neighbourhood import Neighbourhood, Whole

_HEAD = struct.Struct("<II32sB")  # places, place, chain, number of sets
_WHOLE = struct.Struct("<II")  # members, least


@dataclass(frozen=True)
class LocalRound:
    """What became known to a client when a round closed, as far as it concerns the client.

    Without grace that is one set, of whom the round used. Under grace (R5) it is whom the round before it used, and who
    was on time in it. On the complete graph sets are whole; otherwise they are those of `Neighbourhood.near`.

    Bytes: places (4), place (4), chain (32), number of sets (1); for each set its members among all clients (4), the
    fewest neighbours of any client in it (4), and a bitmap of places.

    >>> near = Neighbourhood(clients=9, me=4, neighbours=[2, 7])
    >>> told = LocalRound.of(near, bytes(32), 0, (ClientSet.of(9, [0, 4, 7]),))
    >>> told.wholes, told.sets, len(told.to_bytes())
    ((Whole(members=3, least=0),), (ClientSet.of(3, [1, 2]),), 50)
    >>> LocalRound.from_bytes(told.to_bytes()) == told
    True

    Attributes:
        place: of the client.
        chain: the hash chain of announcements after the round (W4), 32 bytes.
        sets: by place.
        wholes: what each set is as a whole.
    """

    place: int
    chain: bytes
    sets: tuple[ClientSet, ...]
    wholes: tuple[Whole, ...]

    @classmethod
    def of(cls, near: Neighbourhood, chain: bytes, number: int, sets: tuple[ClientSet, ...]) -> LocalRound:
        """What a client keeps of the sets that were announced of round `number`, after what `chain` binds."""
        announced = b"".join(each.to_bytes() for each in sets)
        after = link(chain, round=number, announcement=announced)
        return cls(near.place, after, tuple(map(near.near, sets)), tuple(map(near.whole, sets)))

    def to_bytes(self) -> bytes:
        """As it is kept in a state."""
        parts = [_HEAD.pack(self.sets[0].clients, self.place, self.chain, len(self.sets))]
        for each, whole in zip(self.sets, self.wholes, strict=True):
            parts += _WHOLE.pack(*whole), each.to_bytes()
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
        each = _WHOLE.size + bitmap_size(places)
        if place >= places or count not in {1, 2} or len(data) != _HEAD.size + count * each:
            raise WireError(f"a kept round has {len(data)} bytes, {count} sets and place {place} of {places}")
        sets, wholes = [], []
        for at in range(_HEAD.size, len(data), each):
            wholes.append(Whole(*_WHOLE.unpack_from(data, at)))
            sets.append(ClientSet.from_bytes(data[at + _WHOLE.size : at + each], places))
        return cls(place, chain, tuple(sets), tuple(wholes))


def final_rounds(rounds: Sequence[LocalRound]) -> Sequence[LocalRound]:
    """What tells whom each round used, in its first set: under grace that is the announcement of the next one (R5)."""
    return rounds[1:] if rounds and len(rounds[0].sets) > 1 else rounds


def used_sets(rounds: Sequence[LocalRound]) -> tuple[ClientSet, ...]:
    """Whom each round used, by place, as far as that is final."""
    return tuple(each.sets[0] for each in final_rounds(rounds))


def on_time_sets(rounds: Sequence[LocalRound]) -> tuple[ClientSet, ...]:
    """Under grace, who was on time in each round, by place; nothing without it."""
    return tuple(each.sets[1] for each in rounds if len(each.sets) > 1)

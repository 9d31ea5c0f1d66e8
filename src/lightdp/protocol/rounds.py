"""What a client keeps of a round: who of those near it was used, and the hash of all that was announced."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lightdp.client_set import ClientSet, bitmap_size
from lightdp.errors import WireError
from lightdp.keys import link
from lightdp.neighbourhood import Neighbourhood, Whole

_HEAD = struct.Struct("<IIB")  # places, place, number of sets
_WHOLE = struct.Struct("<II")  # members, least


@dataclass(frozen=True)
class LocalRound:
    """What became known to a client when a round closed, as far as it concerns the client.

    Without grace that is one set, of whom the round used. Under grace (R5) it is whom the round before it used, and who
    was on time in it. On the complete graph sets are whole; otherwise they are those of `Neighbourhood.near`.

    >>> near = Neighbourhood(clients=9, me=4, neighbours=[2, 7])
    >>> told = LocalRound.of(near, bytes(32), 0, (ClientSet.of(9, [0, 4, 7]),))
    >>> told.wholes, told.sets
    ((Whole(members=3, least=0),), (ClientSet.of(3, [1, 2]),))

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


def packed(rounds: Sequence[LocalRound]) -> bytes:
    """Rounds of one client as they are kept in its state: nothing if there are none.

    Places (4 bytes), place (4), number of sets (1); then for each round its chain (32) and, for each set, its members
    among all clients (4), the fewest neighbours of any client in it (4), and a bitmap of places.

    >>> near = Neighbourhood(clients=9, me=4, neighbours=[2, 7])
    >>> told = LocalRound.of(near, bytes(32), 0, (ClientSet.of(9, [0, 4, 7]),))
    >>> len(packed([told])), unpacked(packed([told, told])) == (told, told)
    (50, True)
    """
    if not rounds:
        return b""
    parts = [_HEAD.pack(rounds[0].sets[0].clients, rounds[0].place, len(rounds[0].sets))]
    for told in rounds:
        parts.append(told.chain)
        for each, whole in zip(told.sets, told.wholes, strict=True):
            parts += _WHOLE.pack(*whole), each.to_bytes()
    return b"".join(parts)


def unpacked(*parts: bytes) -> tuple[LocalRound, ...]:
    """The inverse of `packed`, for several parts of one client one after the other.

    Raises:
        WireError: the bytes are no such thing.
    """
    head, data = _joined(parts)
    if not head:
        return ()
    places, place, count = _HEAD.unpack(head)
    if place >= places or count not in {1, 2}:
        raise WireError(f"kept rounds have {count} sets each and place {place} of {places}")
    record, read = _record(places, count), ClientSet.from_bytes
    if not data or len(data) % record.size != 0:
        raise WireError(f"kept rounds have {len(data)} bytes, which are no records of {record.size}")
    if count == 1:
        return tuple(
            LocalRound(place, chain, (read(bits, places),), (Whole(members, least),))
            for chain, members, least, bits in record.iter_unpack(data)
        )
    return tuple(
        LocalRound(
            place, chain, (read(final, places), read(came, places)), (Whole(used, least), Whole(on_time, fewest))
        )
        for chain, used, least, final, on_time, fewest, came in record.iter_unpack(data)
    )


def _joined(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """What some parts have in common, and all that follows it."""
    some = [part for part in parts if part]
    heads = {part[: _HEAD.size] for part in some}
    if len(heads) > 1 or any(len(head) < _HEAD.size for head in heads):
        raise WireError(f"kept rounds begin in {len(heads)} ways, or with less than {_HEAD.size} bytes")
    return heads.pop() if heads else b"", b"".join([part[_HEAD.size :] for part in some])


@lru_cache(maxsize=64)
def _record(places: int, sets: int) -> struct.Struct:
    return struct.Struct("<32s" + f"II{bitmap_size(places)}s" * sets)


def final_rounds(rounds: Sequence[LocalRound]) -> Sequence[LocalRound]:
    """What tells whom each round used, in its first set: under grace that is the announcement of the next one (R5)."""
    return rounds[1:] if rounds and len(rounds[0].sets) > 1 else rounds


def used_sets(rounds: Sequence[LocalRound]) -> tuple[ClientSet, ...]:
    """Whom each round used, by place, as far as that is final."""
    return tuple(each.sets[0] for each in final_rounds(rounds))


def on_time_sets(rounds: Sequence[LocalRound]) -> tuple[ClientSet, ...]:
    """Under grace, who was on time in each round, by place; nothing without it."""
    return tuple(each.sets[1] for each in rounds if len(each.sets) > 1)

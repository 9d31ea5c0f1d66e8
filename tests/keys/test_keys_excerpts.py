"""Excerpts of rosters: what they show, what a client keeps of them, and what is refused."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import pytest

from lightdp.errors import ArgumentError, WireError
from lightdp.keys import Enrolment, Roster
from support import roster_trees
from support.key_holders import ENROLMENTS, PLAN, ROSTER, RUN, enrolment_of


def test_an_excerpt_shows_its_clients_and_counts_all() -> None:
    some = Roster.from_bytes(ROSTER.excerpt([3, 1]).to_bytes(), run=RUN, plan=PLAN, clients=4)
    assert (some.names, list(some.enrolments), len(some)) == (("bob", "dave"), [1, 3], 4)
    assert (some.whole, ROSTER.whole) == (False, True)
    assert some.enrolments[3] == ENROLMENTS[3]
    with pytest.raises(KeyError):
        some.enrolments[0]
    assert [some.index(ENROLMENTS[i]) for i in (1, 3)] == [1, 3]
    for hidden in (ENROLMENTS[0], enrolment_of("bob", bytes(16))):
        with pytest.raises(WireError, match="does not contain"):
            some.index(hidden)
    assert some != ROSTER
    assert hash(some) == hash(ROSTER)


def test_an_excerpt_with_a_bad_signature_is_refused() -> None:
    data = bytearray(ROSTER.excerpt([0]).to_bytes())
    start = data.index(b"\x05alice") + 6 + 96
    data[start] ^= 1
    with pytest.raises(WireError, match="not signed"):
        Roster.from_bytes(bytes(data), run=RUN, plan=PLAN)


def test_a_roster_that_shows_nobody_is_refused() -> None:
    data = ROSTER.to_bytes()[:64] + b"\2" + struct.pack("<I", 4) + bytes(32)
    with pytest.raises(WireError, match="must show some of 4 clients"):
        Roster.from_bytes(data, run=RUN, plan=PLAN)
    with pytest.raises(WireError, match="must show some of 4 clients"):
        Roster.from_bytes(data, run=RUN, plan=PLAN, verified=True)


def test_what_a_client_keeps_of_an_excerpt_is_what_it_shows() -> None:
    excerpt = ROSTER.excerpt([1, 3])
    kept = excerpt.to_keep()
    data = kept.to_bytes()
    entries = b"".join(struct.pack("<I", i) + ENROLMENTS[i].to_bytes() for i in (1, 3))
    plain = ROSTER.to_bytes()[:64] + b"\3" + roster_trees.node_hash(named_enrolments()) + entries
    assert data == plain + hashlib.sha256(plain).digest()
    again = Roster.from_bytes(data, run=RUN, plan=PLAN, clients=4, verified=True)
    for each in (kept, again):
        assert each == excerpt
        assert (each.hash, len(each), each.names, each.kept) == (ROSTER.hash, 4, ("bob", "dave"), True)
        assert [each.index(ENROLMENTS[i]) for i in (1, 3)] == [1, 3]
        with pytest.raises(WireError, match="does not contain"):
            each.index(ENROLMENTS[0])
        with pytest.raises(ArgumentError, match="cannot be verified by others"):
            each.excerpt([1])
        assert each.to_keep() is each
        assert each.to_bytes() == data
    assert ROSTER.to_keep() is ROSTER


def named_enrolments() -> list[roster_trees.Leaf]:
    return [(each.name, each.to_bytes()) for each in ENROLMENTS]


def test_what_a_client_keeps_is_no_message_and_no_byte_of_it_changes_unnoticed() -> None:
    data = ROSTER.excerpt([1, 3]).to_keep().to_bytes()
    with pytest.raises(WireError, match="no node at byte 0"):
        Roster.from_bytes(data, run=RUN, plan=PLAN)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(WireError):
            Roster.from_bytes(changed, run=RUN, plan=PLAN, verified=True)
    for end in range(64, len(data)):
        with pytest.raises(WireError):
            Roster.from_bytes(data[:end], run=RUN, plan=PLAN, verified=True)


def test_clients_of_a_process_share_enrolments_that_were_verified() -> None:
    data = ENROLMENTS[0].to_bytes()
    one, other = (Enrolment.from_bytes(data, run=RUN) for _ in range(2))
    assert one is other
    assert Enrolment.from_bytes(data, run=RUN, verified=True) is one
    forged = data[:-1] + bytes([data[-1] ^ 1])
    kept = Enrolment.from_bytes(forged, run=RUN, verified=True)
    assert kept != one
    with pytest.raises(WireError, match="not signed"):  # that it is in use says nothing of its signature
        Enrolment.from_bytes(forged, run=RUN)


@pytest.mark.parametrize("places", [range(4), [0], [1, 2], [0, 3]], ids=str)
@pytest.mark.parametrize("change", [0x01, 0x02, 0x80, 0xFF])
def test_every_byte_of_a_roster_is_refused_or_gives_another_hash_if_it_changes(
    places: Sequence[int], change: int
) -> None:
    """Nobody who is shown has signed the number and what is pruned: another one is another roster, with other keys."""
    data = ROSTER.excerpt(places).to_bytes()
    other = set()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
        try:
            roster = Roster.from_bytes(changed, run=RUN, plan=PLAN)
        except WireError:
            continue
        assert roster.hash != ROSTER.hash
        other.add(at)
    assert other >= set(range(24, 28))
    if len(places) == len(ROSTER):
        assert other == set(range(24, 28))

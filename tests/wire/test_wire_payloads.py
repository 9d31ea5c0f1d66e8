"""What messages carry: sets of clients, announcements and uploads."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightdp.client_set import ClientSet
from lightdp.errors import WireError
from lightdp.wire import Announcement, Kind, Message, Upload, encode
from support.wire_bytes import ROSTER, RUN, VECTORS, centred, decode, receive

if TYPE_CHECKING:
    from numpy.typing import NDArray


@given(data=st.binary(max_size=200), clients=st.integers(1, 40))
def test_random_payloads_raise_nothing_else(data: bytes, clients: int) -> None:
    try:
        announcement = Announcement.from_bytes(data, round=9, clients=clients)
    except WireError:
        announcement = None
    if announcement is not None:
        assert announcement.to_bytes() == data
    header = struct.pack("<II", clients, 1)
    try:
        accepted = Announcement.from_bytes(header + data, round=9, clients=clients)
    except WireError:
        return
    assert accepted.to_bytes() == header + data


@given(
    sets=st.integers(1, 30).flatmap(lambda n: st.lists(arrays.arrays(np.bool_, n), min_size=2, max_size=8)),
    extra=st.integers(0, 5),
    grace=st.integers(0, 1),
    closing=st.booleans(),
)
def test_announcement_round_trips_and_numbers_its_past_rounds(
    sets: list[NDArray[np.bool_]], extra: int, grace: int, closing: bool
) -> None:
    """One set for each past round or, under grace, two."""
    told = [ClientSet(flags) for flags in sets][: len(sets) // (1 + grace) * (1 + grace)]
    entries = [tuple(told[at : at + 1 + grace]) for at in range(0, len(told), 1 + grace)]
    clients, number = told[0].clients, len(entries) + extra
    sent = Announcement(round=number, clients=clients, past=tuple(told), closing=closing, grace=grace)
    got = Announcement.from_bytes(sent.to_bytes(), round=number, clients=clients, grace=grace)
    assert got == sent
    assert list(got.history()) == [(extra + i, entry) for i, entry in enumerate(entries)]


def test_announcement_of_half_a_round_is_refused_under_grace() -> None:
    data = Announcement(round=3, clients=9, past=(ClientSet.none(9),) * 3).to_bytes()
    assert len(list(Announcement.from_bytes(data, round=3, clients=9).history())) == 3
    with pytest.raises(WireError, match="announcement of round 3 has 3 sets and 0 bytes; expected 2 for each"):
        Announcement.from_bytes(data, round=3, clients=9, grace=1)


def test_announcement_of_rounds_before_the_first_is_refused() -> None:
    data = Announcement(round=3, clients=9, past=(ClientSet.none(9),) * 3).to_bytes()
    with pytest.raises(WireError, match="announcement of round 2 has 2 sets and 2 bytes; expected 1 for each"):
        Announcement.from_bytes(data, round=2, clients=9)


def test_first_announcement_has_no_history() -> None:
    first = Announcement.from_bytes(Announcement(round=0, clients=3).to_bytes(), round=0, clients=3)
    assert list(first.history()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<I", 9),
        struct.pack("<II", 8, 0),
        struct.pack("<II", 9, 3),
        struct.pack("<II", 9, 0) + b"\x00",
        struct.pack("<II", 9, 0) + b"\x00\x02",
        struct.pack("<II", 9, 0) + bytes(8),
    ],
)
def test_announcement_that_cannot_be_true_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match=r"announcement|a set of 9 clients"):
        Announcement.from_bytes(data, round=3, clients=9)


@given(fine=VECTORS, bits=st.integers(2, 32))
def test_upload_round_trips(fine: NDArray[np.int32], bits: int) -> None:
    signature = bytes(range(64))
    sent = Upload(
        length=fine.size, bits=bits, packed=encode(fine, shift=0, bits=bits), tag=bytes(range(16)), signature=signature
    )
    message = Message(kind=Kind.UPLOAD, run=RUN, payload=sent.to_bytes(), round=1, roster=ROSTER, client=0)
    got = Upload.from_bytes(receive(message.to_bytes()).payload, length=fine.size, bits=bits)
    assert got == sent
    assert replace(message, payload=sent.head()).to_bytes(sent.packed) == message.to_bytes()
    assert decode(got.packed, got.length, bits) == [centred(int(v), bits) for v in fine]


def test_what_is_signed_depends_on_each_part_of_an_upload_and_its_place() -> None:
    message = Message(kind=Kind.UPLOAD, run=RUN, payload=b"", round=1, roster=ROSTER, client=0)
    packed, chain = bytes(range(100)), bytes(32)
    one = Upload(length=100, bits=8, packed=packed)
    places: list[dict[str, Any]] = [{"run": bytes(16)}, {"round": 2}, {"roster": bytes([1]) * 32}, {"client": 1}]
    statements = [one.statement(replace(message, **changed), chain=chain) for changed in [{}, *places]]
    statements.append(one.statement(message, chain=ROSTER))
    for flipped in (0, 99):
        changed = bytearray(packed)
        changed[flipped] ^= 1
        statements.append(replace(one, packed=changed).statement(message, chain=chain))
    shapes: list[dict[str, Any]] = [{"length": 50, "bits": 16}, {"bits": 9}, {"tag": bytes(range(16))}]
    statements += [replace(one, **shape).statement(message, chain=chain) for shape in shapes]
    assert len(set(statements)) == len(statements) == 11
    signed = replace(one, packed=memoryview(packed), signature=bytes([1]) * 64)
    assert signed.statement(message, chain=chain) == statements[0]


@pytest.mark.parametrize(("length", "bits"), [(99, 12), (101, 12), (100, 11), (100, 13), (104, 12), (1, 2)])
def test_upload_for_another_plan_is_refused(length: int, bits: int) -> None:
    data = Upload(length=100, bits=12, packed=encode(np.zeros(100, np.int32), shift=0, bits=12)).to_bytes()
    with pytest.raises(WireError, match="upload"):
        Upload.from_bytes(data, length=length, bits=bits)


def test_upload_that_lies_about_its_size_is_refused() -> None:
    with pytest.raises(WireError, match="upload"):
        Upload.from_bytes(struct.pack("<QQ", 2**63, 32) + bytes(64 + 4), length=1, bits=32)


@pytest.mark.parametrize("clients", [1000, 10_000])
def test_decoding_allocates_no_more_than_a_bitmap_for_each_set(clients: int) -> None:
    rounds, rng = 200, np.random.default_rng(3)
    past = tuple(ClientSet.of(clients, rng.choice(clients, clients // 10).tolist()) for _ in range(rounds))
    payload = Announcement(round=rounds, clients=clients, past=past).to_bytes()
    data = Message(kind=Kind.ANNOUNCE, run=RUN, payload=payload, round=rounds, roster=ROSTER).to_bytes()
    tracemalloc.start()
    Announcement.from_bytes(receive(data).payload, round=rounds, clients=clients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rounds * (clients // 8 + 300) + 50 * clients


def test_announcements_are_read_once_in_a_process_but_for_long_ones() -> None:
    sets = tuple(ClientSet.of(2000, range(0, 2000, k)) for k in (3, 5))
    data = Announcement(round=2, clients=2000, past=sets).to_bytes()
    first = Announcement.from_bytes(data, round=2, clients=2000)
    assert Announcement.from_bytes(memoryview(bytearray(data)), round=2, clients=2000) is first
    assert Announcement.from_bytes(data, round=3, clients=2000).round == 3  # it says of other rounds
    for _ in range(2):
        with pytest.raises(WireError, match="expected 2001"):
            Announcement.from_bytes(data, round=2, clients=2001)
    long = Announcement(round=400, clients=2000, past=sets * 200).to_bytes()
    assert len(long) > 1 << 16
    again = [Announcement.from_bytes(long, round=400, clients=2000) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0] is not again[1]

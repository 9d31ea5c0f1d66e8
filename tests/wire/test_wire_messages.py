"""Messages against every truncation, every flipped bit and random bytes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.errors import ArgumentError, WireError
from lightdp.wire import NO_ROSTER, NOBODY, Kind, Message
from support.wire_bytes import ROSTER, RUN, receive


def messages() -> st.SearchStrategy[Message]:
    payload = st.binary(max_size=60)
    numbers = st.integers(0, 2**64 - 1)
    early = st.sampled_from([Kind.ENROL, Kind.ROSTER])
    announce, upload = st.just(Kind.ANNOUNCE), st.just(Kind.UPLOAD)
    run, roster, client = st.just(RUN), st.just(ROSTER), st.integers(0, NOBODY - 1)
    return st.one_of(
        st.builds(Message, kind=early, run=run, payload=payload),
        st.builds(Message, kind=announce, run=run, payload=payload, round=numbers, roster=roster),
        st.builds(Message, kind=upload, run=run, payload=payload, round=numbers, roster=roster, client=client),
    )


def sealed(data: bytearray) -> bytes:
    """The same bytes with the right checksum, so that the checks behind it are reached."""
    data[76:80] = struct.pack("<I", zlib.crc32(data[80:], zlib.crc32(data[:76])))
    return bytes(data)


UPLOAD = Message(kind=Kind.UPLOAD, run=RUN, payload=b"0123456789", round=7, roster=ROSTER, client=3)


@given(message=messages())
def test_message_round_trips(message: Message) -> None:
    assert receive(message.to_bytes()) == message


@given(message=messages(), at=st.integers(0, 60))
def test_a_payload_in_two_parts_makes_the_same_message(message: Message, at: int) -> None:
    whole = bytes(message.payload) * 2
    assert replace(message, payload=whole[:at]).to_bytes(whole[at:]) == replace(message, payload=whole).to_bytes()


def test_envelope_equals_the_documented_one() -> None:
    fields = b"LDP\x05" + struct.pack("<IQ", 4, 7) + RUN + ROSTER + struct.pack("<IQ", 3, 10)
    checksum = struct.pack("<I", zlib.crc32(fields + b"0123456789"))
    assert UPLOAD.to_bytes() == fields + checksum + b"0123456789"


def test_payload_is_not_copied() -> None:
    data = UPLOAD.to_bytes()
    payload = receive(data).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is data


@given(message=messages())
def test_every_truncation_is_refused(message: Message) -> None:
    data = message.to_bytes()
    for end in range(len(data)):
        with pytest.raises(WireError):
            receive(data[:end])


@given(message=messages(), extra=st.binary(min_size=1, max_size=9))
def test_trailing_bytes_are_refused(message: Message, extra: bytes) -> None:
    with pytest.raises(WireError, match="payload"):
        receive(message.to_bytes() + extra)


@pytest.mark.parametrize(("kind", "size"), [(Kind.UPLOAD, 0), (Kind.UPLOAD, 1), (Kind.UPLOAD, 90), (Kind.ROSTER, 90)])
def test_every_flipped_bit_is_refused_but_in_the_vector_of_an_upload_which_is_signed(kind: Kind, size: int) -> None:
    where: dict[str, Any] = {"round": 7, "roster": ROSTER, "client": 3} if kind == Kind.UPLOAD else {}
    data = Message(kind=kind, run=RUN, payload=bytes(size), **where).to_bytes()
    covered = len(data) if kind == Kind.ROSTER else min(len(data), 80 + 80)
    for position in range(8 * covered):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            receive(bytes(flipped))


@pytest.mark.parametrize(
    ("start", "new", "match"),
    [
        (0, b"ldp", "version"),
        (3, b"\x00", "version"),
        (3, b"\x01", "version"),
        (3, b"\x04", "message must be LDP version 5, got b'LDP' version 4"),
        (3, b"\x02", "message must be LDP version 5, got b'LDP' version 2"),
        (4, b"\x00", "Kind"),
        (4, b"\x05", "Kind"),
        (4, b"\x01", "ENROL"),
        (4, b"\x03", "ANNOUNCE"),
        (16, bytes(16), "run"),
        (32, bytes(31) + b"\x01", "roster"),
        (32, bytes(32), "roster"),
        (64, b"\xff" * 4, "client"),
        (68, b"\xff" * 8, "payload"),
        (68, bytes(8), "payload"),
    ],
)
def test_foreign_or_inconsistent_field_with_a_right_checksum_is_refused(start: int, new: bytes, match: str) -> None:
    data = bytearray(UPLOAD.to_bytes())
    data[start : start + len(new)] = new
    with pytest.raises(WireError, match=match):
        receive(sealed(data))


def test_client_without_a_roster_refuses_what_needs_one() -> None:
    for roster in (ROSTER, NO_ROSTER):
        data = bytearray(UPLOAD.to_bytes())
        data[32:64] = roster
        with pytest.raises(WireError, match="roster"):
            Message.from_bytes(sealed(data), run=RUN)


@given(data=st.binary(max_size=200), start=st.integers(0, 89))
def test_random_bytes_raise_nothing_else(data: bytes, start: int) -> None:
    with pytest.raises(WireError):
        receive(data)
    candidate = UPLOAD.to_bytes()[:start] + data
    if candidate != UPLOAD.to_bytes():
        with pytest.raises(WireError):
            receive(candidate)


@given(data=st.binary(max_size=80), start=st.integers(0, 90))
def test_random_bytes_with_a_right_checksum_raise_nothing_else(data: bytes, start: int) -> None:
    altered = bytearray(UPLOAD.to_bytes())
    altered[start : start + len(data)] = data
    candidate = sealed(altered)
    try:
        message = receive(candidate)
    except WireError:
        return
    assert message.to_bytes() == candidate


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": Kind.UPLOAD, "roster": ROSTER},
        {"kind": Kind.UPLOAD, "client": 1},
        {"kind": Kind.ANNOUNCE, "roster": ROSTER, "client": 1},
        {"kind": Kind.ANNOUNCE},
        {"kind": Kind.ENROL, "roster": ROSTER},
        {"kind": Kind.ENROL, "round": 1},
        {"kind": Kind.ROSTER, "run": b"short"},
        {"kind": Kind.UPLOAD, "roster": ROSTER, "client": 2**32},
        {"kind": Kind.UPLOAD, "roster": ROSTER, "client": 1, "round": 2**64},
    ],
    ids=str,
)
def test_message_that_could_not_be_received_cannot_be_made(fields: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Message(**{"run": RUN, "payload": b""} | fields)

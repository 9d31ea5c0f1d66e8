"""Packing against plain integers; messages against every truncation, every flipped bit and random bytes."""

from __future__ import annotations

import math
import struct
import tracemalloc
import zlib
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightdp._check import ArgumentError, WireError
from lightdp.wire import (
    NO_ROSTER,
    NOBODY,
    Accumulator,
    Announcement,
    Kind,
    Message,
    Upload,
    bitmap,
    encode,
    members,
    packed_size,
    packing,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUN = bytes(range(16))
ROSTER = bytes(range(32, 64))
INT32 = st.integers(-(2**31), 2**31 - 1)
VECTORS = arrays.arrays(np.int32, st.integers(1, 200), elements=INT32)


@st.composite
def grids(draw: st.DrawFn) -> tuple[int, int]:
    bits = draw(st.integers(2, 32))
    return draw(st.integers(0, 32 - bits)), bits


def half_even(value: int, shift: int) -> int:
    """Python's own rounding of exact fractions is the rule that `encode` promises."""
    return round(Fraction(value, 2**shift))


def centred(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def pack_slowly(values: list[int], bits: int) -> bytes:
    """The layout as its definition says it, with one Python integer for each column."""
    lanes = 32 // math.gcd(bits, 32)
    columns = math.ceil(len(values) / lanes)
    words = bits * lanes // 32
    padded = [value % 2**bits for value in values] + [0] * (lanes * columns - len(values))
    result = [0] * (words * columns)
    for column in range(columns):
        number = sum(padded[k * columns + column] << (bits * k) for k in range(lanes))
        for w in range(words):
            result[w * columns + column] = number >> (32 * w) & 0xFFFFFFFF
    return struct.pack(f"<{len(result)}I", *result)


def decode(packed: bytes | bytearray | memoryview, length: int, bits: int) -> list[int]:
    accumulator = Accumulator(length, bits)
    accumulator.add(packed)
    return [int(value) for value in accumulator.total()]


# --- packed vectors ---


@given(fine=VECTORS, grid=grids())
def test_encoding_is_the_documented_layout_of_the_documented_rounding(
    fine: NDArray[np.int32], grid: tuple[int, int]
) -> None:
    shift, bits = grid
    before = fine.copy()
    packed = encode(fine, shift=shift, bits=bits)
    assert bytes(packed) == pack_slowly([half_even(int(v), shift) for v in fine], bits)
    assert len(packed) == packed_size(fine.size, bits)
    assert np.array_equal(fine, before)


@given(fine=VECTORS, grid=grids())
def test_decoding_gives_back_what_was_rounded_modulo_two_to_the_bits(
    fine: NDArray[np.int32], grid: tuple[int, int]
) -> None:
    shift, bits = grid
    expected = [centred(half_even(int(v), shift), bits) for v in fine]
    assert decode(encode(fine, shift=shift, bits=bits), fine.size, bits) == expected


@given(value=INT32, wraps=st.integers(-3, 3), grid=grids())
def test_wrapping_of_the_fine_grid_does_not_show_on_the_wire(value: int, wraps: int, grid: tuple[int, int]) -> None:
    shift, bits = grid
    true_value = value + wraps * 2**32
    (found,) = decode(encode(np.array([value], np.int32), shift=shift, bits=bits), 1, bits)
    assert found == centred(half_even(true_value, shift), bits)


@pytest.mark.parametrize("bits", range(2, 33))
@pytest.mark.parametrize("extra", [-33, -1, 0, 1, 70])
def test_vectors_longer_than_a_row_round_trip(bits: int, extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_ROW", 64)
    monkeypatch.setattr(packing, "_COMPILED", False)
    length = 64 * 32 * 2 + extra
    values = (np.arange(length, dtype=np.int64) * 2654435761 % 2**32).astype(np.uint32).view(np.int32)
    expected = [centred(int(v), bits) for v in values]
    assert decode(encode(values, shift=0, bits=bits), length, bits) == expected
    assert bytes(encode(values, shift=0, bits=bits)) == pack_slowly(list(map(int, values)), bits)


@pytest.mark.skipif(not packing._COMPILED, reason="installed without a compiler")
@pytest.mark.parametrize("bits", range(2, 33))
@pytest.mark.parametrize("columns", [1, 7, 4095, 4096, 4097, 9000])  # the kernel takes 4096 at a time
def test_the_kernel_packs_and_adds_as_numpy_does(bits: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = 32 // math.gcd(bits, 32)
    for length in {max(lanes * columns - missing, 1) for missing in (0, 1, lanes - 1)}:
        values = (np.arange(length, dtype=np.int64) * 2654435761 % 2**32).astype(np.uint32).view(np.int32)
        for shift in {0, min(6, 32 - bits), 32 - bits}:
            found = []
            for compiled in (True, False):
                monkeypatch.setattr(packing, "_COMPILED", compiled)
                packed = bytes(encode(values, shift=shift, bits=bits))
                accumulator = Accumulator(length, bits)
                for _ in range(2):
                    accumulator.add(packed)
                found.append((packed, accumulator.total().tobytes()))
            assert found[0] == found[1]


@pytest.mark.parametrize(
    ("values", "words", "shift", "bits"),
    [
        (np.zeros(32, np.int32), np.zeros(12, np.uint32), 0, 13),
        (np.zeros(32, np.int32), np.zeros(14, np.uint32), 0, 13),
        (np.zeros(33, np.int32), np.zeros(13, np.uint32), 0, 13),
        (np.zeros(32, np.int32), np.zeros(13, np.uint32), 20, 13),
        (np.zeros(32, np.int32), np.zeros(13, np.uint32), -1, 13),
        (np.zeros(32, np.int32), np.zeros(33, np.uint32), 0, 33),
        (np.zeros(32, np.int32), np.zeros(0, np.uint32), 0, 0),
        (np.zeros(4, np.int8)[1:], np.zeros(2, np.uint32), 0, 8),
    ],
)
def test_the_kernel_refuses_to_pack_beyond_its_buffers(values: Any, words: Any, shift: int, bits: int) -> None:
    kernel = pytest.importorskip("lightdp._native.kernel")
    for move in (kernel.pack, kernel.unpack):
        with pytest.raises(ValueError, match="words: aligned, as many as they fill"):
            move(values, words, shift, bits)


@given(
    uploads=st.integers(1, 70).flatmap(lambda d: st.lists(arrays.arrays(np.int32, d, elements=INT32), min_size=1)),
    grid=grids(),
)
def test_accumulator_sums_modulo_two_to_the_bits(uploads: list[NDArray[np.int32]], grid: tuple[int, int]) -> None:
    shift, bits = grid
    accumulator = Accumulator(uploads[0].size, bits)
    for fine in uploads:
        accumulator.add(encode(fine, shift=shift, bits=bits))
    sums = [sum(half_even(int(v), shift) for v in column) for column in zip(*uploads, strict=True)]
    assert accumulator.total().tolist() == [centred(value, bits) for value in sums]
    assert accumulator.total().dtype == np.int32


def test_rounding_error_has_mean_zero_and_the_stated_variance() -> None:
    shift = 4
    fine = np.arange(-(2**10), 2**10, dtype=np.int32)  # every residue, even and odd results alike
    rounded = np.array(decode(encode(fine, shift=shift, bits=28), fine.size, 28))
    error = [Fraction(int(r)) - Fraction(int(v), 2**shift) for r, v in zip(rounded, fine, strict=True)]
    assert sum(error) == 0
    assert sum(e * e for e in error) / len(error) == (1 + Fraction(2, 4**shift)) / 12
    assert max(map(abs, error)) == Fraction(1, 2)


@pytest.mark.parametrize("bits", [2, 3, 8, 10, 13, 16, 20, 24, 31, 32])
def test_packed_size_wastes_less_than_one_column(bits: int) -> None:
    for length in range(1, 100):
        waste = 8 * packed_size(length, bits) - bits * length
        assert 0 <= waste < bits * 32


def test_accumulator_memory_does_not_grow_with_uploads() -> None:
    length, bits = 200_000, 14
    packed = bytes(encode(np.arange(length, dtype=np.int32), shift=0, bits=bits))
    tracemalloc.start()
    accumulator = Accumulator(length, bits)
    for _ in range(5):
        accumulator.add(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * length + 4 * packing._ROW + 50_000


@pytest.mark.parametrize("size", [-4, -1, 1, 4])
def test_packed_vector_of_another_size_changes_nothing(size: int) -> None:
    accumulator = Accumulator(100, 12)
    good = bytes(encode(np.arange(100, dtype=np.int32), shift=0, bits=12))
    accumulator.add(good)
    with pytest.raises(WireError, match="bytes"):
        accumulator.add((good + bytes(4))[: len(good) + size])
    assert accumulator.total().tolist() == list(range(100))


@given(length=st.integers(1, 80), bits=st.integers(2, 32), data=st.data())
def test_every_bit_of_padding_must_be_zero(length: int, bits: int, data: st.DataObject) -> None:
    lanes = 32 // math.gcd(bits, 32)
    capacity = lanes * math.ceil(length / lanes)
    if capacity == length:
        return
    values = [0] * capacity
    values[data.draw(st.integers(length, capacity - 1))] = 1 << data.draw(st.integers(0, bits - 1))
    packed = pack_slowly(values, bits)
    accumulator = Accumulator(length, bits)
    with pytest.raises(WireError, match="padding"):
        accumulator.add(packed)
    assert not accumulator._sum.any()


def test_unaligned_vector_is_encoded_all_the_same() -> None:
    fine = np.arange(-50, 50, dtype=np.int32)
    shifted = np.frombuffer(b"x" + fine.tobytes(), np.int32, offset=1)
    assert bytes(encode(shifted, shift=2, bits=10)) == bytes(encode(fine, shift=2, bits=10))


def test_unaligned_upload_is_added_all_the_same() -> None:
    fine = np.arange(-50, 50, dtype=np.int32)
    shifted = memoryview(b"x" + bytes(encode(fine, shift=0, bits=10)))[1:]
    assert decode(shifted, 100, 10) == fine.tolist()


@pytest.mark.parametrize(("shift", "bits"), [(0, 1), (0, 33), (-1, 8), (25, 8), (1, 32)])
def test_grid_that_does_not_fit_is_refused(shift: int, bits: int) -> None:
    with pytest.raises(ArgumentError):
        encode(np.zeros(3, np.int32), shift=shift, bits=bits)


@pytest.mark.parametrize(
    "fine",
    [np.zeros(0, np.int32), np.zeros((2, 2), np.int32), np.zeros(4, np.int64), np.zeros(8, np.int32)[::2]],
)
def test_vector_of_another_kind_is_refused(fine: NDArray[Any]) -> None:
    with pytest.raises(ArgumentError, match="fine"):
        encode(fine, shift=0, bits=8)


# --- sets of clients ---


@given(flags=arrays.arrays(np.bool_, st.integers(1, 70)))
def test_set_of_clients_round_trips(flags: NDArray[np.bool_]) -> None:
    data = bitmap(flags)
    assert [data[i // 8] >> i % 8 & 1 for i in range(flags.size)] == flags.tolist()
    assert members(data, flags.size).tolist() == flags.tolist()
    assert members(data, flags.size).dtype == np.bool_


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x00\x02", b"\x00\x80", b"\x00\x00\x00"])
def test_set_with_clients_that_do_not_exist_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        members(data, 9)


# --- messages ---


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


def receive(data: bytes | memoryview) -> Message:
    return Message.from_bytes(data, run=RUN, roster=ROSTER)


def sealed(data: bytearray) -> bytes:
    """The same bytes with the right checksum, so that the checks behind it are reached."""
    data[76:80] = struct.pack("<I", zlib.crc32(data[80:], zlib.crc32(data[:76])))
    return bytes(data)


UPLOAD = Message(kind=Kind.UPLOAD, run=RUN, payload=b"0123456789", round=7, roster=ROSTER, client=3)


@given(message=messages())
def test_message_round_trips(message: Message) -> None:
    assert receive(message.to_bytes()) == message


def test_envelope_equals_the_documented_one() -> None:
    fields = b"LDP\x01" + struct.pack("<IQ", 4, 7) + RUN + ROSTER + struct.pack("<IQ", 3, 10)
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


@pytest.mark.parametrize("size", [0, 1, 40])
def test_every_flipped_bit_is_refused(size: int) -> None:
    data = Message(kind=Kind.UPLOAD, run=RUN, payload=bytes(size), round=7, roster=ROSTER, client=3).to_bytes()
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            receive(bytes(flipped))


@pytest.mark.parametrize(
    ("start", "new", "match"),
    [
        (0, b"ldp", "version"),
        (3, b"\x00", "version"),
        (3, b"\x02", "version"),
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


# --- payloads ---


@given(
    sets=st.integers(1, 30).flatmap(lambda n: st.lists(arrays.arrays(np.bool_, n), min_size=1, max_size=6)),
    extra=st.integers(0, 5),
    closing=st.booleans(),
)
def test_announcement_round_trips_and_numbers_its_past_rounds(
    sets: list[NDArray[np.bool_]], extra: int, closing: bool
) -> None:
    clients, number = sets[0].size, len(sets) + extra
    used = b"".join(map(bitmap, sets))
    sent = Announcement(round=number, clients=clients, used=used, closing=closing)
    got = Announcement.from_bytes(sent.to_bytes(), round=number, clients=clients)
    assert got == sent
    assert list(got.history()) == [(extra + i, bitmap(flags)) for i, flags in enumerate(sets)]


def test_first_announcement_has_no_history() -> None:
    first = Announcement.from_bytes(Announcement(round=0, clients=3).to_bytes(), round=0, clients=3)
    assert list(first.history()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<I", 9),
        struct.pack("<II", 8, 0),
        struct.pack("<II", 9, 2),
        struct.pack("<II", 9, 0) + b"\x00",
        struct.pack("<II", 9, 0) + b"\x00\x02",
        struct.pack("<II", 9, 0) + bytes(8),
    ],
)
def test_announcement_that_cannot_be_true_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="announcement"):
        Announcement.from_bytes(data, round=3, clients=9)


@given(fine=VECTORS, bits=st.integers(2, 32))
def test_upload_round_trips(fine: NDArray[np.int32], bits: int) -> None:
    sent = Upload(length=fine.size, bits=bits, packed=encode(fine, shift=0, bits=bits))
    message = Message(kind=Kind.UPLOAD, run=RUN, payload=sent.to_bytes(), round=1, roster=ROSTER, client=0)
    got = Upload.from_bytes(receive(message.to_bytes()).payload, length=fine.size, bits=bits)
    assert got == sent
    assert decode(got.packed, got.length, bits) == [centred(int(v), bits) for v in fine]


@pytest.mark.parametrize(("length", "bits"), [(99, 12), (101, 12), (100, 11), (100, 13), (104, 12), (1, 2)])
def test_upload_for_another_plan_is_refused(length: int, bits: int) -> None:
    data = Upload(length=100, bits=12, packed=encode(np.zeros(100, np.int32), shift=0, bits=12)).to_bytes()
    with pytest.raises(WireError, match="upload"):
        Upload.from_bytes(data, length=length, bits=bits)


def test_upload_that_lies_about_its_size_is_refused() -> None:
    with pytest.raises(WireError, match="upload"):
        Upload.from_bytes(struct.pack("<QQ", 2**63, 32) + bytes(4), length=1, bits=32)


def test_decoding_allocates_no_more_than_it_is_given() -> None:
    clients, rounds = 10_000, 200
    payload = Announcement(round=rounds, clients=clients, used=bytes(1250 * rounds)).to_bytes()
    data = Message(kind=Kind.ANNOUNCE, run=RUN, payload=payload, round=rounds, roster=ROSTER).to_bytes()
    tracemalloc.start()
    Announcement.from_bytes(receive(data).payload, round=rounds, clients=clients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(data) + 20_000

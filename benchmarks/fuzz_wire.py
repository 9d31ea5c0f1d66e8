"""Coverage-guided fuzzing of every decoder; a finding is any exception but WireError, or a second encoding.

Not part of the tests: pip install atheris, then
python benchmarks/fuzz_wire.py -max_total_time=300 -max_len=1200
"""

from __future__ import annotations

import hashlib
import struct
import sys
import zlib

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["lightdp"]):
    from lightdp.client_set import ClientSet
    from lightdp.errors import WireError
    from lightdp.keys import Enrolment, Identity, KeyPair, Roster
    from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload

RUN, PLAN, HASH = bytes(16), bytes(32), bytes([1]) * 32


def sealed(data: bytes) -> bytes:
    """Give the bytes a right checksum, so that the fuzzer sees what lies behind it."""
    covered = data[80:160] if data[4:8] == struct.pack("<I", Kind.UPLOAD) else data[80:]
    checksum = zlib.crc32(covered, zlib.crc32(data[:76]))
    return data[:76] + struct.pack("<I", checksum) + data[80:]


def decode_message(data: bytes) -> None:
    """An envelope and, inside, the payload of its kind."""
    data = sealed(data)
    message = Message.from_bytes(data, run=RUN, roster=HASH)
    same(message.to_bytes(), data)
    if message.kind == Kind.ANNOUNCE:
        decode_announcement(bytes(message.payload), message.round)
    elif message.kind == Kind.UPLOAD:
        decode_upload(bytes(message.payload))
    elif message.kind == Kind.ENROL:
        decode_enrolment(bytes(message.payload))
    else:
        decode_roster(bytes(message.payload))


def decode_announcement(data: bytes, number: int = 9) -> None:
    """An announcement and the sets in it, for a number of clients that the bytes name."""
    clients = max(data[0], 1) if data else 1
    announcement = Announcement.from_bytes(data, round=number, clients=clients)
    same(announcement.to_bytes(), data)
    for past, _ in announcement.history():
        if not 0 <= past < number:
            raise RuntimeError("a past round is not in the past")


def decode_upload(data: bytes) -> None:
    """An upload and its addition, for sizes that the bytes name."""
    length, bits = (max(data[0], 1), min(max(data[8], 2), 32)) if len(data) > 8 else (1, 2)
    upload = Upload.from_bytes(data, length=length, bits=bits)
    same(upload.to_bytes(), data)
    accumulator = Accumulator(length, bits)
    accumulator.add(upload.packed)
    if abs(int(accumulator.total()[0])) > 2 ** (bits - 1):
        raise RuntimeError("a total is out of range")


def decode_enrolment(data: bytes) -> None:
    """A signed key."""
    same(Enrolment.from_bytes(data, run=RUN).to_bytes(), data)


def decode_roster(data: bytes) -> None:
    """A roster of signed keys."""
    same(Roster.from_bytes(data, run=RUN, plan=PLAN).to_bytes(), data)


def same(encoded: bytes, data: bytes) -> None:
    """One value, one encoding."""
    if encoded != data:
        raise RuntimeError("two encodings of one value")


TARGETS = (decode_message, decode_announcement, decode_upload, decode_enrolment, decode_roster)


def one_input(data: bytes) -> None:
    """Four bytes pick a decoder, good bytes, a place in them and whether they end there; the rest goes in."""
    if len(data) < 4:
        return
    decoder, good = TARGETS[data[0] % len(TARGETS)], SEEDS[data[1] % len(SEEDS)]
    start, patch = data[2] * len(good) // 255, data[4:]
    end = good[start + len(patch) :] if data[3] % 2 == 0 else b""
    try:
        decoder(good[:start] + patch + end)
    except WireError:
        return


def seeds() -> list[bytes]:
    """Good bytes of every kind."""
    names = ["ada", "bob"]
    signed = [
        Identity(hashlib.sha256(name.encode()).digest()).enrol(
            KeyPair(hashlib.sha256(name.encode() * 2).digest()), run=RUN, name=name
        )
        for name in names
    ]
    roster = Roster.of(signed, run=RUN, plan=PLAN).to_bytes()
    past = ClientSet.of(9, range(8)), ClientSet.of(9, [2, 5]), ClientSet.all(9)
    announcement = Announcement(round=9, clients=9, past=past).to_bytes()
    upload = Upload(length=8, bits=8, packed=bytes(range(8))).to_bytes()
    payloads = [signed[0].to_bytes(), roster, announcement, upload]
    early = [
        Message(kind=kind, run=RUN, payload=p) for kind, p in zip((Kind.ENROL, Kind.ROSTER), payloads, strict=False)
    ]
    late = [
        Message(kind=Kind.ANNOUNCE, run=RUN, payload=announcement, round=9, roster=HASH),
        Message(kind=Kind.UPLOAD, run=RUN, payload=upload, round=9, roster=HASH, client=1),
    ]
    return [*payloads, *(message.to_bytes() for message in early + late)]


SEEDS = seeds()

if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()

"""Real messages decode by the tables of docs/reference/wire.md, field by field."""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import lightdp
from lightdp.client_set import ClientSet
from lightdp.wire import NOBODY, encode
from lightdp.wire.sets import packed_set

PAGE = (Path(__file__).parents[1] / "docs/reference/wire.md").read_text(encoding="utf-8")
RUN = b"a run of a test."


def table(title: str) -> list[list[str]]:
    """The rows of the first table of a section."""
    section = PAGE.split(f"\n## {title}\n")[1]
    found = re.search(r"^\|.*\n\| ---.*\n((?:\|.*\n)+)", section, flags=re.MULTILINE)
    assert found is not None
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]


def decoded(title: str, data: bytes, *, offsets: bool = False) -> dict[str, bytes]:
    """The fields of a message, as its table says."""
    fields, at = dict[str, bytes](), 0
    for row in table(title):
        offset, size, name = (row[0], row[1], row[2]) if offsets else (None, row[0], row[1])
        assert offset is None or int(offset) == at
        if size == "rest":
            length = len(data) - at
        elif size.isdecimal():
            length = int(size)
        else:
            length = number(fields[size])
        fields[name] = data[at : at + length]
        at += length
    assert offsets or at == len(data)
    return fields


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def opened(message: bytes) -> tuple[dict[str, bytes], bytes]:
    """The envelope of a message, verified, and its payload."""
    head, payload = decoded("Envelope", message, offsets=True), message[80:]
    assert (head["magic"], number(head["version"]), head["run"]) == (b"LDP", 5, RUN)
    assert number(head["length"]) == len(payload)
    covered = payload[:96] if number(head["kind"]) == 4 else payload
    assert number(head["checksum"]) == zlib.crc32(message[:76] + covered)
    return head, payload


GIVEN = bytes(range(32))


@pytest.fixture(scope="module")
def talk() -> dict[str, bytes]:
    """One message of each kind."""
    plan = lightdp.plan(
        clients=3, colluders=1, stragglers=1, rounds=4, epsilon=8, delta=1e-5, unit="client", calibration="exact"
    )
    server = lightdp.Server(plan, length=50, run=RUN)
    clients = [lightdp.Client.new(plan, length=50, run=RUN, name=name) for name in ("ann", "bob", "cem")]
    enrolments = [client.enrol() for client in clients]
    for enrolment in enrolments:
        server.enrol(enrolment)
    for client in clients:
        client.join(server.roster(client.name))
    first = server.announce()
    uploads = [client.begin(first).bind(GIVEN).upload(np.zeros(50)) for client in clients[:2]]
    for upload in uploads:
        server.receive(upload)
    server.close()
    return {
        "enrol": enrolments[1],
        "roster": server.roster("bob"),
        "announce": server.announce(),
        "upload": uploads[1],
        "bits": bytes([plan.wire_bits]),
        "digest": server.roster_hash,
    }


def test_an_enrolment_is_as_the_page_says(talk: dict[str, bytes]) -> None:
    head, payload = opened(talk["enrol"])
    assert (number(head["kind"]), number(head["round"]), head["roster"]) == (1, 0, bytes(32))
    assert number(head["client"]) == NOBODY
    fields = decoded("Enrolment", payload)
    assert fields["name"] == b"bob"
    signed = b"lightdp/2 enrolment" + RUN + fields["public"] + fields["signer"] + fields["identity"] + fields["name"]
    Ed25519PublicKey.from_public_bytes(fields["identity"]).verify(fields["signature"], signed)


def test_a_roster_and_its_hash_are_as_the_page_says(talk: dict[str, bytes]) -> None:
    head, payload = opened(talk["roster"])
    assert number(head["kind"]) == 2
    fields = decoded("Roster", payload)
    assert (fields["magic"], number(fields["version"]), number(fields["clients"])) == (b"lightdp", 5, 3)

    def node(at: int) -> tuple[int, int, bytes, list[bytes]]:
        """Where a node ends, its count, its hash and the names below it."""
        tree = fields["tree"]
        if tree[at] == 0:
            end = at + 2 + tree[at + 1] + 160
            return end, 1, hashlib.sha256(tree[at:end]).digest(), [tree[at + 2 : end - 160]]
        assert tree[at] == 1  # nothing is pruned in a complete graph
        middle, left, left_hash, first = node(at + 3)
        end, right, right_hash, second = node(middle)
        counts = left.to_bytes(4, "little"), right.to_bytes(4, "little")
        hashed = tree[at : at + 3] + counts[0] + left_hash + counts[1] + right_hash
        return end, left + right, hashlib.sha256(hashed).digest(), first + second

    end, count, root, names = node(0)
    assert (end, count, names) == (len(fields["tree"]), 3, [b"ann", b"bob", b"cem"])
    digest = hashlib.sha256(b"lightdp roster" + payload[:64] + root).digest()
    assert digest == talk["digest"] == opened(talk["announce"])[0]["roster"]


def test_an_announcement_is_as_the_page_says(talk: dict[str, bytes]) -> None:
    head, payload = opened(talk["announce"])
    assert number(head["kind"]) == 3
    fields = decoded("Announcement", payload)
    assert (number(fields["clients"]), number(fields["closing"])) == (3, 0)
    assert fields["sets"] == bytes([0b011])  # ann and bob were used in the one past round


def test_an_upload_is_as_the_page_says(talk: dict[str, bytes]) -> None:
    head, payload = opened(talk["upload"])
    assert (number(head["kind"]), number(head["client"])) == (4, 1)
    fields = decoded("Upload", payload)
    bits = number(fields["bits"])
    assert (number(fields["length"]), bits) == (50, talk["bits"][0])
    assert fields["tag"] == hashlib.sha256(b"lightdp bound" + GIVEN).digest()[:16]
    words = np.frombuffer(fields["vector"], "<u4")
    unit = math.gcd(bits, 32)
    assert words.size == -(-50 // (32 // unit)) * (bits // unit)
    parts = payload[:32], fields["vector"]  # neither is long
    hashes = [len(part).to_bytes(8, "little") + hashlib.sha256(part).digest() for part in parts]
    digest = hashlib.sha256(b"lightdp digest" + b"".join(hashes)).digest()
    chain = head["roster"]  # as it is before the first round
    signed = b"lightdp/5 upload" + RUN + head["round"] + head["roster"] + head["client"] + chain + digest
    signer = decoded("Enrolment", opened(talk["enrol"])[1])["signer"]
    Ed25519PublicKey.from_public_bytes(signer).verify(fields["signature"], signed)


@pytest.mark.parametrize("bits", [2, 9, 12, 17, 32])
def test_vectors_unpack_as_the_page_says(bits: int) -> None:
    values = np.arange(-40, 60, dtype=np.int32) % 2 ** min(bits, 20)
    words = np.frombuffer(bytes(encode(values, shift=0, bits=bits)), "<u4").tolist()
    lanes = 32 // math.gcd(bits, 32)
    columns = -(-values.size // lanes)
    for at, value in enumerate(values.tolist()):
        k, column = divmod(at, columns)
        whole = sum(word << 32 * w for w, word in enumerate(words[column::columns]))
        assert whole >> bits * k & (2**bits - 1) == value % 2**bits


def test_a_list_of_gaps_reads_as_the_page_says() -> None:
    clients, away = 2000, [7, 500]
    data = packed_set(~ClientSet.of(clients, away))
    assert data[0] == 2 * 2 + 1  # the two others are listed
    k = max(k for k in range(20) if 2 * 2**k <= clients - 2)
    bits = "".join(f"{byte:08b}"[::-1] for byte in data[1:])
    lower = [int(bits[i * k : (i + 1) * k][::-1], 2) for i in range(2)]
    unary = [len(zeros) for zeros in bits[2 * k :].split("1")[:2]]
    gaps = [low + (high << k) for low, high in zip(lower, unary, strict=True)]
    assert [gaps[0], gaps[0] + 1 + gaps[1]] == away

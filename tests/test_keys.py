"""Golden vectors, an oracle made of hashlib, hmac and integers, and everything a roster must refuse."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp import keys
from lightdp._check import ArgumentError, WireError
from lightdp.keys import Enrolment, Identity, KeyPair, Keyring, Pins, Roster

RUN = bytes(range(16))
PLAN = hashlib.sha256(b"a plan").digest()
NAMES = ("alice", "bob", "carol", "dave")
VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "keys.json").read_text())


def identity_of(name: str) -> Identity:
    return Identity(hashlib.sha256(b"identity " + name.encode()).digest())


def pair_of(name: str) -> KeyPair:
    return KeyPair(hashlib.sha256(b"pair " + name.encode()).digest())


def enrolment_of(name: str, run: bytes = RUN) -> Enrolment:
    return identity_of(name).enrol(pair_of(name), run=run, name=name)


ENROLMENTS = [enrolment_of(name) for name in NAMES]
ROSTER = Roster.of(ENROLMENTS, run=RUN, plan=PLAN)


def rings(roster: Roster) -> list[Keyring]:
    return [Keyring(pair_of(client.name), roster, i) for i, client in enumerate(roster.enrolments)]


def read(data: bytes) -> Roster:
    return Roster.from_bytes(data, run=RUN, plan=PLAN)


def roster_bytes(enrolments: list[bytes], run: bytes = RUN, plan: bytes = PLAN, version: int = 1) -> bytes:
    header = b"lightdp" + bytes([version]) + run + plan + struct.pack("<I", len(enrolments))
    return header + b"".join(enrolments)


# --- oracles ---


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748 by its formulas, on integers."""
    prime = 2**255 - 19
    k = int.from_bytes(scalar, "little") & ~7 & (2**254 - 1) | 2**254
    u = int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3, swapped = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swapped != bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swapped = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % prime, u * (da - cb) ** 2 % prime
        x2, z2 = aa * bb % prime, (aa - bb) * (aa + 121665 * (aa - bb)) % prime
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, prime - 2, prime) % prime).to_bytes(32, "little")


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block of SHA-256."""
    return expand(hmac.digest(salt, secret, "sha256"), info)


def expand(key: bytes, info: bytes) -> bytes:
    return hmac.digest(key, info + b"\x01", "sha256")


# --- key derivation ---


def test_x25519_gives_the_secret_of_rfc_7748() -> None:
    vector = VECTORS["rfc7748"]
    alice, bob = (KeyPair(bytes.fromhex(vector[name])) for name in ("alice", "bob"))
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == vector["shared"]
    assert x25519(alice.to_bytes(), bob.public).hex() == vector["shared"]  # so does the oracle


def test_ed25519_gives_the_public_key_of_rfc_8032() -> None:
    assert Identity(bytes.fromhex(VECTORS["rfc8032"]["private"])).public.hex() == VECTORS["rfc8032"]["public"]


def test_roster_equals_the_golden_one() -> None:
    assert ROSTER.to_bytes().hex() == VECTORS["roster"]["bytes"]
    assert ROSTER.hash.hex() == VECTORS["roster"]["hash"]


@pytest.mark.parametrize("vector", VECTORS["streams"])
def test_stream_key_equals_the_golden_one(vector: dict[str, Any]) -> None:
    me, peer = vector["ends"]
    key = rings(ROSTER)[me].stream_key(peer, round=vector["round"], chain=bytes.fromhex(vector["chain"]))
    assert key.hex() == vector["key"]


@pytest.mark.parametrize("vector", VECTORS["streams"])
def test_golden_stream_key_follows_from_integers_and_hmac_alone(vector: dict[str, Any]) -> None:
    low, high = vector["ends"]
    base = (9).to_bytes(32, "little")
    mine, theirs = (hashlib.sha256(b"pair " + NAMES[end].encode()).digest() for end in (low, high))
    ends = struct.pack("<II", low, high)
    pair = hkdf(x25519(mine, x25519(theirs, base)), ROSTER.hash, b"lightdp/1 pair" + ends)
    place = RUN + struct.pack("<Q", vector["round"]) + bytes.fromhex(vector["chain"]) + ends
    assert expand(pair, b"lightdp/1 stream" + place).hex() == vector["key"]


def test_chain_equals_the_golden_one() -> None:
    chain = ROSTER.hash
    for number, vector in enumerate(VECTORS["chain"]):
        announcement = bytes.fromhex(vector["announcement"])
        parts = b"lightdp/1 chain" + chain + struct.pack("<Q", number) + announcement
        chain = keys.link(chain, round=number, announcement=announcement)
        assert chain.hex() == vector["digest"] == hashlib.sha256(parts).hexdigest()


@given(round=st.integers(0, 2**64 - 1), chain=st.binary(min_size=32, max_size=32))
def test_both_ends_of_every_pair_derive_one_key(round: int, chain: bytes) -> None:  # noqa: A002
    everyone = rings(ROSTER)
    found = set()
    for i in range(4):
        for j in range(i):
            key = everyone[i].stream_key(j, round=round, chain=chain)
            assert key == everyone[j].stream_key(i, round=round, chain=chain)
            found.add(key)
    assert len(found) == 6


def test_stream_key_depends_on_each_thing_that_both_must_agree_on() -> None:
    chain = ROSTER.hash
    other_run = bytes(16)
    rosters = [
        ROSTER,
        Roster.of(ENROLMENTS[:3], run=RUN, plan=PLAN),
        Roster.of(ENROLMENTS, run=RUN, plan=bytes(32)),
        Roster.of([enrolment_of(name, other_run) for name in NAMES], run=other_run, plan=PLAN),
    ]
    found = [rings(roster)[0].stream_key(1, round=5, chain=chain) for roster in rosters]
    found.append(rings(ROSTER)[0].stream_key(1, round=6, chain=chain))
    found.append(rings(ROSTER)[0].stream_key(1, round=5, chain=keys.link(chain, round=4, announcement=b"")))
    assert len(set(found)) == len(found)


def test_stream_key_depends_on_the_run_apart_from_the_roster() -> None:
    found = {keys.stream_key(PLAN, run=run, round=0, chain=PLAN, ends=(0, 1)) for run in (RUN, bytes(16))}
    assert len(found) == 2


def test_chain_tells_rounds_and_announcements_apart() -> None:
    start = ROSTER.hash
    found = {
        keys.link(keys.link(start, round=0, announcement=a), round=1, announcement=b)
        for a, b in ((b"", b"xy"), (b"x", b"y"), (b"xy", b""))
    }
    found.add(keys.link(start, round=1, announcement=b"xy"))
    assert len(found) == 4


def test_keyring_of_a_sparse_graph_knows_only_its_peers() -> None:
    ring = Keyring(pair_of("alice"), ROSTER, 0, peers=[2])
    full = rings(ROSTER)[0]
    assert ring.stream_key(2, round=0, chain=PLAN) == full.stream_key(2, round=0, chain=PLAN)
    with pytest.raises(ArgumentError, match="peer=1"):
        ring.stream_key(1, round=0, chain=PLAN)


@pytest.mark.parametrize(("me", "peers"), [(1, None), (4, None), (0, [0]), (0, [4]), (0, [-1])])
def test_keyring_refuses_a_place_that_is_not_its_own(me: int, peers: list[int] | None) -> None:
    with pytest.raises(ArgumentError):
        Keyring(pair_of("alice"), ROSTER, me, peers)


@pytest.mark.parametrize("bad", [{"chain": b"short"}, {"round": -1}, {"round": 2**64}])
def test_stream_key_refuses_wrong_arguments(bad: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"round": 0, "chain": PLAN}
    with pytest.raises(ArgumentError):
        rings(ROSTER)[0].stream_key(1, **arguments | bad)


def test_restored_key_pair_agrees_as_before() -> None:
    pair = KeyPair.generate()
    assert KeyPair(pair.to_bytes()).agree(pair_of("bob").public) == pair_of("bob").agree(pair.public)


def test_generated_keys_are_fresh() -> None:
    assert len({KeyPair.generate().public for _ in range(8)}) == 8
    assert len({Identity.generate().public for _ in range(8)}) == 8


def test_secrets_are_not_in_repr() -> None:
    identity, pair = identity_of("alice"), pair_of("alice")
    shown = repr(identity) + repr(pair) + repr(rings(ROSTER)[0]) + repr(ROSTER)
    for secret in (identity.to_bytes(), pair.to_bytes(), rings(ROSTER)[0]._keys[1]):
        assert secret.hex() not in shown
        assert repr(secret) not in shown


# --- identities on disk ---


def test_identity_survives_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    identity = Identity.generate()
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).to_bytes() == identity.to_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_identity_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    identity_of("alice").save(path)
    with pytest.raises(ArgumentError, match="must not exist"):
        identity_of("bob").save(path)
    assert Identity.load(path).public == identity_of("alice").public
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_identity_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.pem"
    identity_of("alice").save(path)
    path.chmod(mode)
    with pytest.raises(ArgumentError, match="private"):
        Identity.load(path)


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_file_that_is_not_an_identity_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ArgumentError, match="Ed25519"):
        Identity.load(path)


# --- enrolments and rosters ---


@given(name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}\Z"), run=st.binary(min_size=16, max_size=16))
def test_enrolment_round_trips(name: str, run: bytes) -> None:
    enrolment = identity_of("x").enrol(pair_of("x"), run=run, name=name)
    assert Enrolment.from_bytes(enrolment.to_bytes(), run=run) == enrolment


@pytest.mark.parametrize("name", ["", "a b", "-a", "ü", "a\n", "a#", "a" * 65])
def test_name_that_could_be_misread_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="name"):
        identity_of("x").enrol(pair_of("x"), run=RUN, name=name)


def test_enrolment_for_another_run_is_refused() -> None:
    with pytest.raises(WireError, match="not signed"):
        Enrolment.from_bytes(ENROLMENTS[0].to_bytes(), run=bytes(16))


def test_every_flipped_bit_of_an_enrolment_is_refused() -> None:
    data = ENROLMENTS[0].to_bytes()
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            Enrolment.from_bytes(bytes(flipped), run=RUN)


def test_roster_does_not_depend_on_the_order_of_arrival() -> None:
    assert Roster.of(reversed(ENROLMENTS), run=RUN, plan=PLAN) == ROSTER
    assert [client.name for client in ROSTER.enrolments] == sorted(NAMES)


def test_roster_round_trips() -> None:
    again = read(ROSTER.to_bytes())
    assert again == ROSTER
    assert again.hash == hashlib.sha256(ROSTER.to_bytes()).digest()


def test_every_truncation_and_extension_of_a_roster_is_refused() -> None:
    data = ROSTER.to_bytes()
    for end in range(len(data)):
        with pytest.raises(WireError):
            read(data[:end])
    with pytest.raises(WireError):
        read(data + b"\0")


@given(position=st.integers(0, 8 * len(ROSTER.to_bytes()) - 1))
def test_a_flipped_bit_of_a_roster_is_refused(position: int) -> None:
    flipped = bytearray(ROSTER.to_bytes())
    flipped[position // 8] ^= 1 << position % 8
    with pytest.raises(WireError):
        read(bytes(flipped))


@given(data=st.binary(max_size=400), headed=st.booleans())
def test_random_bytes_are_refused_as_a_roster(data: bytes, headed: bool) -> None:
    with pytest.raises(WireError):
        read(ROSTER.to_bytes()[: 60 if headed else 0] + data)
    with pytest.raises(WireError):
        Enrolment.from_bytes(data, run=RUN)


def test_roster_that_claims_four_billion_clients_is_refused_at_once() -> None:
    data = bytearray(ROSTER.to_bytes())
    data[56:60] = b"\xff" * 4
    with pytest.raises(WireError, match="4294967295"):
        read(bytes(data))


def test_unsorted_roster_is_refused() -> None:
    encoded = [enrolment.to_bytes() for enrolment in ENROLMENTS]
    read(roster_bytes(encoded))
    with pytest.raises(WireError, match="sorted"):
        read(roster_bytes(encoded[::-1]))


@pytest.mark.parametrize("changed", [{"run": bytes(16)}, {"plan": bytes(32)}, {"version": 0}, {"version": 2}], ids=str)
def test_foreign_roster_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        read(roster_bytes([enrolment.to_bytes() for enrolment in ENROLMENTS], **changed))


@pytest.mark.parametrize(
    ("what", "second"),
    [
        ("name", identity_of("bob").enrol(pair_of("bob"), run=RUN, name="alice")),
        ("identity", identity_of("alice").enrol(pair_of("bob"), run=RUN, name="bob")),
        ("public", identity_of("bob").enrol(pair_of("alice"), run=RUN, name="bob")),
    ],
)
def test_roster_with_a_duplicate_is_refused(what: str, second: Enrolment) -> None:
    with pytest.raises(WireError, match=what):
        Roster.of([ENROLMENTS[0], second], run=RUN, plan=PLAN)
    with pytest.raises(WireError, match=what):
        read(roster_bytes([ENROLMENTS[0].to_bytes(), second.to_bytes()]))


def test_roster_with_an_enrolment_of_another_run_is_refused() -> None:
    with pytest.raises(WireError, match="another run"):
        Roster.of([ENROLMENTS[0], enrolment_of("bob", bytes(16))], run=RUN, plan=PLAN)


def test_roster_of_one_is_refused() -> None:
    with pytest.raises(WireError, match="at least 2"):
        Roster.of(ENROLMENTS[:1], run=RUN, plan=PLAN)


PRIME = 2**255 - 19
SMALL_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    PRIME - 1,
]


def forged(point: int) -> bytes:
    """The bytes of an enrolment, properly signed, of any 32 bytes in place of a key."""
    public = point.to_bytes(32, "little")
    identity = identity_of("mallory")
    signature = identity._key.sign(b"lightdp/1 enrolment" + RUN + public + identity.public + b"mallory")
    return b"\x07mallory" + public + identity.public + signature


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_key_of_small_order_is_refused(point: int) -> None:
    with pytest.raises(WireError, match="large order"):
        Enrolment.from_bytes(forged(point), run=RUN)
    with pytest.raises(WireError, match="large order"):
        pair_of("alice").agree(point.to_bytes(32, "little"))


@pytest.mark.parametrize("point", [PRIME, PRIME + 1, PRIME + 9, 2**255 + 9, 2**256 - 1])
def test_key_that_is_not_canonical_is_refused(point: int) -> None:
    with pytest.raises(WireError, match="canonical"):
        Enrolment.from_bytes(forged(point), run=RUN)


def test_the_forger_of_these_tests_can_forge_a_good_enrolment() -> None:
    assert Enrolment.from_bytes(forged(9), run=RUN).name == "mallory"


def test_client_finds_itself_or_refuses_the_roster() -> None:
    assert [ROSTER.index(enrolment) for enrolment in ENROLMENTS] == [0, 1, 2, 3]
    renewed = identity_of("alice").enrol(KeyPair.generate(), run=RUN, name="alice")
    with pytest.raises(WireError, match="alice"):
        ROSTER.index(renewed)


# --- pins ---


def line(name: str, of: str | None = None) -> str:
    return f"{name} {identity_of(of or name).public.hex()}"


def test_pins_that_agree_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    path.write_text(f"# friends\n\n{line('alice')}  # met in person\n\t{line('bob')}\n{line('zoe')}\n")
    pins = Pins.load(path)
    assert set(pins.identities) == {"alice", "bob", "zoe"}
    pins.check(ROSTER)


def test_pinned_name_with_another_identity_is_refused() -> None:
    with pytest.raises(WireError, match="bob with an identity other"):
        Pins.parse(line("bob", of="eve")).check(ROSTER)


def test_pinned_identity_with_another_name_is_refused() -> None:
    with pytest.raises(WireError, match="robert's pinned identity as bob"):
        Pins.parse(line("robert", of="bob")).check(ROSTER)


def test_client_without_a_pin_is_refused_only_if_all_must_be_pinned() -> None:
    pins = Pins.parse("\n".join(line(name) for name in NAMES[:3]))
    pins.check(ROSTER)
    with pytest.raises(WireError, match="dave, who is not pinned"):
        pins.check(ROSTER, complete=True)
    Pins.parse("\n".join(map(line, NAMES))).check(ROSTER, complete=True)


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "alice 00",
        f"{line('alice')} extra",
        line("alice").upper(),
        f"{line('alice')}\n{line('alice', of='bob')}",
        f"{line('alice')}\n{line('bob', of='alice')}",
        os.fsdecode(b"\xff") + line("alice"),
    ],
)
def test_pins_that_are_unclear_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="line"):
        Pins.parse(text)

"""Stream keys against golden vectors and an oracle made of hashlib, hmac and integers."""

from __future__ import annotations

import gc
import hashlib
import hmac
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp import keys
from lightdp._native import kernel
from lightdp.errors import ArgumentError, LightDPError, WireError
from lightdp.keys import Identity, KeyPair, Keyring, Roster
from lightdp.keys.derivation import _chosen, _compiled, _expand_plain
from lightdp.keys.pair import _alive
from lightdp.wire import Kind, Message, Upload, tag_of
from support import roster_trees
from support.key_holders import ENROLMENTS, NAMES, PLAN, ROSTER, RUN, enrolment_of, identity_of, pair_of

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "keys.json").read_text())


def rings(roster: Roster) -> list[Keyring]:
    return [Keyring(pair_of(client.name), roster, i) for i, client in roster.enrolments.items()]


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


def ed25519(seed: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Public key and signature, RFC 8032 section 5.1 by its formulas, on integers."""
    prime, order = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
    d = -121665 * pow(121666, -1, prime)
    y = 4 * pow(5, -1, prime) % prime
    square = (y * y - 1) * pow(d * y * y + 1, -1, prime)
    x = pow(square, (prime + 3) // 8, prime)
    if (x * x - square) % prime != 0:
        x = x * pow(2, (prime - 1) // 4, prime) % prime
    base = (x if x % 2 == 0 else prime - x, y)

    def add(p: tuple[int, int], q: tuple[int, int]) -> tuple[int, int]:
        t = d * p[0] * q[0] * p[1] * q[1] % prime
        first = (p[0] * q[1] + q[0] * p[1]) * pow(1 + t, -1, prime)
        return first % prime, (p[1] * q[1] + p[0] * q[0]) * pow(1 - t, -1, prime) % prime

    def times(k: int) -> bytes:
        total, power = (0, 1), base
        while k > 0:
            total, power, k = add(total, power) if k % 2 == 1 else total, add(power, power), k // 2
        return (total[1] | total[0] % 2 << 255).to_bytes(32, "little")

    digest = hashlib.sha512(seed).digest()
    secret = int.from_bytes(digest[:32], "little") & ~7 & (2**254 - 1) | 2**254
    nonce = int.from_bytes(hashlib.sha512(digest[32:] + message).digest(), "little") % order
    public, point = times(secret), times(nonce)
    challenge = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little")
    return public, point + ((nonce + challenge * secret) % order).to_bytes(32, "little")


# --- key derivation ---


def test_x25519_gives_the_secret_of_rfc_7748() -> None:
    vector = VECTORS["rfc7748"]
    alice, bob = (KeyPair(bytes.fromhex(vector[name])) for name in ("alice", "bob"))
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == vector["shared"]
    assert x25519(alice.to_bytes(), bob.public).hex() == vector["shared"]  # so does the oracle


def test_ed25519_gives_the_public_key_of_rfc_8032() -> None:
    vector = VECTORS["rfc8032"]
    assert Identity(bytes.fromhex(vector["private"])).public.hex() == vector["public"]
    assert ed25519(bytes.fromhex(vector["private"]), b"")[0].hex() == vector["public"]  # so does the oracle


def test_roster_equals_the_golden_one() -> None:
    assert ROSTER.to_bytes().hex() == VECTORS["roster"]["bytes"]
    assert ROSTER.hash.hex() == VECTORS["roster"]["hash"]


def enrolled_by_hand() -> list[tuple[str, bytes]]:
    found = []
    for name in NAMES:
        identity, private = (hashlib.sha256(f"{what} {name}".encode()).digest() for what in ("identity", "pair"))
        public = x25519(private, (9).to_bytes(32, "little"))
        signer, _ = ed25519(hkdf(private, bytes(32), b"lightdp/2 upload key"), b"")
        signed = b"lightdp/2 enrolment" + RUN + public + signer + ed25519(identity, b"")[0] + name.encode()
        found.append((name, bytes([len(name)]) + name.encode() + public + signer + b"".join(ed25519(identity, signed))))
    return found


def test_golden_roster_follows_from_integers_and_hmac_alone() -> None:
    leaves = enrolled_by_hand()
    assert roster_trees.bytes_of(leaves, RUN, PLAN).hex() == VECTORS["roster"]["bytes"]
    assert roster_trees.hash_of(leaves, RUN, PLAN).hex() == VECTORS["roster"]["hash"]
    for vector in VECTORS["excerpts"]:
        shown = [NAMES[place] for place in vector["clients"]]
        assert roster_trees.bytes_of(leaves, RUN, PLAN, shown).hex() == vector["bytes"]


@pytest.mark.parametrize("vector", VECTORS["excerpts"])
def test_excerpt_equals_the_golden_one(vector: dict[str, Any]) -> None:
    excerpt = ROSTER.excerpt(vector["clients"])
    assert excerpt.to_bytes().hex() == vector["bytes"]
    again = Roster.from_bytes(bytes.fromhex(vector["bytes"]), run=RUN, plan=PLAN)
    assert again == excerpt
    assert again.hash.hex() == VECTORS["roster"]["hash"]


@pytest.mark.parametrize("vector", VECTORS["uploads"])
def test_signature_of_an_upload_equals_the_golden_one(vector: dict[str, Any]) -> None:
    client = NAMES.index(vector["name"])
    packed, chain = bytes.fromhex(vector["packed"]), bytes.fromhex(vector["chain"])
    given = None if vector["given"] is None else bytes.fromhex(vector["given"])
    upload = Upload(length=vector["length"], bits=vector["bits"], packed=packed, tag=tag_of(given))
    assert upload.tag == (bytes(16) if given is None else hashlib.sha256(b"lightdp bound" + given).digest()[:16])
    assert upload.tag.hex() == vector["tag"]
    where: dict[str, Any] = {"run": RUN, "round": vector["round"], "roster": ROSTER.hash, "client": client}
    statement = upload.statement(Message(kind=Kind.UPLOAD, payload=b"", **where), chain=chain)
    shape = struct.pack("<QQ", vector["length"], vector["bits"]) + upload.tag
    hashes = [struct.pack("<Q", len(part)) + hashlib.sha256(part).digest() for part in (shape, packed)]
    digest = hashlib.sha256(b"lightdp digest" + b"".join(hashes)).digest()
    place = RUN + struct.pack("<Q", vector["round"]) + ROSTER.hash + struct.pack("<I", client) + chain
    assert statement == b"lightdp/5 upload" + place + digest
    seed = hkdf(pair_of(vector["name"]).to_bytes(), bytes(32), b"lightdp/2 upload key")
    assert ed25519(seed, statement)[1].hex() == vector["signature"]
    signature = pair_of(vector["name"]).sign(statement)
    assert signature.hex() == vector["signature"]
    ROSTER.enrolments[client].verify(signature, statement)
    for wrong in ((bytes(64), statement), (signature, statement + b"\0"), (signature[:63], statement)):
        with pytest.raises(WireError, match=f"{vector['name']} did not sign this"):
            ROSTER.enrolments[client].verify(*wrong)
    with pytest.raises(WireError, match="did not sign this"):
        ROSTER.enrolments[(client - 1) % len(NAMES)].verify(signature, statement)


@pytest.mark.parametrize("vector", VECTORS["streams"])
def test_stream_key_equals_the_golden_one(vector: dict[str, Any]) -> None:
    me, peer = vector["ends"]
    key = rings(ROSTER)[me].stream_keys([peer], round=vector["round"], chain=bytes.fromhex(vector["chain"]))[peer]
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
            key = everyone[i].stream_keys([j], round=round, chain=chain)[j]
            assert key == everyone[j].stream_keys([i], round=round, chain=chain)[i]
            found.add(key)
    assert len(found) == 6


def test_stream_key_depends_on_each_thing_that_both_must_agree_on() -> None:
    chain = ROSTER.hash
    other_run = bytes(16)
    rosters = [
        ROSTER,
        Roster.of(ENROLMENTS[:3], run=RUN, plan=PLAN),
        Roster.of(ENROLMENTS, run=RUN, plan=bytes(32)),
        Roster.of(ENROLMENTS, run=RUN, plan=PLAN, number=1),
        Roster.of([enrolment_of(name, other_run) for name in NAMES], run=other_run, plan=PLAN),
    ]
    found = [rings(roster)[0].stream_keys([1], round=5, chain=chain)[1] for roster in rosters]
    found.append(rings(ROSTER)[0].stream_keys([1], round=6, chain=chain)[1])
    found.append(rings(ROSTER)[0].stream_keys([1], round=5, chain=keys.link(chain, round=4, announcement=b""))[1])
    assert len(set(found)) == len(found)


def test_stream_key_depends_on_the_run_apart_from_the_roster() -> None:
    ring = rings(ROSTER)[0]
    before = ring.stream_keys([1], round=0, chain=PLAN)
    ring._run = bytes(16)
    assert ring.stream_keys([1], round=0, chain=PLAN) != before


def test_chain_tells_rounds_and_announcements_apart() -> None:
    start = ROSTER.hash
    found = {
        keys.link(keys.link(start, round=0, announcement=a), round=1, announcement=b)
        for a, b in ((b"", b"xy"), (b"x", b"y"), (b"xy", b""))
    }
    found.add(keys.link(start, round=1, announcement=b"xy"))
    assert len(found) == 4


def test_keys_of_several_peers_are_those_of_each() -> None:
    ring = rings(ROSTER)[1]
    together = ring.stream_keys([3, 0], round=2, chain=PLAN)
    assert list(together) == [3, 0]
    assert together == {peer: ring.stream_keys([peer], round=2, chain=PLAN)[peer] for peer in (0, 3)}
    assert ring.stream_keys([], round=2, chain=PLAN) == {}


def test_keyring_of_a_sparse_graph_knows_only_its_peers() -> None:
    ring = Keyring(pair_of("alice"), ROSTER, 0, peers=[2])
    full = rings(ROSTER)[0]
    assert ring.stream_keys([2], round=0, chain=PLAN)[2] == full.stream_keys([2], round=0, chain=PLAN)[2]
    with pytest.raises(ArgumentError, match="peer=1"):
        ring.stream_keys([2, 1], round=0, chain=PLAN)


@pytest.mark.parametrize(("me", "peers"), [(1, None), (4, None), (0, [0]), (0, [4]), (0, [-1])])
def test_keyring_refuses_a_place_that_is_not_its_own(me: int, peers: list[int] | None) -> None:
    with pytest.raises(ArgumentError):
        Keyring(pair_of("alice"), ROSTER, me, peers)


@pytest.mark.parametrize("bad", [{"chain": b"short"}, {"round": -1}, {"round": 2**64}])
def test_stream_key_refuses_wrong_arguments(bad: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"round": 0, "chain": PLAN}
    with pytest.raises(ArgumentError):
        rings(ROSTER)[0].stream_keys([1], **arguments | bad)


def test_restored_key_pair_agrees_as_before() -> None:
    pair = KeyPair.generate()
    assert KeyPair(pair.to_bytes()).agree(pair_of("bob").public) == pair_of("bob").agree(pair.public)


def test_keys_that_are_seen_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightdp.keys.pair._MOST", 4)
    mine, others = KeyPair.generate(), [KeyPair.generate() for _ in range(10)]
    for other in others * 2:
        assert mine.agree(other.public) == other.agree(mine.public)
        assert len(mine._agreed) <= 4
    monkeypatch.setattr(KeyPair, "agree", None)
    Identity.generate().enrol(KeyPair.generate(), run=RUN, name="eve")  # verified, and no pair keeps its key


def test_a_pair_that_is_in_use_keeps_its_secrets_when_its_client_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, other = KeyPair.generate(), KeyPair.generate()
    secret = pair.agree(other.public)
    monkeypatch.setattr("lightdp.keys.pair.X25519PublicKey", None)  # every agreement would need it
    assert KeyPair(bytes(bytearray(pair.to_bytes()))).agree(other.public) == secret
    with pytest.raises(AttributeError):
        pair.agree(KeyPair.generate().public)


def test_no_secret_outlives_its_owners() -> None:
    pair, other = KeyPair.generate(), KeyPair.generate()
    private, before = pair.to_bytes(), len(_alive)
    pair.agree(other.public)
    assert private in _alive
    del pair
    gc.collect()
    assert private not in _alive
    assert len(_alive) < before
    assert KeyPair(private)._agreed == {}


@pytest.mark.parametrize("way", [_expand_plain, *_compiled], ids=[str(at) for at in range(1 + len(_compiled))])
@pytest.mark.parametrize("length", [0, 1, 30, 46, 47, 48, 72, 110, 111, 112, 160])
def test_every_way_to_expand_keys_is_hkdf(way: Callable[[bytes, bytes], bytes], length: int) -> None:
    """Info of all lengths around those at which SHA-256 needs another block, for none, one and several keys."""
    prefix = hashlib.shake_128(b"prefix").digest(length)
    for count in (0, 1, 5):
        records = hashlib.shake_128(b"records").digest(40 * count)
        parts = [records[40 * i : 40 * i + 40] for i in range(count)]
        assert way(prefix, records) == b"".join(expand(part[:32], prefix + part[32:]) for part in parts)


def test_the_kernel_refuses_records_that_are_not_whole() -> None:
    if kernel is None:
        pytest.skip("not compiled here")
    for way, prefix, records in (("plain", b"", bytes(39)), ("plain", bytes(161), bytes(40)), ("none", b"", b"")):
        with pytest.raises(ValueError, match=r"prefix|no way"):
            kernel.expand(way, prefix, records)


def test_a_way_to_expand_keys_that_errs_is_not_used() -> None:
    def wrong(prefix: bytes, records: bytes) -> bytes:
        return bytes(len(prefix) * 0 + len(records) // 40 * 32)

    assert _chosen((_expand_plain, _expand_plain)) is _expand_plain
    assert _chosen((wrong, _expand_plain)) is _expand_plain
    assert _chosen((_expand_plain, wrong, _expand_plain)) is _expand_plain
    with pytest.raises(LightDPError, match="known answer"):
        _chosen((_expand_plain, wrong))


def test_generated_keys_are_fresh() -> None:
    assert len({KeyPair.generate().public for _ in range(8)}) == 8
    assert len({Identity.generate().public for _ in range(8)}) == 8


def test_secrets_are_not_in_repr() -> None:
    identity, pair = identity_of("alice"), pair_of("alice")
    shown = repr(identity) + repr(pair) + repr(rings(ROSTER)[0]) + repr(ROSTER)
    signing, shared = pair._signing.private_bytes_raw(), rings(ROSTER)[0]._record(1)[:32]
    for secret in (identity.to_bytes(), pair.to_bytes(), signing, shared):
        assert secret.hex() not in shown
        assert repr(secret) not in shown

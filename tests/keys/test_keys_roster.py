"""Enrolments and rosters: what they are, and everything that they must refuse."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.errors import ArgumentError, WireError
from lightdp.keys import Enrolment, KeyPair, Roster
from support import roster_trees
from support.key_holders import ENROLMENTS, NAMES, PLAN, ROSTER, RUN, enrolment_of, identity_of, pair_of


def read(data: bytes) -> Roster:
    return Roster.from_bytes(data, run=RUN, plan=PLAN)


def named(enrolments: Iterable[Enrolment]) -> list[roster_trees.Leaf]:
    return [(each.name, each.to_bytes()) for each in enrolments]


def roster_bytes(enrolments: Iterable[Enrolment], run: bytes = RUN, plan: bytes = PLAN, version: int = 5) -> bytes:
    data = roster_trees.bytes_of(named(enrolments), run, plan)
    return data[:7] + bytes([version]) + data[8:]


def inner(bit: int, left: bytes, right: bytes) -> bytes:
    return b"\1" + struct.pack("<H", bit) + left + right


def leaf(enrolment: Enrolment) -> bytes:
    return b"\0" + enrolment.to_bytes()


def pruned(count: int, digest: bytes = bytes(32)) -> bytes:
    return b"\2" + struct.pack("<I", count) + digest


def first_bit(one: Enrolment, other: Enrolment) -> int:
    return 0 if one.name == other.name else roster_trees.first_difference(named([one, other]))


def with_tree(clients: int, tree: bytes) -> bytes:
    return roster_trees.header_of(clients, RUN, PLAN) + tree


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


def test_nothing_and_two_enrolments_are_refused_as_one() -> None:
    for count in (0, 2):
        with pytest.raises(WireError, match="enrolment must have"):
            Enrolment.from_bytes(ENROLMENTS[0].to_bytes() * count, run=RUN)


def test_a_wrong_number_of_enrolments_is_refused_before_signatures_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message of a few megabytes would otherwise hold its reader for many seconds."""
    verified: list[object] = []

    def watched(*fields: object) -> None:
        verified.append(fields)

    monkeypatch.setattr("lightdp.keys.identity._fault", watched)
    entries = [enrolment.to_bytes() for enrolment in ENROLMENTS]
    with pytest.raises(WireError, match="enrolment must have 166 bytes, got 6640"):
        Enrolment.from_bytes(entries[0] * 40, run=RUN)
    whole = roster_bytes(ENROLMENTS)
    with pytest.raises(WireError, match="roster must have a tree of"):
        read(whole + leaf(ENROLMENTS[0]))
    with pytest.raises(WireError, match=f"roster must have 2 clients, got {len(entries)}"):
        Roster.from_bytes(whole, run=RUN, plan=PLAN, clients=2)
    with pytest.raises(WireError, match="roster must show some of 5 clients, and have at least 2, got 4"):
        read(with_tree(5, whole[64:]))
    assert verified == []
    assert len(Roster.from_bytes(whole, run=RUN, plan=PLAN, clients=len(entries))) == len(verified) == len(entries)


@pytest.mark.parametrize("field", ["run", "public", "signer", "identity", "signature"])
def test_fields_of_an_enrolment_are_bytes_of_one_size(field: str) -> None:
    fields: dict[str, Any] = dict(vars(ENROLMENTS[0]))
    copied = Enrolment(**fields | {field: bytearray(fields[field])})
    assert copied == ENROLMENTS[0]
    assert type(getattr(copied, field)) is bytes
    for wrong, message in (
        (fields[field][1:], "bytes, got"),
        ("x", "must be bytes, got"),
        (None, "must be bytes, got"),
    ):
        with pytest.raises(ArgumentError, match=f"{field} must be .*{message.removeprefix('must be ')}"):
            Enrolment(**fields | {field: wrong})


def test_a_roster_that_is_read_again_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ROSTER.to_bytes()
    known = read(data)
    monkeypatch.setattr("lightdp.keys.identity.Ed25519PublicKey", None)  # every verification would call it
    assert read(data) is known
    assert read(ROSTER.excerpt([1, 2]).to_bytes()).names == ("bob", "carol")  # nor are enrolments that were read
    with pytest.raises(AttributeError):
        Enrolment.from_bytes(forged(10), run=RUN)


def test_a_roster_that_was_kept_is_verified_if_it_comes_from_elsewhere() -> None:
    data = bytearray(roster_bytes(ENROLMENTS[:2]))
    data[-1] ^= 1  # of a signature
    kept = Roster.from_bytes(bytes(data), run=RUN, plan=PLAN, verified=True)
    assert kept.kept
    with pytest.raises(WireError, match="not signed"):
        read(bytes(data))
    good = roster_bytes(ENROLMENTS[:2])
    kept = Roster.from_bytes(good, run=RUN, plan=PLAN, verified=True)
    verified = read(good)
    assert (kept.kept, verified.kept) == (True, False)
    assert Roster.from_bytes(good, run=RUN, plan=PLAN, verified=True) is verified


def test_no_roster_outlives_its_owners() -> None:
    data = roster_bytes(ENROLMENTS[1:])
    alive = weakref.ref(read(data))
    gc.collect()
    assert alive() is None


def test_every_flipped_bit_of_an_enrolment_is_refused() -> None:
    data = ENROLMENTS[0].to_bytes()
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            Enrolment.from_bytes(bytes(flipped), run=RUN)


def test_roster_does_not_depend_on_the_order_of_arrival() -> None:
    assert Roster.of(reversed(ENROLMENTS), run=RUN, plan=PLAN) == ROSTER
    assert list(ROSTER.names) == sorted(NAMES)
    assert list(ROSTER.enrolments) == [0, 1, 2, 3]


def test_roster_round_trips() -> None:
    again = read(ROSTER.to_bytes())
    assert again == ROSTER
    assert again.hash == roster_trees.hash_of(named(ENROLMENTS), RUN, PLAN)
    assert again.whole


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
    if 24 <= position // 8 < 28:  # the number, which nobody signs: it is another roster, with other keys
        assert read(bytes(flipped)).hash != ROSTER.hash
        return
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
    data[60:64] = b"\xff" * 4
    with pytest.raises(WireError, match="4294967295"):
        read(bytes(data))


def test_unsorted_roster_is_refused() -> None:
    alice, bob, *_ = ENROLMENTS
    bit = roster_trees.first_difference(named([alice, bob]))
    read(with_tree(2, inner(bit, leaf(alice), leaf(bob))))
    with pytest.raises(WireError, match="sorted"):
        read(with_tree(2, inner(bit, leaf(bob), leaf(alice))))


@pytest.mark.parametrize(
    "changed",
    [{"run": bytes(16)}, {"plan": bytes(32)}, {"version": 1}, {"version": 3}, {"version": 4}, {"version": 6}],
    ids=str,
)
def test_foreign_roster_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        read(roster_bytes(ENROLMENTS, **changed))


@pytest.mark.parametrize(
    ("what", "second"),
    [
        ("name", identity_of("bob").enrol(pair_of("bob"), run=RUN, name="alice")),
        ("identity", identity_of("alice").enrol(pair_of("bob"), run=RUN, name="bob")),
        ("public", identity_of("bob").enrol(pair_of("alice"), run=RUN, name="bob")),
    ],
)
def test_roster_with_two_of_one_kind_is_refused(what: str, second: Enrolment) -> None:
    with pytest.raises(WireError, match=what):
        Roster.of([ENROLMENTS[0], second], run=RUN, plan=PLAN)
    with pytest.raises(WireError, match=what):
        read(with_tree(2, inner(first_bit(ENROLMENTS[0], second), leaf(ENROLMENTS[0]), leaf(second))))


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
    identity, signer = identity_of("mallory"), pair_of("mallory").signer
    signature = identity._key.sign(b"lightdp/2 enrolment" + RUN + public + signer + identity.public + b"mallory")
    return b"\x07mallory" + public + signer + identity.public + signature


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


def test_a_roster_of_version_4_can_be_counted_and_keeps_its_version_and_hash() -> None:
    old = roster_bytes(ENROLMENTS, version=4)
    again = Roster.from_bytes(old, run=RUN, plan=PLAN, verified=True)
    assert again.enrolments == ROSTER.enrolments
    was = bytes.fromhex("2c30a1a1414340124adad6302ab68cb760637d597ef46487a78efd5e076a025b")  # keys.json of that version
    assert again.hash == was
    assert again.to_bytes() == old
    assert (again.current, ROSTER.current) == (False, True)
    some = again.excerpt([0, 1]).to_keep()
    kept = Roster.from_bytes(some.to_bytes(), run=RUN, plan=PLAN, verified=True)
    assert (kept.hash, kept.current) == (was, False)
    with pytest.raises(WireError, match="roster must be of version 5"):
        read(old)


def test_a_roster_of_version_3_never_becomes_one_of_this_version() -> None:
    listed = roster_bytes(ENROLMENTS, version=3)[:64] + b"".join(each.to_bytes() for each in ROSTER.enrolments.values())
    again = Roster.from_bytes(listed, run=RUN, plan=PLAN, verified=True)
    assert again.enrolments == ROSTER.enrolments
    once_more = Roster.from_bytes(again.to_bytes(), run=RUN, plan=PLAN, verified=True)
    assert again.hash == once_more.hash != ROSTER.hash
    assert not again.current
    assert not once_more.current

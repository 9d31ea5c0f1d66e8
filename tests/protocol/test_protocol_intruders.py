"""Who is let in, whose uploads are taken, and how much history a server may send."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.keys import Identity, KeyPair, Pins, Roster
from lightdp.protocol import Client, ClientState, File, Server
from lightdp.protocol.history import ClientHistory, max_rounds
from lightdp.wire import Announcement, Kind, Message, Upload
from support.parties import RUN, joined, planned, play

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan

# ---- enrolments ----


def enrolling(plan: Plan, name: str, identity: Identity | None = None) -> bytes:
    return Client.new(plan, length=5, run=RUN, name=name, identity=identity).enrol()


def test_one_enrolment_too_many_is_refused_and_the_roster_is_fixed_all_the_same() -> None:
    plan, server = planned(), Server(planned(), length=5, run=RUN)
    messages = [enrolling(plan, f"c{i}") for i in range(5)]
    for message in messages:
        server.enrol(message)
    with pytest.raises(ProtocolError, match="all 5 clients have enrolled, and intruder is none of them"):
        server.enrol(enrolling(plan, "intruder"))
    assert server.enrol(messages[0]) == "c0"  # a repeated message is no intruder
    server.roster()
    assert server.names == ("c0", "c1", "c2", "c3", "c4")


def test_a_flood_of_enrolments_is_refused_before_their_signatures_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, server = planned(), Server(planned(), length=5, run=RUN)
    client = Client.new(plan, length=5, run=RUN, name="c0")
    many = [Identity.generate().enrol(KeyPair.generate(), run=RUN, name=f"x{i}") for i in range(6)]
    roster = Roster.of(many, run=RUN, plan=client._state.agreement).to_bytes()
    verified: list[object] = []
    monkeypatch.setattr("lightdp.keys.identity._fault", lambda *fields: verified.append(fields))
    with pytest.raises(WireError, match="roster must have 5 clients, got 6"):
        client.join(Message(kind=Kind.ROSTER, run=RUN, payload=roster).to_bytes())
    both = b"".join(each.to_bytes() for each in many[:2])
    with pytest.raises(WireError, match="enrolment must have 163 bytes, got 326"):
        server.enrol(Message(kind=Kind.ENROL, run=RUN, payload=both).to_bytes())
    assert verified == []


def test_one_client_under_two_names_does_not_freeze_the_key_round() -> None:
    plan, server = planned(clients=2, stragglers=0), Server(planned(clients=2, stragglers=0), length=5, run=RUN)
    identity, pair = Identity.generate(), KeyPair.generate()

    def signed(by: Identity, keys: KeyPair, name: str) -> bytes:
        return Message(kind=Kind.ENROL, run=RUN, payload=by.enrol(keys, run=RUN, name=name).to_bytes()).to_bytes()

    server.enrol(signed(identity, pair, "ann"))
    with pytest.raises(ProtocolError, match="bob enrolled with the identity of ann"):
        server.enrol(signed(identity, KeyPair.generate(), "bob"))
    with pytest.raises(ProtocolError, match="bob enrolled with the key of ann"):
        server.enrol(signed(Identity.generate(), pair, "bob"))
    server.enrol(enrolling(plan, "bob"))
    server.roster()


def test_a_one_time_key_that_equals_the_identity_of_another_does_not_shut_it_out() -> None:
    """Identities are public long before they enrol, and half of them are good X25519 keys."""
    plan, server = planned(clients=2, stragglers=0), Server(planned(clients=2, stragglers=0), length=5, run=RUN)
    taken = KeyPair.generate()
    for _ in range(64):
        owner = Identity.generate()
        taken.public = owner.public
        try:
            enrolment = Identity.generate().enrol(taken, run=RUN, name="mallory")
            break
        except WireError:  # not canonical
            continue
    server.enrol(Message(kind=Kind.ENROL, run=RUN, payload=enrolment.to_bytes()).to_bytes())
    assert server.enrol(enrolling(plan, "ann", owner)) == "ann"
    server.roster()


def test_with_pins_a_name_belongs_to_its_owner() -> None:
    plan = planned()
    owners = {f"c{i}": Identity.generate() for i in range(5)}
    pins = Pins({name: identity.public for name, identity in owners.items()})
    server = Server(plan, length=5, run=RUN, pins=pins)
    with pytest.raises(WireError, match="c0 has an identity other than the pinned one"):
        server.enrol(enrolling(plan, "c0"))
    with pytest.raises(WireError, match="intruder is not pinned"):
        server.enrol(enrolling(plan, "intruder"))
    with pytest.raises(WireError, match="c2 has an identity other than the pinned one"):
        server.enrol(enrolling(plan, "c2", owners["c1"]))
    assert [server.enrol(enrolling(plan, name, identity)) for name, identity in owners.items()] == list(owners)
    server.roster()


def test_without_pins_the_first_to_use_a_name_has_it() -> None:
    """What the threat model says: without pins a server knows nobody."""
    plan, server = planned(), Server(planned(), length=5, run=RUN)
    server.enrol(enrolling(plan, "c0"))
    with pytest.raises(ProtocolError, match="c0 enrolled before with other keys"):
        server.enrol(enrolling(plan, "c0"))


def test_pins_that_cannot_fill_a_roster_are_refused() -> None:
    pins = Pins({f"c{i}": Identity.generate().public for i in range(4)})
    with pytest.raises(ArgumentError, match="pins must name the plan's 5 clients, got 4"):
        Server(planned(), length=5, run=RUN, pins=pins)


# ---- uploads ----


def read(server: Server, message: bytes) -> Message:
    return Message.from_bytes(message, run=RUN, roster=server._fixed().hash)


def test_an_upload_in_the_name_of_another_does_not_shut_the_owner_out() -> None:
    server, clients = joined(planned(), 5)
    start = server.announce()
    real = clients[0].begin(start).upload(np.zeros(5))
    with pytest.raises(WireError, match="client-00 did not sign this"):
        server.receive(replace(read(server, clients[1].begin(start).upload(np.zeros(5))), client=0).to_bytes())
    assert server.receive(real)


@pytest.mark.parametrize("byte", [16, 32, 95, 96, -1])
def test_a_changed_upload_is_refused_and_changes_nothing(byte: int) -> None:
    """Bytes of tag, signature and vector, padding at last; the checksum is right, since anyone can compute it."""
    server, clients = joined(planned(), 5)
    start = server.announce()
    messages = [client.begin(start).upload(np.zeros(5)) for client in clients]
    content = read(server, messages[0])
    payload = bytearray(content.payload)
    payload[byte] ^= 1
    with pytest.raises(WireError, match="client-00 did not sign this" if byte > 0 else "padding that is not zero"):
        server.receive(replace(content, payload=payload).to_bytes())
    for message in messages:
        assert server.receive(message)
    assert len(server.close().used) == 5


def test_an_upload_is_taken_in_its_own_round_alone() -> None:
    server, clients = joined(planned(), 5)
    first = server.announce()
    messages = [client.begin(first).upload(np.zeros(5)) for client in clients]
    for message in messages[:4]:
        server.receive(message)
    server.close()
    with pytest.raises(WireError, match="client-04 did not sign this"):  # a late one that is said to be of another
        server.receive(replace(read(server, messages[3]), client=4).to_bytes())
    assert not server.late(0)
    server.announce()
    with pytest.raises(WireError, match="client-04 did not sign this"):
        server.receive(replace(read(server, messages[4]), round=1).to_bytes())
    assert server.receive(messages[4]) is False
    assert list(server.late(0)) == [4]


def test_an_upload_that_follows_another_history_is_refused() -> None:
    """Its masks would not cancel."""
    server, clients = joined(planned(), 5)
    play(server, clients, [0, 1, 2, 3, 4])
    server.announce()
    other = ClientSet.of(5, [0, 1, 2, 4])
    payload = Announcement(round=1, clients=5, past=(other,)).to_bytes()
    start = Message(kind=Kind.ANNOUNCE, run=RUN, round=1, roster=server._fixed().hash, payload=payload).to_bytes()
    with pytest.raises(WireError, match="client-04 did not sign this"):
        server.receive(clients[4].begin(start).upload(np.zeros(5)))


def test_a_restored_client_signs_with_the_key_that_it_enrolled(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    play(server, clients, [0, 1, 2, 3])
    again = Client.restore(planned(), length=5, store=File(tmp_path / "client-00.json"))
    assert server.receive(again.begin(server.announce()).upload(np.zeros(5)))


def test_a_signature_is_64_bytes_of_an_upload() -> None:
    server, clients = joined(planned(), 5)
    message = clients[0].begin(server.announce()).upload(np.zeros(5))
    upload = Upload.from_bytes(read(server, message).payload, length=5, bits=server._grid.bits)
    assert len(upload.signature) == 64
    assert len(message) == 80 + 16 + 16 + 64 + len(upload.packed)


# ---- histories ----


def announced(server: Server, rounds: int, used: ClientSet | None = None) -> bytes:
    past = (ClientSet.none(server.plan.clients) if used is None else used,) * rounds
    payload = Announcement(round=rounds, clients=server.plan.clients, past=past).to_bytes()
    roster = server._fixed().hash
    return Message(kind=Kind.ANNOUNCE, run=RUN, round=rounds, roster=roster, payload=payload).to_bytes()


def test_a_longer_history_than_the_plan_allows_is_refused_before_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, clients = joined(planned(rounds=1), 5)
    assert max_rounds(server.plan) == 110
    clients[0].begin(announced(server, 109))

    def looked(*_: object, **__: object) -> None:
        raise AssertionError("the history was looked at")

    monkeypatch.setattr(Announcement, "from_bytes", looked)
    monkeypatch.setattr(ClientHistory, "copied", looked)
    for rounds in (110, 300_000):
        with pytest.raises(ProtocolError, match=f"a plan of 1 rounds has at most 110, got round {rounds}"):
            clients[0].begin(announced(server, rounds))


def test_a_server_stops_itself_where_clients_would_and_can_still_close(tmp_path: Path) -> None:
    server, clients = joined(planned(rounds=1), 5, folder=tmp_path)
    play(server, clients, [0, 1, 2])
    for _ in range(108):  # void ones
        server.announce()
        server.close()
    with pytest.raises(ProtocolError, match="a plan of 1 rounds has at most 110, with void and closing ones"):
        server.announce()
    assert server.round == 109
    closing = server.announce(since=0, closing=True)
    assert all(server.receive(client.begin(closing).upload(None)) for client in clients[:3])
    server.close()
    path = tmp_path / "client-00.json"
    assert Client.restore(server.plan, length=5, store=File(path)).next_round == 110
    state = ClientState.from_bytes(path.read_bytes())
    path.write_bytes(replace(state, rounds=(*state.rounds, *state.rounds[-1:] * 2)).to_bytes())
    with pytest.raises(ArgumentError, match="store must hold a client's state, got ProtocolError"):
        Client.restore(server.plan, length=5, store=File(path))


@pytest.mark.parametrize("used", [[], [0, 2, 3]])
def test_a_history_is_read_in_time_linear_in_its_length(used: list[int]) -> None:
    """Counted in calls of functions, which do not depend on the machine; each costs no more than a set's length."""
    server, clients = joined(planned(rounds=400), 5)

    def calls(rounds: int) -> int:
        message, count = announced(server, rounds, ClientSet.of(5, used)), 0

        def profile(*_: Any) -> None:
            nonlocal count
            count += 1

        sys.setprofile(profile)
        try:
            clients[1].begin(message)
        finally:
            sys.setprofile(None)
        return count

    calls(10)
    few, many = calls(1000), calls(4000)
    assert many < 4.1 * few
    assert many < 4000 * 250

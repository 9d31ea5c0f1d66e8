"""A client's state on disk: private, written in time, and enough to go on from."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import sampling, stream
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.keys import Identity, KeyPair, Roster, identity, link
from lightdp.planning import Plan
from lightdp.protocol import Client, ClientState, File, Server
from lightdp.protocol.state import sealed
from lightdp.protocol.vector import agreement
from lightdp.wire import Message
from support.parties import RUN, Tape, joined, planned, play, residual, seat

if TYPE_CHECKING:
    from pathlib import Path


def test_a_restored_client_goes_on_as_if_nothing_had_happened(tmp_path: Path, tapes: list[Tape]) -> None:
    plan = planned()
    server, clients = joined(plan, 30, folder=tmp_path)
    play(server, clients, [0, 1, 2])
    start = server.announce(since=0)
    clients[0].begin(start).upload(np.zeros(30))
    clients[0] = Client.restore(plan, length=30, store=File(tmp_path / "client-00.json"))
    with pytest.raises(ProtocolError, match="round 1 was answered"):
        clients[0].begin(start).upload(np.ones(30))
    for i in (1, 2, 3, 4):
        server.receive(clients[i].begin(start).upload(np.zeros(30)))
    server.close()
    tapes.clear()
    play(
        server,
        [Client.restore(plan, length=30, store=File(tmp_path / f"client-0{i}.json")) for i in range(5)],
        range(5),
        since=0,
    )
    left = [residual(clients, t, used, 30) for t, used in ((0, [0, 1, 2]), (1, [1, 2, 3, 4]))]
    # clients 1 and 2 repaired round 0 in round 1; client 0's part, lost with its upload, comes now with round 1's
    noise = np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32)
    history = clients[0]._history
    assert history is not None
    mine = np.zeros(30, np.int32)
    stream.accumulate(mine, seat(clients[0]).pairwise(history, 0, (3, 4), undo=True))
    assert np.array_equal(noise, mine - left[1])


def test_state_is_private_and_written_before_the_upload_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    assert path.stat().st_mode & 0o777 == 0o600

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(File, "append", full)
    start = server.announce()
    begun, before = clients[0].begin(start), clients[0]._state
    with pytest.raises(OSError, match="no space left"):
        begun.upload(np.zeros(5))
    assert clients[0]._state is before
    monkeypatch.undo()
    assert server.receive(begun.upload(np.zeros(5)))  # nothing left before, so the round is still open
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        Client.restore(planned(), length=5, store=File(path)).begin(start)


def test_a_state_of_another_plan_or_no_state_is_refused(tmp_path: Path) -> None:
    joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    with pytest.raises(ArgumentError, match="must be those of the state"):
        Client.restore(planned(epsilon=9.0), length=5, store=File(path))
    facts = json.loads(path.read_text())
    head = f"{5:02x}000000{0:08x}01"
    used, short = (f"{head}{'ab' * 32}{5:02x}000000{0:08x}{flags}" for flags in ("1f", ""))
    rounds = used, short, head, head[:-2] + "00", "00", "no hex", [used]
    for broken in ({"pair": "no hex"}, {"sent": 5}, *({"rounds": each} for each in rounds)):
        path.write_text(json.dumps(sealed(facts | broken)))
        with pytest.raises(ArgumentError, match="store must hold a client's state"):
            Client.restore(planned(), length=5, store=File(path))
    for version in (1, 2, 5):
        path.write_text(json.dumps(facts | {"version": version}))
        with pytest.raises(ArgumentError, match=f"store must hold a client's state of version 4, got {version}"):
            Client.restore(planned(), length=5, store=File(path))
    path.write_text("not json")
    with pytest.raises(ArgumentError, match="store must hold a client's state"):
        Client.restore(planned(), length=5, store=File(path))
    path.write_text("[" * 200_000)
    with pytest.raises(ArgumentError, match="store must hold a client's state, got RecursionError"):
        Client.restore(planned(), length=5, store=File(path))
    path.unlink()
    (tmp_path / "client-00.json.serial").unlink()
    with pytest.raises(ArgumentError, match="path must hold a client's state"):
        Client.restore(planned(), length=5, store=File(path))


def test_a_client_restored_before_it_had_a_roster_joins_with_the_key_it_enrolled(tmp_path: Path) -> None:
    plan = planned(clients=2, stragglers=0)
    server = Server(plan, length=5, run=RUN)
    server.enrol(Client.new(plan, length=5, run=RUN, name="a", store=File(tmp_path / "a.json")).enrol())
    server.enrol(Client.new(plan, length=5, run=RUN, name="b").enrol())
    again = Client.restore(plan, length=5, store=File(tmp_path / "a.json"))
    server.enrol(again.enrol())  # the same enrolment
    again.join(server.roster())
    assert server.receive(again.begin(server.announce()).upload(np.zeros(5)))


def test_what_a_client_has_spent_survives_a_restart(tmp_path: Path) -> None:
    plan = planned()
    server, clients = joined(plan, 5, folder=tmp_path)
    store = File(tmp_path / "client-00.json")
    clients[0].begin(server.announce()).upload(np.zeros(5))
    assert Client.restore(plan, length=5, store=store).epsilon() == clients[0].epsilon() > 0
    server.close()
    clients[0].begin(server.announce(since=0, closing=True)).upload(None)
    assert Client.restore(plan, length=5, store=store).epsilon() == clients[0].epsilon() > 0


def test_restoring_reads_only_and_makes_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    play(server, clients, [0, 1, 2])
    path = tmp_path / "client-00.json"
    before, state = path.read_bytes(), clients[0]._state
    assert before.count(b"\n") == 2  # what it joined with, and round 0

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a key, a signature or a state was made")

    for owner, names in ((KeyPair, ["generate"]), (Identity, ["generate", "enrol"]), (File, ["save", "append"])):
        for name in names:
            monkeypatch.setattr(owner, name, refuse)
    again = Client.restore(planned(), length=5, store=File(path))
    monkeypatch.undo()
    assert again.enrol() == clients[0].enrol()
    assert path.read_bytes() == before
    assert again._state.to_bytes() == state.to_bytes()
    assert (again.next_round, again.epsilon()) == (1, clients[0].epsilon())


def test_the_stored_format_is_that_of_version_4(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    play(server, clients, [0, 1, 2])
    clients[0].begin(server.announce(closing=True)).upload(None)
    facts, *entries = map(json.loads, (tmp_path / "client-00.json").read_bytes().splitlines())
    first = ["serial", "run", "first", "version", "machine", "boot", "agreement", "plan", "length", "weighted"]
    assert list(facts) == [*first, "pair", "enrolment", "roster", "rounds", "sent", "closing", "check"]
    assert {name: facts[name] for name in ("version", "serial", "run", "rounds", "sent", "closing")} == {
        "version": 4, "serial": 2, "run": RUN.hex(), "rounds": "", "sent": [], "closing": [],
    }  # fmt: skip
    chain = link(server._chains[0], round=0, announcement=b"\x07")
    # 5 places, its own, one set; the chain; 3 clients
    told = f"{5:02x}000000{0:08x}01{chain.hex()}{3:02x}000000{0:08x}07"
    place: dict[str, Any] = {"run": RUN.hex(), "first": 1}
    expected: list[dict[str, Any]] = [
        {"serial": 3, **place, "round": 0, "closing": False, "told": ""},
        {"serial": 4, **place, "round": 1, "closing": True, "told": told},
    ]
    assert entries == [each | {"check": zlib.crc32(str([*each.items()]).encode())} for each in expected]


def test_a_flipped_bit_in_a_state_that_was_written_as_a_whole_is_found(tmp_path: Path) -> None:
    """One that forgets a round which was answered would answer it again."""
    server, clients = joined(planned(), 5, folder=tmp_path)
    for _ in range(3):
        play(server, clients, [0, 1, 2])
    whole = clients[0]._state.to_bytes()
    assert b'"sent": [0, 1, 2]' in whole
    assert ClientState.from_bytes(whole).sent == {0, 1, 2}
    for at in range(0, 8 * len(whole), 97):
        broken = bytearray(whole)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(ArgumentError, match="store must hold"):
            ClientState.from_bytes(bytes(broken))
    with pytest.raises(ArgumentError, match="store must hold a whole state, and this one is damaged"):
        ClientState.from_bytes(whole.replace(b'"sent": [0, 1, 2]', b'"sent": [0, 1, 0]'))


@pytest.mark.parametrize("grace", [0, 1])
def test_a_state_of_version_3_is_read(tmp_path: Path, grace: int) -> None:
    """It kept whole sets: whom rounds used and, under grace, who was on time in them."""
    plan = planned(grace=grace)
    server, clients = joined(plan, 5, folder=tmp_path)
    for present in ([0, 1, 2], [1, 2, 3], [0, 2, 3, 4]):
        start = server.announce(since=0)
        for i in present:
            server.receive(clients[i].begin(start).upload(np.zeros(5)))
        server.close()
    state = clients[0]._state
    facts = state.facts() | {"version": 3, "plan": json.loads(state.plan)}
    del facts["rounds"]
    facts |= {name: [each.to_bytes().hex() for each in getattr(state, name)] for name in ("used", "on_time")}
    assert len(facts["used"]) == len(state.rounds) - grace > 0
    (tmp_path / "old.json").touch(mode=0o600)
    (tmp_path / "old.json").write_text(json.dumps(facts))
    again = Client.restore(plan, length=5, store=File(tmp_path / "old.json"))
    assert again._state.rounds == state.rounds
    assert (again.mu(), again.mu(worst=True)) == (clients[0].mu(), clients[0].mu(worst=True))
    again.begin(server.announce(since=0)).upload(np.zeros(5))  # a line after a file that had no end of line
    assert Client.restore(plan, length=5, store=File(tmp_path / "old.json")).next_round == 4


def test_a_state_whose_roster_made_other_noise_is_counted_and_begins_no_round(tmp_path: Path) -> None:
    """Not even if a server lies about the version of messages, or the state is written anew in between."""
    plan = planned()
    server, clients = joined(plan, 5, folder=tmp_path)
    play(server, clients, [0, 1, 2])
    path = tmp_path / "client-00.json"
    state, spent = clients[0]._state, clients[0].epsilon()
    assert state.roster is not None
    data = bytearray(state.roster.to_bytes())
    data[7] = 4
    old = Roster.from_bytes(bytes(data), run=RUN, plan=state.agreement, verified=True)
    for again in (replace(state, roster=old), ClientState.from_bytes(replace(state, roster=old).to_bytes())):
        path.write_bytes(again.to_bytes())
        client = Client.restore(plan, length=5, store=File(path))
        assert client.epsilon() == spent
        start = Message.from_bytes(server.announce(since=1), run=RUN, roster=server.roster_hash)
        for each in (start, replace(start, roster=old.hash)):
            with pytest.raises(ProtocolError, match="roster is of an earlier version, with other noise"):
                client.begin(each.to_bytes())
        with pytest.raises(ProtocolError, match="roster is of an earlier version, with other noise"):
            client.join(server.roster(client.name))


@pytest.mark.parametrize(
    "changed",
    [{"calibration": "repair"}, {"calibration": "exact"}, {"straggler_law": "binomial:0.1"}, {"unit": "record"}],
    ids=str,
)
def test_a_state_tells_the_plan_and_shape_that_it_was_made_with(tmp_path: Path, changed: dict[str, Any]) -> None:
    plan, store = planned(**changed), File(tmp_path / "a.json")
    weighted = plan.unit == "client"
    Client.new(plan, length=7, run=RUN, name="a", weighted=weighted, store=store).enrol()
    state = ClientState.from_bytes(store.load())
    found = Plan.from_json(state.plan)
    assert found.digest() == plan.digest()
    assert (state.length, state.weighted, state.used) == (7, weighted, ())
    assert state.agreement == agreement(found, state.length, weighted=state.weighted)
    with pytest.raises(ArgumentError, match="plan, length and weighted must be those of the state"):
        Client.restore(plan, store=store, length=8, weighted=weighted)
    if weighted:
        with pytest.raises(ArgumentError, match="plan, length and weighted must be those of the state"):
            Client.restore(plan, store=store, length=7)


def test_a_client_with_sampled_batches_composes_nothing_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(unit="record", sampling_rate=0.1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("privacy losses were composed")

    monkeypatch.setattr(sampling, "epsilon", refuse)
    server, clients = joined(plan, 5, folder=tmp_path)
    again = Client.restore(plan, length=5, store=File(tmp_path / "client-00.json"))
    assert again.next_round == 0
    with pytest.raises(AssertionError, match="composed"):
        clients[0].begin(server.announce())


def test_a_damaged_state_is_refused_without_a_word_of_what_it_holds(tmp_path: Path) -> None:
    plan, path = planned(), tmp_path / "ann.state"
    client = Client.new(plan, length=4, run=RUN, name="ann", store=File(path))
    client.enrol()
    secret, whole = client._state.pair.to_bytes().hex(), path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with pytest.raises(ArgumentError) as refused:
            Client.restore(plan, length=4, store=File(path))
        assert secret not in str(refused.value)


def test_a_restored_client_verifies_its_own_enrolment_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(planned(), 5, folder=tmp_path)
    seen: list[str] = []
    monkeypatch.setattr(identity, "_fault", lambda _run, name, *_: seen.append(name))
    Client.restore(planned(), length=5, store=File(tmp_path / "client-00.json"))
    assert seen == ["client-00"]


@pytest.mark.parametrize("at", range(5))
def test_a_stored_roster_that_was_altered_answers_nothing(tmp_path: Path, at: int) -> None:
    server, _ = joined(planned(), 5, folder=tmp_path)
    path, start = tmp_path / "client-00.json", server.announce()
    facts = json.loads(path.read_text())
    enrolled = ClientState.from_bytes(path.read_bytes()).roster
    assert enrolled is not None
    roster = facts["roster"]
    for field in ("public", "signer", "identity", "signature"):
        key = getattr(enrolled.enrolments[at], field).hex()
        changed = f"{int(key[:2], 16) ^ 1:02x}{key[2:]}"
        path.write_text(json.dumps(sealed(facts | {"roster": roster.replace(key, changed)})))
        if at == 0:  # its own, which the state has twice
            with pytest.raises(ArgumentError, match="store must hold a client's state, got WireError"):
                Client.restore(planned(), length=5, store=File(path))
        else:
            with pytest.raises(WireError, match="message is of roster"):
                Client.restore(planned(), length=5, store=File(path)).begin(start)
    path.write_text(json.dumps(facts))
    assert server.receive(Client.restore(planned(), length=5, store=File(path)).begin(start).upload(np.zeros(5)))


def test_secrets_with_peers_are_made_when_noise_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    play(server, clients, [0, 1, 2, 3])
    made: list[bytes] = []
    agree = KeyPair.agree

    def noted(pair: KeyPair, public: bytes) -> bytes:
        made.append(public)
        return agree(pair, public)

    monkeypatch.setattr(KeyPair, "agree", noted)
    again = Client.restore(planned(), length=5, store=File(tmp_path / "client-00.json"))
    again.epsilon()
    begun = again.begin(server.announce(since=0))
    assert made == []
    begun.upload(np.zeros(5))  # with a repair of what it shares with client 4
    assert len(made) == len(set(made)) == 4

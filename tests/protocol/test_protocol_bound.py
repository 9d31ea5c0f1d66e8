"""Rounds that are bound to a model (W4): who shares noise in them, what is refused, what repairs and states keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightdp
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Federation, Member
from lightdp.protocol import Client, File
from lightdp.protocol.state import ClientState, Entry, sealed
from support.parties import RUN, Tape, joined, planned, play

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lightdp.protocol import Server

LENGTH = 60
ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32


def model(number: int) -> bytes:
    return bytes([number + 10]) * 32


def played(server: Server, clients: list[Client], present: Sequence[int], models: Mapping[int, bytes | None]) -> None:
    """A round in which clients are bound to what is listed, the others to the model of the round."""
    start = server.announce(since=0)
    for i in present:
        begun, to = clients[i].begin(start), models.get(i, model(server.round))
        assert server.receive((begun if to is None else begun.bind(to)).upload(np.zeros(LENGTH)))
    server.close()


def closes(server: Server, clients: list[Client]) -> None:
    for _ in range(server.plan.closing_rounds):
        start = server.announce(since=0, closing=True)
        for client in clients:
            assert not client.begin(start).binds
            server.receive(client.begin(start).upload(None))
        server.close()


def left(tapes: list[Tape]) -> NDArray[np.int32]:
    """Pairwise noise in the sum of all uploads, in fine steps."""
    return np.add.reduce([tape.fine[0] - tape.data[0] for tape in tapes], axis=0, dtype=np.int32)


def keys(tape: Tape) -> set[bytes]:
    return {term.key for term in tape.terms[0]}


@pytest.mark.parametrize("stored", [False, True])
def test_a_round_with_drawn_masks_is_refused_unbound_before_anything_is_spent(tmp_path: Path, stored: bool) -> None:
    server, clients = joined(planned(masks="drawn"), LENGTH, folder=tmp_path if stored else None)
    client, kept = clients[0], tmp_path / "client-00.json"
    before = kept.read_bytes() if stored else b""
    begun = client.begin(server.announce())
    assert begun.binds
    for answer in (begun.claim, lambda: begun.upload(np.zeros(LENGTH))):
        with pytest.raises(ProtocolError, match=r"round 0 must be bound, .* call bind\(hash\)"):
            answer()
    assert (client.answered, client.epsilon(), client.squares()) == (frozenset(), 0.0, {})
    assert (kept.read_bytes() if stored else b"") == before
    begun.bind(ONE).claim()
    assert server.receive(begun.upload(np.zeros(LENGTH)))
    assert client.epsilon() > 0


@pytest.mark.parametrize("masks", ["gaussian", "drawn"])
def test_a_round_is_bound_once(masks: str) -> None:
    server, clients = joined(planned(masks=masks), LENGTH)
    begun = clients[0].begin(server.announce())
    assert begun.bind(ONE).bind(ONE) is begun
    for claimed in (False, True):
        with pytest.raises(ProtocolError, match="round 0 is bound to another model"):
            begun.bind(OTHER)
        if not claimed:
            begun.claim()
    assert begun.bind(ONE).given == ONE
    assert server.receive(begun.upload(np.zeros(LENGTH)))


def test_a_round_that_was_claimed_or_answered_unbound_stays_so(tapes: list[Tape]) -> None:
    """Otherwise its noise would have other keys than its repair."""
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    begun = [client.begin(server.announce()) for client in clients[:3]]
    begun[0].claim()
    begun[1].upload(np.zeros(LENGTH))
    for each in begun[:2]:
        with pytest.raises(ProtocolError, match="round 0 was answered, or claimed, before it was bound"):
            each.bind(ONE)
    begun[0].upload(np.zeros(LENGTH))
    assert len(keys(tapes[0]) & keys(tapes[1])) == 1


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33), "a" * 32, None])
def test_what_is_no_hash_binds_nothing(wrong: Any) -> None:
    server, clients = joined(planned(masks="drawn"), LENGTH)
    begun = clients[0].begin(server.announce())
    with pytest.raises(ArgumentError, match="given must be"):
        begun.bind(wrong)
    assert begun.given is None


@pytest.mark.parametrize(("masks", "other"), [("gaussian", OTHER), ("gaussian", None), ("drawn", OTHER)])
def test_clients_bound_to_different_models_share_no_noise_in_that_round(
    tapes: list[Tape], masks: str, other: bytes | None
) -> None:
    """Two share the noise of their pair if they are bound alike, and in the next round all do again.

    Most are bound to one model: the two others count as stragglers, and what was shared with them is repaired.
    """
    server, clients = joined(planned(masks=masks), LENGTH)
    models = {0: ONE, 1: ONE, 2: ONE, 3: other, 4: other}
    played(server, clients, range(5), models)
    split = tapes[:]
    played(server, clients, range(5), {})
    for i in range(5):
        assert len(keys(split[i])) == 4  # each has its whole noise
        repaired = keys(split[i]) & keys(tapes[5 + i])
        assert len(repaired) == (2 if i < 3 else 0)  # what it shared with the two that are left out
        assert not any(keys(split[i]) & keys(tape) for tape in tapes[5:] if tape is not tapes[5 + i])
        for j in range(i):
            assert len(keys(split[i]) & keys(split[j])) == (models[i] == models[j])
            assert len(keys(tapes[5 + i]) & keys(tapes[5 + j])) == 1
    for group in ([0, 1, 2], [3, 4]):
        alone = [term for i in group for term in split[i].terms[0]]
        inside = {key for i in group for j in group if i < j for key in keys(split[i]) & keys(split[j])}
        assert len(alone) - 2 * len(inside) == 6  # what is left of a group is noise of all pairs between both
    assert left(split).any()
    assert left(tapes[5:]).any()
    assert not left(split[:3] + tapes[5:]).any()  # of all uploads in a sum


@pytest.mark.parametrize("masks", ["gaussian", "drawn"])
def test_each_repairs_the_noise_that_it_made_whatever_the_others_were_bound_to(tapes: list[Tape], masks: str) -> None:
    """Client 4 straggles in round 0; client 3 was bound to another model in it, and its upload is left out."""
    server, clients = joined(planned(masks=masks), LENGTH)
    played(server, clients, [0, 1, 2, 3], {3: OTHER})
    made = tapes[:]
    played(server, clients, range(5), {})
    for i in range(4):
        undone = keys(tapes[4 + i]) & keys(made[i])
        assert len(undone) == (2 if i < 3 else 0)  # its pairs with both; a straggler repairs nothing
        assert all(undone.isdisjoint(keys(tape)) for j, tape in enumerate(made) if j != i)
    closes(server, clients)
    assert not left(made[:3] + tapes[4:]).any()


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("masks", ["gaussian", "drawn"])
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("away", [0, 3])
def test_repairs_are_bound_as_their_rounds_were(  # noqa: PLR0917  one place for each way to come back
    tmp_path: Path, tapes: list[Tape], grace: int, masks: str, restored: bool, away: int
) -> None:
    """Every round has a model of its own; client 0 comes back after rounds away, or from its file."""
    plan = planned(masks=masks, grace=grace)
    server, clients = joined(plan, LENGTH, folder=tmp_path)

    def back() -> list[Client]:
        if not restored:
            return clients
        return [Client.restore(plan, length=LENGTH, store=File(tmp_path / f"client-{i:02}.json")) for i in range(5)]

    played(server, clients, [0, 1, 2], {})
    assert left(tapes).any()
    for _ in range(away):
        clients = back()
        played(server, clients, [1, 2, 3, 4], {})
    clients = back()
    played(server, clients, [0, 1, 3, 4], {})
    clients = back()
    played(server, clients, range(5), {})
    clients = back()
    closes(server, clients)
    assert not left(tapes).any()


def test_late_uploads_of_a_bound_round_join_and_are_repaired_with_its_model(tapes: list[Tape]) -> None:
    """Under grace, client 4 comes one round late, client 3 never."""
    server, clients = joined(planned(masks="drawn", grace=1), LENGTH)
    start = server.announce(since=0)
    uploads = [clients[i].begin(start).bind(model(0)).upload(np.zeros(LENGTH)) for i in (0, 1, 2, 4)]
    for upload in uploads[:3]:
        assert server.receive(upload)
    server.close()
    start = server.announce(since=0)
    assert server.receive(uploads[3])
    for client in clients:
        assert server.receive(client.begin(start).bind(model(1)).upload(np.zeros(LENGTH)))
    assert list(server.close().joined) == [4]
    closes(server, clients)
    assert not left(tapes).any()


def test_a_closing_round_needs_no_model_and_repairs_the_last_round_with_its_own(tapes: list[Tape]) -> None:
    server, clients = joined(planned(masks="drawn"), LENGTH)
    played(server, clients, [0, 1, 2], {})
    before = [keys(tape) for tape in tapes]
    closes(server, clients)
    for i in range(3):
        assert len(keys(tapes[3 + i])) == 2
        assert keys(tapes[3 + i]) <= before[i]
    assert not left(tapes).any()


# members


@pytest.fixture
def table() -> tuple[Federation, Any, dict[str, Member]]:
    plan = planned(masks="drawn")
    federation = Federation(plan, length=LENGTH, run=RUN)
    members = {name: Member.new(plan, length=LENGTH, run=RUN, name=name) for name in "abcde"}
    for member in members.values():
        federation.enrol(member.enrol())
    [number] = federation.form()
    found = federation.rosters[number]
    for name in found.names:
        members[name].join(found.server.roster(name))
    return federation, found, members


def test_rounds_of_members_are_refused_unbound_and_bound_once(table: Any) -> None:
    _, found, members = table
    begun = members["a"].begin(found.server.announce())
    assert begun.binds
    for answer in (begun.claim, lambda: begun.upload(np.zeros(LENGTH))):
        with pytest.raises(ProtocolError, match="must be bound"):
            answer()
    assert (members["a"].answered(), members["a"].epsilon()) == ({found.number: frozenset()}, 0.0)
    assert begun.bind(ONE) is begun
    begun.claim()
    with pytest.raises(ProtocolError, match="bound to another model"):
        begun.bind(OTHER)
    assert found.server.receive(begun.upload(np.zeros(LENGTH)))


def test_members_repair_with_the_model_of_the_round_also_from_their_files(tmp_path: Path, tapes: list[Tape]) -> None:
    plan = planned(masks="drawn")
    federation = Federation(plan, length=LENGTH, run=RUN)
    stores = {name: File(tmp_path / name) for name in "abcde"}
    members = {name: Member.new(plan, length=LENGTH, run=RUN, name=name, store=store) for name, store in stores.items()}
    for member in members.values():
        federation.enrol(member.enrol())
    [number] = federation.form()
    server = federation.rosters[number].server
    for turn in range(3):
        start = server.announce(since=0, closing=turn == 2)
        for i, name in enumerate(federation.rosters[number].names):
            if turn == 0 and i > 2:
                continue
            members[name].join(server.roster(name))
            begun = members[name].begin(start)
            assert begun.binds is (turn < 2)
            federation.receive((begun.bind(model(turn)) if turn < 2 else begun).upload(np.zeros(LENGTH)))
        federation.close(number, closing=turn == 2)
        members = {name: Member.restore(plan, length=LENGTH, store=File(tmp_path / name)) for name in stores}
    assert not left(tapes).any()
    whole = members[federation.rosters[number].names[0]]._state
    assert dict(whole.rosters[number].given) == {0: model(0), 1: model(1)}
    assert type(whole).from_bytes(whole.to_bytes()).rosters[number].given == whole.rosters[number].given


# states


def states(folder: Path, *bound: bytes | None) -> tuple[ClientState, bytes]:
    """Client 0's state after rounds that it was bound in, and how it lies in its file."""
    server, clients = joined(planned(masks="gaussian"), LENGTH, folder=folder)
    for to in bound:
        played(server, clients, range(5), dict.fromkeys(range(5), to))
    return clients[0]._state, (folder / "client-00.json").read_bytes()


def test_a_state_keeps_what_rounds_were_bound_to(tmp_path: Path) -> None:
    state, kept = states(tmp_path, ONE, None, OTHER)
    assert state.given == {0: ONE, 2: OTHER}
    read = ClientState.from_bytes(kept)
    assert read.given == state.given
    again = ClientState.from_bytes(read.to_bytes())  # now in the base line
    assert (again.given, again.sent, again.to_bytes()) == (state.given, state.sent, read.to_bytes())
    assert b"\n" not in read.to_bytes()
    more = again.after(Entry(7, closing=False, given=ONE))
    assert more.given == {0: ONE, 2: OTHER, 7: ONE}
    lines = again.to_bytes() + b"\n" + again.line(Entry(7, closing=False, given=ONE))
    assert ClientState.from_bytes(lines).given == more.given


def test_states_of_rounds_that_are_not_bound_are_as_before(tmp_path: Path) -> None:
    state, kept = states(tmp_path, None, None)
    assert b"given" not in kept + state.to_bytes()
    base, *entries = map(json.loads, kept.splitlines())
    assert {*base} == {
        "serial", "run", "first", "version", "machine", "boot", "agreement", "plan", "length", "weighted", "pair",
        "enrolment", "roster", "rounds", "sent", "closing", "check",
    }  # fmt: skip
    assert [{*each} for each in entries] == [{"serial", "run", "first", "round", "closing", "told", "check"}] * 2


@pytest.mark.parametrize("line", [0, 1])
def test_a_state_whose_models_are_damaged_is_refused(tmp_path: Path, line: int) -> None:
    """By its checksum, and if that fits, by what it says."""
    state, kept = states(tmp_path, ONE, OTHER)
    lines = [state.to_bytes()] if line == 0 else kept.splitlines()
    facts = json.loads(lines[line])
    assert facts["given"] == ({"0": ONE.hex(), "1": OTHER.hex()} if line == 0 else ONE.hex())
    wrong: list[Any] = ["", ONE.hex()[2:], ONE.hex() + "00", "zz" * 32, 7, None, []]
    if line == 0:
        wrong += [{"0": each} for each in wrong[:6]] + [{"": ONE.hex()}, {"a": ONE.hex()}]
    for each in wrong:
        damaged = facts | {"given": each}
        for written in (damaged, sealed(damaged)):
            lines[line] = json.dumps(written).encode()
            with pytest.raises(ArgumentError, match=r"damaged|whole|store must hold|given must be"):
                ClientState.from_bytes(b"\n".join(lines))
    without = {name: fact for name, fact in facts.items() if name != "given"}
    for changed in (without, facts | {"given": {"0": OTHER.hex()} if line == 0 else OTHER.hex()}):
        lines[line] = json.dumps(changed).encode()
        with pytest.raises(ArgumentError, match=r"damaged|whole"):
            ClientState.from_bytes(b"\n".join(lines))


@given(number=st.integers(0, 2**40), closing=st.booleans(), to=st.none() | st.binary(min_size=32, max_size=32))
def test_entries_read_as_they_were_written(number: int, closing: bool, to: bytes | None) -> None:
    entry = Entry(number, closing, given=to)
    facts = json.loads(json.dumps(sealed(entry.facts())))
    assert Entry.of(facts) == entry
    assert ("given" in facts) == (to is not None)


@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_an_entry_with_a_model_never_reads_as_another(at: float, flip: int) -> None:
    entry = Entry(3, closing=False, given=ONE)
    data = bytearray(json.dumps(sealed(entry.facts())).encode())
    data[int(at * len(data))] ^= flip
    try:
        found = Entry.of(json.loads(bytes(data)))
    except (ArgumentError, AttributeError, KeyError, TypeError, ValueError):
        return
    assert found == entry  # such as hexadecimal in capitals, or a space


def test_plans_with_many_clients_and_rounds_have_drawn_masks_and_bind() -> None:
    asked: dict[str, Any] = {"clients": 50, "colluders": 10, "stragglers": 10, "epsilon": 3, "delta": 1e-5}
    plan = lightdp.plan(**asked, rounds=150, unit="client", calibration="repair")
    assert (plan.masks.kind, plan.withstands_lies) == ("drawn", True)
    server, clients = joined(plan, 4)
    with pytest.raises(ProtocolError, match="must be bound"):
        clients[0].begin(server.announce()).upload(np.zeros(4))
    assert play(server, clients, range(45)).total is not None

"""Messages, histories, rosters and updates that are refused, and change nothing."""

from __future__ import annotations

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError, LightDPError, ProtocolError, WireError
from lightdp.keys import Identity, Pins
from lightdp.protocol import Client, Server
from lightdp.wire import Announcement, Kind, Message
from support.parties import RUN, Tape, joined, planned, play

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# ---- announcements ----


def test_a_round_that_is_begun_answers_nothing_and_one_that_was_answered_is_refused(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    first, state = server.announce(), (tmp_path / "client-00.json").read_bytes()
    begun = [clients[0].begin(first) for _ in range(2)]
    assert [(each.number, each.closing) for each in begun] == [(0, False)] * 2
    assert (tmp_path / "client-00.json").read_bytes() == state
    assert clients[0].next_round == 0
    assert server.receive(begun[1].upload(np.zeros(5)))
    sent = (tmp_path / "client-00.json").read_bytes()
    attempts: list[Any] = [partial(clients[0].begin, first), *(partial(each.upload, np.zeros(5)) for each in begun)]
    for attempt in attempts:
        with pytest.raises(ProtocolError, match="round 0 was answered"):
            attempt()
    assert (tmp_path / "client-00.json").read_bytes() == sent


def test_a_round_that_was_begun_before_an_earlier_one_was_answered_must_be_begun_again() -> None:
    """Or its history would say that the earlier round was never sent, and cost nothing."""
    server, clients = joined(planned(), 5)
    first = server.announce()
    begun = clients[0].begin(first)
    for i in (1, 2, 3):
        server.receive(clients[i].begin(first).upload(np.zeros(5)))
    server.close()
    second = server.announce()
    later = clients[0].begin(second)
    begun.upload(np.zeros(5))
    spent = clients[0].epsilon()
    with pytest.raises(ProtocolError, match="round 1 was begun before another round was answered; begin it again"):
        later.upload(np.zeros(5))
    assert clients[0].epsilon() == spent
    assert clients[0].next_round == 1
    assert server.receive(clients[0].begin(second).upload(np.zeros(5)))


def test_a_refused_update_leaves_the_round_open() -> None:
    server, clients = joined(planned(), 5)
    begun = clients[0].begin(server.announce())
    with pytest.raises(ArgumentError, match="update must be a numpy vector of 5 floats"):
        begun.upload(np.zeros(4))
    assert server.receive(begun.upload(np.zeros(5)))


def test_a_round_learns_what_its_announcement_tells(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 5)
    play(server, clients, [0, 1, 2, 3])
    clients[0].begin(server.announce()).upload(np.zeros(5))
    assert len(tapes[-1].terms[-1]) == 5  # four peers, and the repair of the one that was absent
    assert clients[0].next_round == 2


def test_a_round_is_answered_once_in_order_and_with_its_past() -> None:
    server, clients = joined(planned(), 5)
    first = server.announce()
    clients[0].begin(first).upload(np.zeros(5))
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        clients[0].begin(first).upload(np.ones(5))
    for client in clients[1:4]:
        server.receive(client.begin(first).upload(np.zeros(5)))
    server.close()
    play(server, clients, [1, 2, 3])
    with pytest.raises(ProtocolError, match=r"leaves out round 0, .* the server must announce to it with since=0"):
        clients[4].begin(server.announce()).upload(np.zeros(5))
    assert clients[4].begin(server.announce(since=0)).upload(np.zeros(5))


def forged(server: Server, used: Sequence[Sequence[int]], at: int) -> bytes:
    """An announcement of round `at` by a server that tells another history."""
    past = tuple(ClientSet.of(server.plan.clients, group) for group in used)
    payload = Announcement(round=at, clients=server.plan.clients, past=past).to_bytes()
    return Message(kind=Kind.ANNOUNCE, run=RUN, round=at, roster=server._fixed().hash, payload=payload).to_bytes()


def test_false_stories_are_refused_and_change_nothing() -> None:
    server, clients = joined(planned(), 5)
    play(server, clients, [0, 1, 2])
    before = clients[0].epsilon()
    with pytest.raises(ProtocolError, match="used must name at least 3 clients"):
        clients[0].begin(forged(server, [[0, 1]], 1)).upload(np.zeros(5))
    with pytest.raises(ProtocolError, match="client 3 was used in round 0, which it did not send"):
        clients[3].begin(forged(server, [[0, 1, 3]], 1)).upload(np.zeros(5))
    with pytest.raises(ProtocolError, match="expected round 0, got round 2"):
        clients[0].begin(forged(server, [], 2)).upload(np.zeros(5))
    assert clients[0].epsilon() == before
    clients[0].begin(server.announce()).upload(np.zeros(5))
    before = clients[0].epsilon()
    server.receive(clients[1].begin(server.announce()).upload(np.zeros(5)))
    with pytest.raises(ProtocolError, match="announcement of round 0 contradicts an earlier one"):
        clients[0].begin(forged(server, [[0, 1, 4], [0, 1, 2]], 2)).upload(np.zeros(5))
    assert clients[0].epsilon() == before


def test_clients_that_were_told_different_stories_do_not_cancel(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 50)
    play(server, clients, [0, 1, 2, 3, 4])
    tapes.clear()
    honest = server.announce()
    for client in clients[:4]:
        client.begin(honest).upload(np.zeros(50))
    clients[4].begin(forged(server, [[0, 2, 3, 4]], 1)).upload(np.zeros(50))
    noise = np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32)
    assert np.abs(noise).mean() > tapes[0].grid.sigma_pairwise


# ---- rosters and names ----


def test_a_changed_roster_a_foreign_plan_and_wrong_pins_are_refused() -> None:
    plan = planned(clients=2, stragglers=0)
    server, clients = joined(plan, 5)
    clients[0].join(server.roster())  # the same again is no change
    other, _ = joined(plan, 5)
    with pytest.raises(WireError, match="does not contain the enrolment"):
        Client.new(plan, length=5, run=RUN, name="client-00").join(other.roster())
    stranger = Client.new(planned(clients=2, stragglers=0, epsilon=9.0), length=5, run=RUN, name="client-00")
    with pytest.raises(WireError, match="another run or plan"):
        stranger.join(server.roster())
    identity = Identity.generate()
    pins = Pins.parse(f"client-01 {identity.public.hex()}")
    careful = Client.new(plan, length=5, run=RUN, name="client-00", pins=pins)
    third = Server(plan, length=5, run=RUN)
    third.enrol(careful.enrol())
    third.enrol(Client.new(plan, length=5, run=RUN, name="client-01").enrol())
    with pytest.raises(WireError, match="client-01 has an identity other than the pinned one"):
        careful.join(third.roster())
    fourth = Server(plan, length=5, run=RUN)
    fourth.enrol(careful.enrol())
    fourth.enrol(Client.new(plan, length=5, run=RUN, name="client-01", identity=identity).enrol())
    careful.join(fourth.roster())
    again = Server(plan, length=5, run=RUN)
    again.enrol(careful.enrol())
    again.enrol(Client.new(plan, length=5, run=RUN, name="client-01", identity=identity).enrol())
    with pytest.raises(ProtocolError, match="the roster must not change in a run"):
        careful.join(again.roster())


def test_whoever_is_not_pinned_counts_as_a_colluder() -> None:
    plan = planned(clients=4, stragglers=0, colluders=1)
    identities = [Identity.generate() for _ in range(4)]

    def roster(pinned: int) -> tuple[Client, bytes]:
        pins = Pins.parse("\n".join(f"c{i} {identities[i].public.hex()}" for i in range(1, 1 + pinned)))
        careful = Client.new(plan, length=5, run=RUN, name="c0", identity=identities[0], pins=pins)
        server = Server(plan, length=5, run=RUN)
        server.enrol(careful.enrol())
        for i in range(1, 4):
            server.enrol(Client.new(plan, length=5, run=RUN, name=f"c{i}", identity=identities[i]).enrol())
        return careful, server.roster()

    careful, message = roster(pinned=2)
    careful.join(message)
    careful, message = roster(pinned=1)
    with pytest.raises(WireError, match=r"at most 1 clients that are not pinned, got \['c2', 'c3'\]"):
        careful.join(message)


def test_an_upload_in_the_name_of_another_is_refused() -> None:
    server, clients = joined(planned(), 5)
    message = clients[1].begin(server.announce()).upload(np.zeros(5))
    with pytest.raises(ProtocolError, match="client-00 sent an upload of client-01"):
        server.receive(message, sender="client-00")
    assert server.receive(message, sender="client-01")


@pytest.mark.parametrize("grace", [0, 1])
def test_an_upload_of_another_round_than_the_one_that_it_answers_is_refused(grace: int) -> None:
    server, clients = joined(planned(grace=grace), 5)
    announced = server.announce()
    *others, late = [client.begin(announced).upload(np.zeros(5)) for client in clients]
    for message in others:
        assert server.receive(message, round=0)
    server.close()
    server.announce()
    with pytest.raises(ProtocolError, match="the upload must be of round 1, got one of round 0"):
        server.receive(late, round=1)
    assert not server.late(0)
    assert server.receive(late, round=0) == bool(grace)  # the refused one has changed nothing


# ---- updates, and the order of calls ----


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (np.zeros(4), r"update must be a numpy vector of 5 floats, got shape \(4,\)"),
        (np.array([0, 0, math.nan, 0, 0]), "must be finite"),
        (np.array([0, 0, math.inf, 0, 0]), "must be finite"),
        ([0.0] * 5, "update must be a numpy vector of 5 floats, got list"),
    ],
)
def test_a_bad_update_is_refused_and_the_round_stays_open(update: Any, message: str) -> None:
    server, clients = joined(planned(), 5)
    start = server.announce()
    with pytest.raises(ArgumentError, match=message):
        clients[0].begin(start).upload(update)
    assert server.receive(clients[0].begin(start).upload(np.zeros(5)))


def test_messages_out_of_place_are_refused() -> None:
    plan = planned(clients=2, stragglers=0)
    client, server = Client.new(plan, length=5, run=RUN, name="a"), Server(plan, length=5, run=RUN)
    for call, message in (
        (lambda: client.begin(b"").upload(np.zeros(5)), "no roster yet"),
        (server.announce, "the roster is not fixed yet"),
        (server.roster, "2 clients must enrol, 0 have"),
        (lambda: client.join(client.enrol()), "expected ROSTER, got ENROL"),
    ):
        with pytest.raises(ProtocolError, match=message):
            call()
    server.enrol(client.enrol())
    with pytest.raises(ProtocolError, match="a enrolled before with other keys"):
        server.enrol(Client.new(plan, length=5, run=RUN, name="a").enrol())
    with pytest.raises(ArgumentError, match="weighted needs unit='client'"):
        Client.new(planned(unit="record"), length=5, run=RUN, name="a", weighted=True)


def test_every_refusal_is_one_of_ours() -> None:
    kinds = (ArgumentError, BudgetError, ProtocolError, WireError)
    assert all(issubclass(kind, LightDPError) for kind in kinds)
    assert not any(issubclass(a, b) for a, b in itertools.permutations(kinds, 2))


def test_two_threads_get_one_upload_of_a_round() -> None:
    length = 200_000
    server, clients = joined(planned(), length)
    start, together = server.announce(), threading.Barrier(2)

    def ask(value: float) -> bytes | None:
        together.wait()
        try:
            return clients[0].begin(start).upload(np.full(length, value))
        except ProtocolError:
            return None

    with ThreadPoolExecutor(2) as pool:
        assert sorted(each is None for each in pool.map(ask, (0.0, 1e-4))) == [False, True]


@pytest.mark.parametrize("run", ["a run of 16 chars", b"short"])
def test_a_server_refuses_a_run_that_is_not_16_bytes(run: Any) -> None:
    with pytest.raises(ArgumentError, match="run must be"):
        Server(planned(), length=5, run=run)

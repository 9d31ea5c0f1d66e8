"""Rosters on random graphs: each client gets its neighbours alone, and refuses all that shows others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

import lightdp
from lightdp import masks
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.keys import Identity, Pins, Roster
from lightdp.planning import Plan
from lightdp.protocol import Client, ClientState, Server
from lightdp.protocol.seat import Seat
from lightdp.random_graph import RandomGraph
from lightdp.wire import Kind, Message

RUN, LENGTH, CLIENTS = os.urandom(16), 4, 40


@cache
def planned(graph: str = "random:10", clients: int = CLIENTS, **more: Any) -> Plan:
    asked: dict[str, Any] = {
        "colluders": 4,
        "stragglers": 2,
        "rounds": 5,
        "epsilon": 8.0,
        "delta": 1e-5,
        "unit": "client",
    }
    return lightdp.plan(clients=clients, graph=graph, calibration="repair", **asked | more)


class Table:
    """A server whose clients have enrolled."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.identities = plan, {f"client-{i:02}": Identity.generate() for i in range(plan.clients)}
        self.clients = {
            name: Client.new(plan, length=LENGTH, run=RUN, name=name, identity=identity)
            for name, identity in self.identities.items()
        }
        for number in range(20):  # a draw is bad once in a thousand times
            self.server = Server(plan, length=LENGTH, run=RUN, number=number)
            for client in self.clients.values():
                self.server.enrol(client.enrol())
            with suppress(ArgumentError):
                self.whole = self.read(self.server.roster())
                break
        self.graph = plan.graph.placed(self.whole.hash)

    def state(self, name: str) -> ClientState:
        return self.clients[name]._state

    def read(self, message: bytes) -> Roster:
        content = Message.from_bytes(message, run=RUN)
        assert content.kind == Kind.ROSTER
        return Roster.from_bytes(bytes(content.payload), run=RUN, plan=self.state("client-00").agreement)

    def seat(self, name: str, roster: Roster, pins: Pins | None = None) -> Seat:
        return Seat(self.plan, self.state(name), roster, pins, masks.Grid.of(self.plan, LENGTH))

    def pins(self, without: Iterable[int] = ()) -> Pins:
        left_out = {self.whole.names[i] for i in without}
        return Pins({name: each.public for name, each in self.identities.items() if name not in left_out})


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(planned())


def test_every_client_gets_itself_and_its_neighbours_under_one_hash(table: Table) -> None:
    for me, name in enumerate(table.whole.names):
        found = table.read(table.server.roster(name))
        neighbours = table.graph.neighbours_of(me).tolist()
        assert list(found.enrolments) == sorted([me, *neighbours])
        assert found.hash == table.server.roster_hash == table.whole.hash
        assert len(found) == CLIENTS
        assert table.seat(name, found)._neighbours == neighbours


def test_neighbours_derive_the_same_keys_from_their_excerpts(table: Table) -> None:
    seats = [table.seat(name, table.read(table.server.roster(name))) for name in table.whole.names]
    for me, seat in enumerate(seats):
        for peer, key in seat._keyring.stream_keys(seat._neighbours, round=3, chain=bytes(32)).items():
            assert seats[peer]._keyring.stream_keys([me], round=3, chain=bytes(32)) == {me: key}


def test_a_roster_that_shows_more_fewer_or_other_clients_is_refused(table: Table) -> None:
    me = 7
    name, neighbours = table.whole.names[me], table.graph.neighbours_of(me).tolist()
    strangers = sorted(set(range(CLIENTS)) - {me, *neighbours})
    table.seat(name, table.whole.excerpt([me, *neighbours]))
    for shown in ([me], [me, *neighbours[1:]], [me, *neighbours, strangers[0]], [me, strangers[0], *neighbours[1:]]):
        with pytest.raises(WireError, match=f"roster must show client 7 and its {len(neighbours)} neighbours"):
            table.seat(name, table.whole.excerpt(shown))
    with pytest.raises(WireError, match="roster must show client 7"):
        table.seat(name, table.whole)
    with pytest.raises(WireError, match="does not contain the enrolment of client-07"):
        table.seat(name, table.whole.excerpt(neighbours))


def test_a_join_takes_no_whole_roster(table: Table) -> None:
    with pytest.raises(WireError, match="roster must show client 3"):
        table.clients["client-03"].join(table.server.roster())


def test_neighbours_that_are_not_pinned_count_as_colluders_and_others_do_not(table: Table) -> None:
    me = max(range(CLIENTS), key=lambda client: len(table.graph.neighbours_of(client)))  # some have few by chance
    most = planned().request.near_colluders
    name, neighbours = table.whole.names[me], table.graph.neighbours_of(me).tolist()
    strangers = set(range(CLIENTS)) - {me, *neighbours}
    excerpt = table.whole.excerpt([me, *neighbours])
    assert 0 < most < len(neighbours)
    table.seat(name, excerpt, table.pins(without=[me, *neighbours[:most], *strangers]))
    with pytest.raises(WireError, match=f"at most {most} clients that are not pinned"):
        table.seat(name, excerpt, table.pins(without=neighbours[: most + 1]))
    other = dict(table.pins().identities) | {table.whole.names[neighbours[0]]: bytes(32)}
    with pytest.raises(WireError, match="identity other than the pinned one"):
        table.seat(name, excerpt, Pins(other))


def test_a_roster_that_was_kept_does_not_place_everybody_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placing takes time that grows with the number of clients, and a client is restored with each message."""
    me = 7
    name, neighbours = table.whole.names[me], table.graph.neighbours_of(me).tolist()
    data = table.whole.excerpt([me, *neighbours]).to_bytes()
    kept = Roster.from_bytes(data, run=RUN, plan=table.whole.plan, verified=True)
    monkeypatch.setattr(RandomGraph, "neighbours_of", None)
    assert table.seat(name, kept)._neighbours == neighbours
    verified = Roster.from_bytes(data, run=RUN, plan=table.whole.plan)
    with pytest.raises(TypeError):
        table.seat(name, verified)


def test_a_roster_that_places_a_client_badly_is_not_fixed_nor_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(planned())
    message = table.server.roster("client-00")
    monkeypatch.setattr(RandomGraph, "least_degree", CLIENTS)
    plan = planned(rounds=6)
    with pytest.raises(WireError, match=f"the roster must give every client at least {CLIENTS} neighbours"):
        Client(plan, table.state("client-00"), length=LENGTH, pins=None, weighted=False, store=None, threads=1).join(
            message
        )
    server = Server(plan, length=LENGTH, run=RUN)
    for client in table.clients.values():
        server.enrol(client.enrol())
    with pytest.raises(ArgumentError, match="another number gives it another hash"):
        server.roster()
    with pytest.raises(ProtocolError, match="not fixed"):
        server.announce()


def test_clients_that_know_their_neighbours_alone_play_a_round() -> None:
    table = Table(planned(gamma=400.0))
    for name, client in table.clients.items():
        client.join(table.server.roster(name))
    start = table.server.announce()
    for name, client in table.clients.items():
        assert table.server.receive(client.begin(start).upload(np.full(LENGTH, 0.1 if name < "client-20" else -0.2)))
    result, scale = table.server.close(), table.plan.sigma_individual * CLIENTS**0.5
    assert result.total is not None
    assert np.abs(result.total + 2.0).max() < 6 * scale
    edges = sum(table.graph.neighbours_of(i).size for i in range(CLIENTS))
    assert table.plan.sigma_pairwise * edges**0.5 > 30 * scale  # what it would be if pairwise noise did not cancel
    assert 0 < table.clients["client-00"].epsilon() <= table.plan.budget


def test_other_graphs_need_the_whole_roster() -> None:
    for graph in ("complete", "circulant:4"):
        table = Table(planned(graph, clients=10))
        name = table.whole.names[0]
        assert table.server.roster(name) == table.server.roster()
        with pytest.raises(WireError, match="roster must show all 10 clients, got 9"):
            table.seat(name, table.whole.excerpt(range(9)))
        message = Message(kind=Kind.ROSTER, run=RUN, payload=table.whole.excerpt(range(9)).to_bytes())
        with pytest.raises(WireError, match="roster must show all 10 clients"):
            table.clients[name].join(message.to_bytes())
        table.clients[name].join(table.server.roster(name))


def test_there_is_no_roster_for_somebody_else(table: Table) -> None:
    with pytest.raises(ProtocolError, match="there is no client mallory"):
        table.server.roster("mallory")

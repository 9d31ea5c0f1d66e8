"""Two hundred clients on a random graph: stragglers, late ones, a void round; sums and ledgers are exact (S1)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lightdp import stream
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol import Client, Server
from lightdp.protocol.server import Aggregate
from lightdp.wire import Announcement, Kind, Message
from support.parties import RUN, Tape, planned, seat
from support.parties import joined as parties_joined

CLIENTS, LENGTH = 200, 40
CAME, NEXT, LATE, AWAY = range(4)  # in time, one round late, two rounds late, not at all
MISSING = {NEXT: range(10), LATE: range(10, 15), AWAY: range(15, 18)}


@dataclass
class Federation:
    """A server and its clients, by place, with all that went into their sums."""

    server: Server
    clients: list[Client]
    tapes: list[Tape]
    fates: list[NDArray[np.int64]] = field(default_factory=list)
    made: dict[tuple[int, int], Tape] = field(default_factory=dict)  # by round and client
    results: list[Aggregate] = field(default_factory=list)
    late: dict[int, list[bytes]] = field(default_factory=dict)  # uploads, by the round in which they arrive

    def play(self, fates: NDArray[np.int64], *, closing: bool = False) -> Aggregate:
        """A round, in which late uploads of earlier ones arrive."""
        number = self.server.round
        start = self.server.announce(since=0, closing=closing)
        for message in self.late.pop(number, []):
            self.server.receive(message)
        for i, fate in enumerate(fates.tolist()):
            if fate == AWAY:
                continue
            message = self.clients[i].begin(start).upload(None if closing else np.full(LENGTH, 0.01 * (i % 7)))
            self.made[number, i] = self.tapes[-1]
            if fate == CAME:
                assert self.server.receive(message)
            else:
                self.late.setdefault(number + (1 if fate == NEXT else 2), []).append(message)
        self.fates.append(fates)
        self.results.append(self.server.close())
        return self.results[-1]

    def pairwise(self, number: int, used: ClientSet) -> NDArray[np.int32]:
        """The pairwise noise of some uploads of a round, repairs included, in fine steps."""
        made = [self.made[number, i] for i in used]
        parts = [np.zeros(LENGTH, np.int32), *(tape.fine[0] - tape.data[0] for tape in made)]
        return np.asarray(np.sum(parts, axis=0, dtype=np.int32))

    def left(self, number: int, used: ClientSet, whose: ClientSet) -> NDArray[np.int32]:
        """What stragglers of a round left in the uploads of some clients that were used."""
        out = np.zeros(LENGTH, np.int32)
        for i in whose:
            peers = tuple(j for j in self.server.plan.graph.neighbours_of(i).tolist() if j not in used)
            history = self.clients[i]._history
            assert history is not None
            closing, given = number in history.closing, history.given.get(number)
            stream.accumulate(out, seat(self.clients[i]).pairwise(history, number, peers, closing=closing, given=given))
        return out


def fates(seed: int, void: int = 0) -> NDArray[np.int64]:
    """As many of each kind as `MISSING` says; or everybody, but `void` clients that send nothing."""
    order, result = np.random.default_rng(seed).permutation(CLIENTS), np.full(CLIENTS, CAME)
    for fate, places in MISSING.items() if void == 0 else ((AWAY, range(void)),):
        result[order[list(places)]] = fate
    return result


SHAPE: dict[str, Any] = {"clients": CLIENTS, "colluders": 20, "stragglers": 20, "rounds": 60, "graph": "random:40"}


def joined(tapes: list[Tape], **changed: Any) -> Federation:
    plan = planned(**SHAPE | changed)
    clients = [Client.new(plan, length=LENGTH, run=RUN, name=f"client-{i:03}") for i in range(CLIENTS)]
    for number in range(20):  # a draw is bad once in a thousand times
        server = Server(plan, length=LENGTH, run=RUN, number=number)
        for client in clients:
            server.enrol(client.enrol())
        with suppress(ArgumentError):
            server.roster()
            break
    for client in clients:
        client.join(server.roster(client.name))
    return Federation(server, clients, tapes)


def whole_run(tapes: list[Tape], **changed: Any) -> Federation:
    """Stragglers, stragglers, a void round, stragglers; everybody closes the run."""
    found = joined(tapes, **changed)
    for each in (fates(1), fates(2), fates(3, void=60), fates(4)):
        found.play(each)
    for _ in range(found.server.plan.closing_rounds):
        found.play(np.full(CLIENTS, CAME), closing=True)
    return found


def summed(found: Federation, result: Aggregate) -> NDArray[np.float64]:
    """The sum of a round as integers of its uploads say, rounded here."""
    total = np.zeros(LENGTH, np.int64)
    for number, some in ((result.round, result.used), (result.round - 1, result.joined)):
        for i in some:
            tape = found.made[number, i]
            total += np.rint(np.ldexp(tape.fine[0].astype(float), -tape.grid.shift)).astype(np.int64)
    grid = found.tapes[0].grid
    half = 2 ** (grid.bits - 1)
    return ((total + half) % (2 * half) - half) * grid.wire_step


@pytest.mark.parametrize("late", [None, "unseen"])
def test_sums_and_ledgers_of_a_run_on_a_random_graph_are_exact(tapes: list[Tape], late: str | None) -> None:
    found = whole_run(tapes, late=late)
    check_sets(found)
    check_sums(found)
    used = [result.used for result in found.results]
    debts = dict.fromkeys(range(CLIENTS), -1)  # the round that each client owes, at most one
    for number, some in enumerate(used):
        expected = found.left(number, some, some) if number < 4 else np.zeros(LENGTH, np.int32)
        for i in some:
            if debts[i] >= 0:
                expected -= found.left(debts[i], used[debts[i]], ClientSet.of(CLIENTS, [i]))
            debts[i] = number
        assert np.array_equal(found.pairwise(number, some), expected), number
    assert list(found.server.late(0)) == np.flatnonzero(np.isin(found.fates[0], [NEXT, LATE])).tolist()
    check_ledgers(found)


def test_sums_and_ledgers_of_a_run_on_a_random_graph_are_exact_with_grace(tapes: list[Tape]) -> None:
    found = whole_run(tapes, grace=1)
    check_sets(found)
    check_sums(found)
    check_ledgers(found)


def check_sets(found: Federation) -> None:
    """Who was used is who came in time, or one round late under grace; round 2 was void."""
    for number, each in enumerate(found.fates):
        in_time = np.isin(each, [CAME, NEXT] if found.server.plan.grace else [CAME])
        assert list(found.server._used[number]) == ([] if number == 2 else np.flatnonzero(in_time).tolist())
    assert found.results[2].total is None or found.server.plan.grace  # under grace it has those of the round before
    assert not found.results[2].used


def check_sums(found: Federation) -> None:
    """Every sum is that of its uploads, bit by bit, and all of them together hold no pairwise noise."""
    assert found.server._turn is None
    for result in found.results:
        if result.total is not None:
            assert np.array_equal(result.total, summed(found, result))
    used = list(enumerate(found.server._used))
    assert found.pairwise(*used[0]).any()
    assert found.pairwise(*used[-1]).any()
    assert not np.sum([found.pairwise(*each) for each in used], axis=0, dtype=np.int32).any()


def check_ledgers(found: Federation, data: int = 4) -> None:
    """What each client has counted of itself is what an odometer of all clients has, or its own if it was away."""
    plan, used = found.server.plan, found.server._used[:data]
    everyone = Odometer(plan)
    for each in used:
        everyone.record(each)
    squares, mu = everyone.squares(), everyone.mu()
    for i, client in enumerate(found.clients):
        away = [each[i] == AWAY for each in found.fates]
        if not any(away):
            assert (client.squares(worst=False), client.mu()) == (squares[i], mu[i])
        lone, me = Odometer(plan, [i]), ClientSet.of(CLIENTS, [i])
        for number, each in enumerate(used):
            seen = plan.late_is_seen or not each
            lone.record(each, (~each - me if away[number] else ~each) if seen else None)
        assert (client.squares(worst=False), client.epsilon()) == (lone.squares()[0], lone.epsilon()[0])
        assert 0 < client.epsilon() <= plan.budget
    assert len({*np.round(mu, 12).tolist()}) > 10  # clients with other neighbours have other costs


HIDING: dict[str, Any] = {"colluders": 0, "graph": "random:90", "gamma": 100.0}


def test_a_run_that_hides_late_uploads_closes_with_and_then_without_pairwise_noise(tapes: list[Tape]) -> None:
    found = joined(tapes, **HIDING)
    assert found.server.plan.hides_late
    for each in (fates(1), fates(2), fates(4)):
        found.play(each)
    assert not found.play(fates(5, void=60), closing=True).used  # a closing round that is void is repeated
    assert (found.server.closing, found.server.closed) == (True, False)
    some, few = np.full((2, CLIENTS), CAME)
    some[list(found.results[2].used)[:9]] = LATE
    few[list(found.results[2].used)[:60]] = AWAY
    for each, used in ((some, True), (few, False), (np.full(CLIENTS, CAME), True)):  # stragglers leave noise, too
        assert (found.server.closing, found.server.closed) == (True, False)
        assert bool(found.play(each, closing=True).used) == used
    assert found.server.closed
    masked, bare = ({len(found.made[number, i].terms[0]) for i in found.results[number].used} for number in (4, 6))
    assert min(masked) > 80 > max(bare)  # neighbours' noise, and repairs of a few of them
    check_sums(found)
    check_ledgers(found, 3)


@pytest.mark.parametrize("again", [False, True])
def test_a_server_that_resumes_after_a_void_closing_round_goes_on_closing(tapes: list[Tape], again: bool) -> None:
    found = joined(tapes, **HIDING)
    for each in (fates(1), fates(2)):
        found.play(each)
    assert not found.play(fates(5, void=60), closing=True).used
    if again:
        found.server.announce(closing=True)  # and was lost with the server
    past = json.loads(json.dumps(found.server.past()))
    found.server = Server(planned(**SHAPE | HIDING), length=LENGTH, run=RUN, number=found.server.number)
    for client in found.clients:
        found.server.enrol(client.enrol())
    found.server.roster()
    found.server.resume(past)
    assert (found.server.closing, found.server.closed) == (True, False)
    with pytest.raises(ProtocolError, match="another closing round must follow"):
        found.server.announce()
    some = np.full(CLIENTS, CAME)
    some[list(found.results[1].used)[:9]] = LATE
    for each in (some, np.full(CLIENTS, CAME)):  # stragglers leave noise, too
        assert found.play(each, closing=True).used
    assert found.server.closed
    check_sums(found)
    check_ledgers(found, 2)


def test_nobody_repairs_data_without_pairwise_noise() -> None:
    """Not even if the server asks for it, or is restored and says so."""
    found = joined([], **HIDING)
    found.tapes.append(Tape(found.server._grid))
    for each in (fates(1), fates(2)):
        found.play(each)
    server, used = found.server, found.results[-1].used
    past = tuple(result.used for result in found.results)

    def closing(*, masked: bool) -> bytes:
        told = Announcement(round=server.round, clients=CLIENTS, past=past, closing=True, masked=masked)
        payload, roster = told.to_bytes(), server.roster_hash
        return Message(kind=Kind.ANNOUNCE, run=RUN, round=server.round, roster=roster, payload=payload).to_bytes()

    for i, client in enumerate(found.clients):
        owes = any(j not in used for j in server.plan.graph.neighbours_of(i).tolist())
        if i in used and owes:
            with pytest.raises(ProtocolError, match="must have pairwise noise right after data, got round 2"):
                client.begin(closing(masked=False))
        elif i not in used:
            assert client.begin(closing(masked=False)).closing  # it hides nobody of the last round
        assert client.begin(closing(masked=True)).closing


def test_other_plans_close_without_pairwise_noise() -> None:
    plan = planned()
    server, clients = parties_joined(plan, 4)
    told = Announcement(round=0, clients=plan.clients, closing=True, masked=True).to_bytes()
    start = Message(kind=Kind.ANNOUNCE, run=RUN, round=0, roster=server.roster_hash, payload=told).to_bytes()
    with pytest.raises(ProtocolError, match="a closing round of this plan must have no pairwise noise"):
        clients[0].begin(start)


def test_a_closing_round_shares_no_noise_with_a_round_that_has_data() -> None:
    """A server that tells some clients that a round is closing and others that it has data gets no repairs of it."""
    found = joined([], **HIDING)
    i = 0
    peers = tuple(found.server.plan.graph.neighbours_of(i).tolist())
    mine, theirs = found.clients[i]._history, found.clients[peers[0]]._history
    assert mine is not None
    assert theirs is not None
    keys = [
        {term.key for term in seat(found.clients[i]).pairwise(mine, 0, peers[:1], closing=closing)}
        | {term.key for term in seat(found.clients[peers[0]]).pairwise(theirs, 0, (i,), closing=closing)}
        for closing in (False, True)
    ]
    assert [len(each) for each in keys] == [1, 1]  # both ends have one key
    assert keys[0].isdisjoint(keys[1])


def test_with_pins_as_many_strangers_are_accepted_near_a_client_as_are_usual() -> None:
    plan = planned(clients=1000, colluders=100, stragglers=100, graph="random:153", delta=1e-6)
    asked = plan.request
    assert 15 < asked.near_strangers < asked.near_colluders - 15
    assert planned(clients=50, colluders=10).request.near_strangers == 10

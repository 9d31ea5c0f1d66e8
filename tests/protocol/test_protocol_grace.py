"""Grace (R5): uploads that come one round late, sets that are final one round later, and what is refused."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.protocol import Client, ClientState, File, Server
from lightdp.wire import Announcement, Kind, Message
from support.parties import RUN, Tape, joined, planned, residual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LENGTH = 20
Told = tuple[list[int], list[int]]
"""Whom the round before used, and who was on time."""


def answered(server: Server, clients: Sequence[Client], **more: Any) -> list[bytes]:
    """Every client's upload of the open round, none of which has arrived."""
    start = server.announce(**more)
    closing = bool(more.get("closing"))
    return [client.begin(start).upload(None if closing else np.zeros(server.length)) for client in clients]


def arrive(server: Server, messages: Sequence[bytes], *clients: int) -> None:
    for i in clients:
        assert server.receive(messages[i])


def test_an_upload_of_the_round_before_joins_the_sum_and_counts_in_its_own_round() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    first = answered(server, clients)
    arrive(server, first, 0, 1, 2)
    one = server.close()
    assert (list(one.used), list(one.joined), one.final) == ([0, 1, 2], [], None)
    second = answered(server, clients)
    arrive(server, second, 0, 1, 2, 3)
    arrive(server, first, 4)
    two = server.close()
    assert (list(two.used), list(two.joined), list(two.final or ())) == ([0, 1, 2, 3], [4], [0, 1, 2, 4])
    assert server.receive(first[3]) is False  # later still
    assert list(server.late(0)) == [3]
    with pytest.raises(ProtocolError, match="client 4 has answered round 0 before"):
        server.receive(first[4])


def test_an_upload_joins_also_between_two_rounds() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    first = answered(server, clients)
    arrive(server, first, 0, 1, 2)
    server.close()
    arrive(server, first, 3)  # before round 1 is announced
    server.announce()
    assert list(server.close().joined) == [3]


def test_a_round_with_too_few_on_time_is_not_lost_if_enough_come_within_grace(tapes: list[Tape]) -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    first = answered(server, clients)
    arrive(server, first, 0, 1)
    one = server.close()
    assert (one.total, list(one.used)) == (None, [])
    server.announce()
    arrive(server, first, 4)
    two = server.close()
    assert (list(two.used), list(two.joined), list(two.final or ())) == ([], [0, 1, 4], [0, 1, 4])
    assert two.total is not None
    grid = tapes[0].grid
    rounded = np.sum([np.rint(tapes[i].fine[0] / 2**grid.shift) for i in (0, 1, 4)], axis=0)
    assert np.array_equal(np.rint(two.total / grid.wire_step), rounded)
    noise = np.sum([tapes[i].fine[0] - tapes[i].data[0] for i in (0, 1, 4)], axis=0, dtype=np.int32)
    assert np.array_equal(noise, residual(clients, 0, [0, 1, 4], LENGTH))


def test_a_round_with_too_few_even_so_is_void_and_its_uploads_were_seen() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    first = answered(server, clients)
    arrive(server, first, 0)
    server.close()
    server.announce()
    arrive(server, first, 1)
    result = server.close()
    assert (result.total, list(result.final or ()), list(server.late(0))) == (None, [], [0, 1])
    assert server.receive(first[2]) is False
    assert list(server.late(0)) == [0, 1, 2]


def test_what_a_late_upload_shares_with_those_on_time_cancels_in_the_next_sum(tapes: list[Tape]) -> None:
    """Bit for bit: after its late upload has joined, a round left nothing."""
    server, clients = joined(planned(grace=1), LENGTH)
    first = answered(server, clients)
    arrive(server, first, 0, 1, 2, 3)
    server.close()
    server.announce()
    arrive(server, first, 4)
    assert list(server.close().joined) == [4]
    noise = [tape.fine[0] - tape.data[0] for tape in tapes]
    assert np.sum(noise[:4], axis=0, dtype=np.int32).any()
    assert not np.sum(noise, axis=0, dtype=np.int32).any()


def test_two_closing_rounds_end_a_run() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    arrive(server, answered(server, clients), 0, 1, 2)
    server.close()
    last = answered(server, clients, closing=True)
    arrive(server, last, 0, 1)
    assert list(server.close().used) == [0, 1]
    with pytest.raises(ProtocolError, match="the run is about to be closed: another closing round must follow"):
        server.announce()
    end = answered(server, clients, closing=True)
    arrive(server, end, 3)
    arrive(server, last, 2)
    result = server.close()
    assert (list(result.used), list(result.joined), list(result.final or ())) == ([3], [2], [0, 1, 2])
    with pytest.raises(ProtocolError, match="the run is closed"):
        server.announce(closing=True)
    assert server.receive(end[4]) is False


def announced(server: Server, number: int, *past: Told) -> bytes:
    """An announcement that tells of past rounds whom the one before used, and who was on time."""
    clients, start = server.plan.clients, Message.from_bytes(server.roster(), run=RUN)
    assert start.kind == Kind.ROSTER
    told = tuple(ClientSet.of(clients, each) for sets in past for each in sets)
    payload = Announcement(round=number, clients=clients, past=told, grace=1).to_bytes()
    assert server._roster is not None
    message = Message(kind=Kind.ANNOUNCE, run=RUN, round=number, roster=server._roster.hash, payload=payload)
    return message.to_bytes()


@pytest.mark.parametrize(
    ("on_time", "second", "words"),
    [
        ([0, 1], ([0, 1], [1]), "used must name at least 3 clients"),
        ([0, 1, 2], ([0, 1, 3], [1]), "announcement of round 0 leaves out clients that were on time before"),
        ([0, 1, 2], ([], [1]), "announcement of round 0 leaves out clients that were on time before"),
        ([0, 1], ([2, 3, 4], [1]), "announcement of round 0 leaves out clients that were on time before"),
        ([0, 1, 2], ([0, 1, 2], [0]), "client 0 was used in round 1, which it did not send"),
    ],
)
def test_announcements_that_break_the_rules_of_grace_are_refused_and_change_nothing(
    on_time: list[int], second: Told, words: str
) -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    answered(server, clients)
    before, epsilon = clients[0]._state, clients[0].epsilon()
    first: Told = ([], on_time)
    with pytest.raises(ProtocolError, match=words):
        clients[0].begin(announced(server, 2, first, second))
    with pytest.raises(ProtocolError, match="announcement says who was used before the first round"):
        clients[0].begin(announced(server, 1, ([0, 1, 2], [0, 1, 2])))
    assert clients[0]._state is before
    assert clients[0].epsilon() == epsilon
    clients[0].begin(announced(server, 2, first, ([0, 1, 2], [1]))).upload(np.zeros(LENGTH))


def test_a_client_that_did_not_send_is_in_no_set() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    answered(server, clients[1:])
    told: list[list[Told]] = [[([], [0, 1, 2])], [([], [1, 2]), ([0, 1, 2], [])]]
    for past in told:
        with pytest.raises(ProtocolError, match="client 0 was used in round 0, which it did not send"):
            clients[0].begin(announced(server, len(past), *past))


def test_a_final_set_must_not_change_once_it_was_told() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    answered(server, clients)
    told: list[Told] = [([], [0, 1, 2]), ([0, 1, 2], []), ([0, 1, 2, 3], [])]
    first, second, other = told
    clients[0].begin(announced(server, 1, first)).upload(np.zeros(LENGTH))
    clients[0].begin(announced(server, 2, first, second)).upload(np.zeros(LENGTH))
    with pytest.raises(ProtocolError, match="announcement of round 1 contradicts an earlier one"):
        clients[0].begin(announced(server, 3, first, other, ([], [0, 1])))


def test_who_was_on_time_goes_into_the_keys() -> None:
    """(W4): two clients that were told different sets share no noise from the next round on."""
    server, clients = joined(planned(grace=1), LENGTH)
    answered(server, clients)
    for i, on_time in enumerate(([0, 1, 2], [0, 1, 2], [0, 1, 2, 3])):
        clients[i].begin(announced(server, 1, ([], on_time))).upload(np.zeros(LENGTH))
    chains = [client._history.chain(1) for client in clients[:3] if client._history is not None]
    assert chains[0] == chains[1] != chains[2]


def test_a_round_whose_set_is_not_final_counts_at_its_worst() -> None:
    plan = planned(grace=1)
    server, clients = joined(plan, LENGTH)
    arrive(server, answered(server, clients), 0, 1, 2)
    server.close()
    spent = [client.epsilon() for client in clients]
    start = server.announce()
    for i, client in enumerate(clients):
        begun = client.begin(start)
        odometer = begun._history.odometer
        on_time, late = odometer.counted(), i > 2
        assert 0 < on_time.epsilon()[0] < spent[i]  # an upload of which nothing is known counts with all lies
        assert odometer.epsilon()[0] == 0
        assert late == (on_time.mu()[0] ** 2 > odometer._costs.usual * (plan.sensitivity / plan.scale) ** 2 * 1.01)


def test_a_server_holds_two_sums_at_most() -> None:
    """While rounds close, too: each of 4 bytes a value, beside what the result itself needs."""
    plan, length = planned(clients=3, colluders=0, stragglers=1, grace=1), 200_000
    server, clients = joined(plan, length)
    peaks = []
    for _ in range(3):
        messages = answered(server, clients)
        arrive(server, messages[:2], 0, 1)
        tracemalloc.start()
        before = server.close()
        assert before.total is not None
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        arrive(server, messages, 2)
        assert len(server._open) == 1
        del before, messages
    result = 8 * length  # floats
    assert max(peaks) < result + 2 * 4 * length * 1.1  # one sum read as integers, and a new one
    assert math.isclose(max(peaks[1:]), min(peaks[1:]), rel_tol=0.1)


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("broken", ["sets", "place", "places", "before", "twice"])
def test_a_state_whose_sets_do_not_fit_its_rounds_is_refused(tmp_path: Path, grace: int, broken: str) -> None:
    plan = planned(grace=grace)
    server, clients = joined(plan, 5, folder=tmp_path)
    for _ in range(2):
        arrive(server, answered(server, clients), 0, 1, 2)
        server.close()
    answered(server, clients)
    path = tmp_path / "client-00.json"
    state, three = ClientState.from_bytes(path.read_bytes()), ClientSet.of(5, [0, 1, 2])
    assert (state.used, state.on_time) == (((three,), (three, three)) if grace else ((three, three), ()))
    Client.restore(plan, length=5, store=File(path))
    first, last = state.rounds
    count, four = 1 if grace else 2, ClientSet.of(4, [0, 1, 2])
    changed = {
        "sets": [replace(each, sets=each.sets[:1] * count, wholes=each.wholes[:1] * count) for each in state.rounds],
        "place": [replace(each, place=1) for each in state.rounds],
        "places": [replace(each, sets=(four,) * (1 + grace)) for each in state.rounds],
        "before": [replace(first, sets=last.sets, wholes=last.wholes), last] if grace else [first, last, first, last],
        "twice": [first, last, last, last],
    }
    path.write_bytes(replace(state, rounds=tuple(changed[broken])).to_bytes())
    with pytest.raises(ArgumentError, match="store must hold a client's state, got ProtocolError"):
        Client.restore(plan, length=5, store=File(path))


def test_messages_and_plans_of_other_grace_do_not_mix(tmp_path: Path) -> None:
    plans = [planned(grace=grace) for grace in (0, 1)]
    assert plans[0].digest() != plans[1].digest()
    _, clients = joined(plans[0], 5, folder=tmp_path)
    with pytest.raises(ArgumentError, match="plan, length and weighted must be those of the state"):
        Client.restore(plans[1], length=5, store=File(tmp_path / "client-00.json"))
    server, others = joined(plans[1], 5)
    with pytest.raises(WireError, match="roster"):
        clients[0].join(server.roster())
    start = bytearray(server.announce())
    start[3] = 2
    with pytest.raises(WireError, match="message must be LDP version 5, got b'LDP' version 2"):
        others[0].begin(bytes(start))
    with pytest.raises(WireError, match="message must be LDP version 5, got b'LDP' version 2"):
        server.receive(bytes(start))


def test_rounds_are_left_for_both_closing_rounds() -> None:
    server, _ = joined(planned(grace=1, rounds=1), LENGTH)
    while server.round < 108:  # void ones
        server.announce()
        server.close()
    with pytest.raises(ProtocolError, match="a plan of 1 rounds has at most 110, with void and closing ones"):
        server.announce()
    for _ in range(2):
        server.announce(closing=True)
        server.close()
    assert server.round == 110


def test_a_closing_round_that_waits_for_its_set_costs_nothing() -> None:
    server, clients = joined(planned(grace=1), LENGTH)
    arrive(server, answered(server, clients), *range(5))
    server.close()
    arrive(server, answered(server, clients, closing=True), *range(5))
    server.close()
    answered(server, clients, closing=True)
    assert clients[0].epsilon() == pytest.approx(spent_once(clients[0]))


def spent_once(client: Client) -> float:
    """The ε of one used round in which everybody was used."""
    odometer = lightdp.Odometer(client.plan)
    odometer.record(used=range(client.plan.clients))
    return float(odometer.epsilon()[0])

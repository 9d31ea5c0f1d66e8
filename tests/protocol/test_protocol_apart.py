"""Uploads that are bound to different things (W4): most win, the others are in no sum and count as too late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ProtocolError, WireError
from lightdp.federation import Federation, Member
from lightdp.protocol import Client, Server
from lightdp.wire import Message, Upload, tag_of
from support.parties import RUN, joined, planned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LENGTH = 6
MOST = bytes([9]) * 32


def odd(number: int) -> bytes:
    return bytes([number]) * 32


def sent(client: Client, start: bytes, given: bytes | None, value: float = 0.0) -> bytes:
    begun = client.begin(start)
    return (begun if given is None else begun.bind(given)).upload(np.full(LENGTH, value))


def played(server: Server, clients: list[Client], order: Sequence[int], models: Mapping[int, bytes | None]) -> Any:
    """A round in which clients answer in this order; those not listed are bound to what most are."""
    start = server.announce(since=0)
    taken = [server.receive(sent(clients[i], start, models.get(i, MOST))) for i in order]
    return taken, server.close()


@pytest.mark.parametrize("order", [[4, 0, 1, 2, 3], [0, 1, 4, 2, 3], [0, 1, 2, 3, 4]])
def test_the_sum_is_of_what_most_are_bound_to_in_whatever_order_they_come(order: list[int]) -> None:
    server, clients = joined(planned(masks="gaussian", epsilon=1e6), LENGTH)
    start = server.announce()
    for i in order:
        assert server.receive(sent(clients[i], start, odd(1) if i == 4 else MOST, value=0.08 * (i + 1)))
    result: Any = server.close()
    assert (list(result.used), list(result.apart), list(server.late(0))) == ([0, 1, 2, 3], [4], [4])
    start = server.announce()
    for client in clients:
        assert server.receive(sent(client, start, MOST))
    after: Any = server.close().total  # takes out what was shared with client 4
    assert result.total + after == pytest.approx(np.full(LENGTH, 0.8), abs=6 * 3 * server.plan.sigma_individual)


@pytest.mark.parametrize(("first", "wins"), [(0, [0, 1]), (2, [2, 3])])
def test_of_equals_the_first_wins(first: int, wins: list[int]) -> None:
    server, clients = joined(planned(masks="gaussian", stragglers=3), LENGTH)
    order = [first, *(i for i in range(4) if i != first)]
    _, result = played(server, clients, order, {0: odd(1), 1: odd(1), 2: odd(2), 3: odd(2)})
    assert list(result.used) == wins
    assert result.apart == ClientSet.of(5, range(4)) - result.used


@pytest.mark.parametrize("masks", ["gaussian", "drawn"])
def test_a_round_is_void_if_too_few_are_bound_alike(masks: str) -> None:
    server, clients = joined(planned(masks=masks), LENGTH)
    taken, result = played(server, clients, range(5), {i: odd(i + 1) for i in range(5)})
    assert taken == [True, True, True, True, False]  # four sums at most
    assert (list(result.used), result.total, list(result.apart)) == ([], None, [1, 2, 3, 4])
    assert list(server.late(0)) == [0, 1, 2, 3, 4]
    assert len(server._open) == 0
    with pytest.raises(
        ProtocolError, match="round 0 was void: there is no mean, and 4 uploads were bound to something"
    ):
        result.mean()


def test_more_than_four_sums_are_never_held() -> None:
    server, clients = joined(planned(clients=9, stragglers=6), LENGTH)
    start = server.announce()
    for i in range(9):
        assert server.receive(sent(clients[i], start, odd(i + 1))) == (i < 4)
    assert len(server._open[0]._sums) == 4


def test_who_binds_to_nothing_differs_from_who_binds_to_something() -> None:
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    _, result = played(server, clients, range(5), {0: None})
    assert (list(result.used), list(result.apart)) == ([1, 2, 3, 4], [0])
    _, result = played(server, clients, range(5), dict.fromkeys(range(5)))
    assert (len(result.used), len(result.apart)) == (5, 0)


@pytest.mark.parametrize("at", [0, 4])
def test_nobody_answers_twice_with_another_tag(at: int) -> None:
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i == 4 else MOST) for i in range(5)]
    for message in messages:
        server.receive(message)
    for _ in range(2):
        with pytest.raises(ProtocolError, match=f"client {at} has answered round 0 before"):
            server.receive(messages[at])
        if server.is_open:
            assert list(server.close().apart) == [4]


def test_a_tag_is_signed() -> None:
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    message = sent(clients[0], server.announce(), odd(1))
    content = Message.from_bytes(message, run=RUN, roster=server.roster_hash)
    shape = {"length": LENGTH, "bits": server._grid.bits}
    upload = Upload.from_bytes(content.payload, **shape)
    assert upload.tag == tag_of(odd(1)) != tag_of(odd(2))
    forged = Upload(**shape, packed=upload.packed, tag=tag_of(odd(2)), signature=upload.signature)
    place: dict[str, Any] = {"kind": content.kind, "run": RUN, "round": 0, "roster": server.roster_hash, "client": 0}
    with pytest.raises(WireError, match="did not sign this"):
        server.receive(Message(**place, payload=forged.to_bytes()).to_bytes())
    assert server.receive(message)


# grace


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_what_was_chosen_stays_so_for_uploads_that_come_one_round_late(*, resumed: bool, kept: bool) -> None:
    """Clients 0 to 2 are on time, 3 comes late with the same, 4 late with something else."""
    plan = planned(masks="drawn", grace=1)
    server, clients = joined(plan, LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i == 4 else MOST) for i in range(5)]
    for message in messages[:3]:
        assert server.receive(message)
    assert list(server.close().used) == [0, 1, 2]
    if resumed:
        past = json.loads(json.dumps(server.past()))
        if not kept:
            del past["tag"], past["apart"]  # of an earlier version: then nothing more is added up
        again = Server(plan, length=LENGTH, run=RUN)
        for client in clients:
            again.enrol(client.enrol())
        again.roster()
        again.resume(past)
        server = again
    server.announce()
    takes = not resumed or kept
    assert [server.receive(message) for message in messages[3:]] == [takes, False]
    start = server.announce()
    for client in clients:
        assert server.receive(sent(client, start, MOST))
    result: Any = server.close()
    assert (list(result.joined), list(result.final)) == (([3], [0, 1, 2, 3]) if takes else ([], [0, 1, 2]))
    assert list(server.late(0)) == ([4] if takes else [3, 4])
    assert len(result.apart) == 0  # of the round that has just ended


def test_a_round_for_which_nobody_came_in_time_is_chosen_one_round_later() -> None:
    server, clients = joined(planned(masks="gaussian", grace=1), LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i == 0 else MOST) for i in range(5)]
    assert not server.close().used
    server.announce()
    assert all(server.receive(message) for message in messages)
    result = server.close()
    assert (list(result.joined), list(server.late(0))) == ([1, 2, 3, 4], [0])


def test_who_was_apart_is_so_after_a_crash() -> None:
    plan = planned(masks="gaussian", grace=1)
    server, clients = joined(plan, LENGTH)
    played(server, clients, range(5), {4: odd(1)})
    again = Server(plan, length=LENGTH, run=RUN)
    for client in clients:
        again.enrol(client.enrol())
    again.roster()
    again.resume(json.loads(json.dumps(server.past())))
    again.announce()
    again.close()
    assert list(again.late(0)) == list(server.late(0) | ClientSet.of(5, [4])) == [4]


# what it costs


@pytest.mark.parametrize("grace", [0, 1])
def test_a_client_whose_upload_is_left_out_pays_as_one_that_came_too_late(grace: int) -> None:
    plan = planned(masks="gaussian", grace=grace)
    federation = Federation(plan, length=LENGTH, run=RUN)
    members = [Member.new(plan, length=LENGTH, run=RUN, name=f"member-{i}") for i in range(5)]
    for member in members:
        federation.enrol(member.enrol())
    federation.form()
    [table] = federation.rosters.values()
    for member in members:
        member.join(table.server.roster(member.name))
    for _ in range(2):
        start = table.server.announce(since=0)
        for i, member in enumerate(members):
            given = odd(1) if i == 4 and table.server.round == 0 else MOST
            federation.receive(member.begin(start).bind(given).upload(np.zeros(LENGTH)))
        federation.close(table.number)
    counted = Odometer(plan)
    everybody, last = ClientSet.of(5, range(5)), ClientSet.of(5, [4])
    counted.record(everybody - last, last)
    if grace:
        counted.open(everybody, ClientSet.none(5))
    else:
        counted.record(everybody, ClientSet.none(5))
    assert table.rounds.odometer.epsilon() == pytest.approx(counted.epsilon(), rel=1e-12)
    assert counted.epsilon()[4] > 1.05 * counted.epsilon()[0]

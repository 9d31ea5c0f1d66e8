"""Uploads that are bound to different things (W4): most win, the others are in no sum and count as too late."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.federation import Federation, Member
from lightdp.protocol import Client, Server
from lightdp.protocol.open_round import OpenRound
from lightdp.wire import UNBOUND, Accumulator, Message, Upload, encode, tag_of
from support.parties import RUN, joined, planned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LENGTH = 6
MOST = bytes([9]) * 32


def odd(number: int) -> bytes:
    return bytes([number]) * 32


def sent(client: Client, start: bytes, given: bytes | None, value: float = 0.0) -> bytes:
    begun = client.begin(start)
    return (begun if given is None else begun.bind(given)).upload(np.full(LENGTH, value))


def opened(server: Server, message: bytes) -> tuple[Message, Upload]:
    content = Message.from_bytes(message, run=RUN, roster=server.roster_hash)
    return content, Upload.from_bytes(content.payload, length=LENGTH, bits=server._grid.bits)


def signed(server: Server, client: Client, content: Message, upload: Upload) -> bytes:
    """The message with another upload, signed by its client."""
    statement = upload.statement(content, chain=server._chains[content.round])
    signature = client._state.pair.sign(statement)
    return replace(content, payload=replace(upload, signature=signature).to_bytes()).to_bytes()


def anew(server: Server, clients: list[Client]) -> Server:
    """A server after a crash that knows the roster alone."""
    again = Server(server.plan, length=LENGTH, run=RUN)
    for client in clients:
        again.enrol(client.enrol())
    again.roster()
    return again


def played(server: Server, clients: list[Client], order: Sequence[int], models: Mapping[int, bytes | None]) -> Any:
    """A round in which clients answer in this order; those not listed are bound to what most are."""
    start = server.announce(since=0)
    taken = [server.receive(sent(clients[i], start, models.get(i, MOST))) for i in order]
    return taken, server.close()


def named(result: Any) -> dict[int, list[int]]:
    """Whose uploads were left out, by round."""
    return {number: list(clients) for number, clients in result.left_out.items()}


@pytest.mark.parametrize("order", [[4, 0, 1, 2, 3], [0, 1, 4, 2, 3], [0, 1, 2, 3, 4]])
def test_the_sum_is_of_what_most_are_bound_to_in_whatever_order_they_come(order: list[int]) -> None:
    server, clients = joined(planned(masks="gaussian", epsilon=1e6), LENGTH)
    start = server.announce()
    for i in order:
        assert server.receive(sent(clients[i], start, odd(1) if i == 4 else MOST, value=0.08 * (i + 1)))
    result: Any = server.close()
    assert (list(result.used), named(result), list(server.late(0))) == ([0, 1, 2, 3], {0: [4]}, [4])
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
    assert result.left_out == {0: ClientSet.of(5, range(4)) - result.used}


@pytest.mark.parametrize("masks", ["gaussian", "drawn"])
def test_a_round_is_void_if_too_few_are_bound_alike(masks: str) -> None:
    server, clients = joined(planned(masks=masks), LENGTH)
    taken, result = played(server, clients, range(5), {i: odd(i + 1) for i in range(5)})
    assert taken == [True, True, False, True, True]  # the third takes the only vote of both before it
    assert (list(result.used), result.total, named(result)) == ([], None, {0: [0, 1, 2, 4]})
    assert list(server.late(0)) == [0, 1, 2, 3, 4]
    assert not server.takes(0)
    with pytest.raises(
        ProtocolError, match="round 0 was void: there is no mean; uploads of 4 clients are bound to other models"
    ):
        result.mean()


@pytest.mark.parametrize("few", [1, 4, 10, 16])
def test_a_few_who_come_first_with_tags_of_their_own_do_not_shut_out_the_others(few: int) -> None:
    server, clients = joined(planned(clients=50, colluders=10, stragglers=35, rounds=2, masks="gaussian"), LENGTH)
    _, result = played(server, clients, range(50), {i: odd(i + 1) for i in range(few)})
    assert len(result.used) >= 50 - few - few // 2
    assert min(result.used) >= few
    assert result.total is not None


def test_sums_that_were_not_chosen_are_given_up_at_once() -> None:
    server, clients = joined(planned(masks="gaussian", grace=1), LENGTH)
    start = server.announce()
    for i in range(4):
        assert server.receive(sent(clients[i], start, odd(1) if i == 0 else MOST))
    taking = server._open[0]
    assert len(taking._sums) == 2
    taking.settle()
    assert list(taking._sums) == [taking.tag] == [tag_of(MOST)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_a_sum_leaves_out_half_as_many_as_came_with_other_tags_at_most(tags: list[int], order: Any) -> None:
    """And a majority wins, in any order, with two sums at most, each of which is that of its uploads."""
    common = [7] * (len(tags) + 1)
    for whole in (tags, [*tags, *common], order.sample([*tags, *common], len(tags) + len(common))):
        taking = OpenRound(len(whole), lambda: Accumulator(1, 32), lambda came: bool(came.any()))
        for client, tag in enumerate(whole):
            packed = bytes(encode(np.array([2**client % 2**31], np.int32), shift=0, bits=32))
            taking.take(client, Upload(length=1, bits=32, packed=packed, tag=bytes([tag]) * 16))
            assert len(taking._sums) <= 2
            assert taking.has(client)
        taking.settle()
        if whole is not tags:
            assert taking.tag == bytes([7]) * 16
        if taking.tag is None:
            assert len(taking.left_out) == len(whole)
            continue
        mine = {client for client, tag in enumerate(whole) if bytes([tag]) * 16 == taking.tag}
        came = set(np.flatnonzero(taking.came).tolist())
        assert came <= mine
        assert 2 * len(mine - came) <= len(whole) - len(mine)
        assert set(taking.left_out) == set(range(len(whole))) - came
        assert taking.total().total()[0] == np.int64(sum(2**client % 2**31 for client in came)).astype(np.int32)


def orders(length: int) -> Iterator[tuple[int, ...]]:
    """All sequences of so many tags, up to their names."""
    if length == 0:
        yield ()
        return
    for before in orders(length - 1):
        yield from ((*before, tag) for tag in range(len({*before}) + 1))


def test_the_same_holds_for_every_order_of_few_uploads() -> None:
    """And of the guarantee nothing can be taken back: two others are needed for each upload that is left out."""
    packed, least = bytes(encode(np.zeros(1, np.int32), shift=0, bits=32)), 2.0
    for tags in (each for length in range(1, 8) for each in orders(length)):
        taking = OpenRound(len(tags), lambda: Accumulator(1, 32), lambda came: bool(came.any()))
        for client, tag in enumerate(tags):
            taking.take(client, Upload(length=1, bits=32, packed=packed, tag=bytes([tag]) * 16))
        taking.settle()
        most = max(tags, key=tags.count)
        assert 2 * tags.count(most) <= len(tags) or taking.tag == bytes([most]) * 16
        if taking.tag is not None:
            mine = tags.count(taking.tag[0])
            left_out = mine - int(taking.came.sum())
            assert 2 * left_out <= len(tags) - mine
            least = min(least, (len(tags) - mine) / left_out / 2 if left_out else 2)
    assert least == 1


def test_tags_do_not_matter_in_a_closing_round_and_its_clients_bind_nothing() -> None:
    """Repairs have the keys of the rounds that they repair: one left out would never come."""
    server, clients = joined(planned(clients=3, colluders=0, stragglers=1, masks="gaussian"), LENGTH)
    played(server, clients, [0, 1], {})
    start = server.announce(since=0, closing=True)
    begun = clients[0].begin(start).bind(odd(1))
    assert begun.given is None
    content, upload = opened(server, begun.upload(None))
    assert upload.tag == UNBOUND
    lie = replace(upload, tag=tag_of(odd(2)))  # of a client that does not follow the protocol
    assert server.receive(signed(server, clients[0], content, lie))
    assert server.receive(clients[1].begin(start).upload(None))
    result = server.close()
    assert (list(result.used), result.left_out) == ([0, 1], {})


@pytest.mark.parametrize("given", [odd(1), odd(3)])
def test_an_upload_that_is_not_packed_as_it_must_be_is_refused_wherever_it_would_go(given: bytes) -> None:
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    start = server.announce()
    for i in range(4):
        server.receive(sent(clients[i], start, odd(1 + i % 2)))
    content, upload = opened(server, sent(clients[4], start, given))
    wrong = replace(upload, packed=b"\xff" * len(upload.packed))
    with pytest.raises(WireError, match="padding that is not zero"):
        server.receive(signed(server, clients[4], content, wrong))
    assert server.receive(signed(server, clients[4], content, upload)) == (given == odd(1))


def test_who_binds_to_nothing_differs_from_who_binds_to_something() -> None:
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    _, result = played(server, clients, range(5), {0: None})
    assert (list(result.used), named(result)) == ([1, 2, 3, 4], {0: [0]})
    _, result = played(server, clients, range(5), dict.fromkeys(range(5)))
    assert (len(result.used), result.left_out) == (5, {})


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
            assert named(server.close()) == {0: [4]}


def test_a_tag_is_signed() -> None:
    server, clients = joined(planned(masks="gaussian"), LENGTH)
    message = sent(clients[0], server.announce(), odd(1))
    content, upload = opened(server, message)
    assert upload.tag == tag_of(odd(1)) != tag_of(odd(2))
    forged = replace(upload, tag=tag_of(odd(2)))
    with pytest.raises(WireError, match="did not sign this"):
        server.receive(replace(content, payload=forged.to_bytes()).to_bytes())
    assert server.receive(message)


# grace


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_what_was_chosen_stays_so_for_uploads_that_come_one_round_late(*, resumed: bool, kept: bool) -> None:
    """Clients 0 to 2 are on time, 3 comes late with the same, 4 late with something else."""
    server, clients = joined(planned(masks="drawn", grace=1), LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i == 4 else MOST) for i in range(5)]
    for message in messages[:3]:
        assert server.receive(message)
    assert list(server.close().used) == [0, 1, 2]
    if resumed:
        past = json.loads(json.dumps(server.past()))
        if not kept:
            del past["tag"], past["left_out"]  # of an earlier version: then nothing more is added up
        for _ in range(2):
            server = anew(server, clients)
            server.resume(past)
            past = json.loads(json.dumps(server.past()))
    server.announce()
    takes = not resumed or kept
    assert [server.receive(message) for message in messages[3:]] == [takes, False]
    start = server.announce()
    for client in clients:
        assert server.receive(sent(client, start, MOST))
    result: Any = server.close()
    assert (list(result.joined), list(result.final)) == (([3], [0, 1, 2, 3]) if takes else ([], [0, 1, 2]))
    assert named(result)[0] == list(server.late(0)) == ([4] if takes else [3, 4])


def test_what_was_summed_in_time_is_not_added_again_with_what_comes_late() -> None:
    server, clients = joined(planned(masks="gaussian", grace=1, epsilon=1e6), LENGTH)
    start = server.announce()
    messages = [sent(client, start, MOST, value=0.2) for client in clients]
    assert all(server.receive(message) for message in messages[:4])
    result: Any = server.close()
    assert len(server._open[0]._sums) == 0
    start = server.announce()
    assert server.receive(messages[4])
    assert all(server.receive(sent(client, start, MOST)) for client in clients)
    after: Any = server.close()
    assert list(after.joined) == [4]
    noise = 6 * 4 * server.plan.sigma_individual
    assert result.total + after.total == pytest.approx(np.full(LENGTH, 5 * 0.2), abs=noise)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tag": "ab"}, "tag must be 16 bytes"),
        ({"tag": "xy"}, "past must be that of a server"),
        ({"left_out": "ff"}, "past must be that of a server"),
        ({"left_out": "01"}, "left_out must not name clients that were on time"),
    ],
)
def test_a_past_that_contradicts_itself_is_refused(changed: dict[str, str], words: str) -> None:
    server, clients = joined(planned(masks="gaussian", grace=1), LENGTH)
    played(server, clients, range(5), {4: odd(1)})
    again = anew(server, clients)
    with pytest.raises(ArgumentError, match=words):
        again.resume(server.past() | changed)


@pytest.mark.parametrize("on_time", [0, 1])
def test_colluders_who_are_alone_in_time_choose_nothing_before_the_others_come(on_time: int) -> None:
    server, clients = joined(planned(masks="gaussian", grace=1, colluders=1), LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i == 0 else MOST) for i in range(5)]
    for message in messages[:on_time]:
        assert server.receive(message)
    result = server.close()
    assert (len(result.used), len(result.on_time), result.left_out) == (0, 0, {})
    server.announce()
    assert all(server.receive(message) for message in messages[on_time:])
    result = server.close()
    assert (list(result.joined), list(server.late(0)), named(result)) == ([1, 2, 3, 4], [0], {0: [0]})


@pytest.mark.parametrize(("colluders", "stragglers", "misled"), [(1, 4, 3), (1, 4, 4), (6, 1, 6)])
def test_a_minority_or_colluders_alone_choose_nothing_in_time(colluders: int, stragglers: int, misled: int) -> None:
    plan = planned(clients=10, stragglers=stragglers, colluders=colluders, masks="gaussian", grace=1)
    server, clients = joined(plan, LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i < misled else MOST) for i in range(10)]
    for message in messages[:misled]:
        assert server.receive(message)
    assert (len((result := server.close()).on_time), result.left_out) == (0, {})
    server.announce()
    assert all(server.receive(message) for message in messages[misled:])
    result = server.close()
    assert set(result.joined) in ({*range(misled, 10)}, set())
    assert named(result) == {0: [*range(misled)] if misled < 5 else [*range(6, 10)]}


def test_a_majority_is_on_time_also_if_too_few_came_to_count() -> None:
    server, clients = joined(planned(clients=10, stragglers=2, masks="gaussian", grace=1), LENGTH)
    start = server.announce()
    for client in clients[:6]:
        assert server.receive(sent(client, start, MOST))
    result = server.close()
    assert (list(result.on_time), list(result.used)) == ([*range(6)], [])


def test_where_no_sum_is_large_enough_every_client_counts_as_too_late() -> None:
    server, clients = joined(planned(masks="gaussian", grace=1, colluders=1), LENGTH)
    played(server, clients, range(5), {i: odd(i + 1) for i in range(5)})
    server.announce()
    result = server.close()
    assert (result.final, list(server.late(0))) == (ClientSet.none(5), [0, 1, 2, 3, 4])


def test_who_was_left_out_is_so_after_a_crash_and_is_named_once_more() -> None:
    server, clients = joined(planned(masks="gaussian", grace=1), LENGTH)
    start = server.announce()
    messages = [sent(clients[i], start, odd(1) if i == 4 else MOST) for i in range(5)]
    for message in messages:
        server.receive(message)
    assert named(server.close()) == {0: [4]}
    again = anew(server, clients)
    again.resume(json.loads(json.dumps(server.past())))
    again.announce()
    with pytest.raises(ProtocolError, match="client 4 has answered round 0 before"):
        again.receive(messages[4])
    assert named(again.close()) == {0: [4]}
    assert list(again.late(0)) == [4]


# what it costs


def federated(grace: int, rounds: int, *, asked: bool = False) -> Federation:
    """Five members of one roster, of which m4 is bound to something else in round 0."""
    plan = planned(masks="gaussian", grace=grace)
    federation = Federation(plan, length=LENGTH, run=RUN)
    members = [Member.new(plan, length=LENGTH, run=RUN, name=f"m{i}") for i in range(5)]
    for member in members:
        federation.enrol(member.enrol())
    federation.form()
    [table] = federation.rosters.values()
    for member in members:
        member.join(table.server.roster(member.name))
    for number in range(rounds):
        start = table.server.announce(since=0)
        for i, member in enumerate(members):
            if asked and i < 4:
                table.rounds.asked(number, i)
            given_ = odd(1) if i == 4 and number == 0 else MOST
            federation.receive(member.begin(start).bind(given_).upload(np.zeros(LENGTH)))
        federation.close(table.number)
    return federation


@pytest.mark.parametrize("grace", [0, 1])
def test_a_client_whose_upload_is_left_out_pays_as_one_that_came_too_late(grace: int) -> None:
    federation = federated(grace, 2)
    counted = Odometer(federation.plan)
    everybody, last = ClientSet.of(5, range(5)), ClientSet.of(5, [4])
    counted.record(everybody - last, last)
    if grace:
        counted.open(everybody, ClientSet.none(5))
    else:
        counted.record(everybody, ClientSet.none(5))
    [table] = federation.rosters.values()
    assert table.rounds.odometer.epsilon() == pytest.approx(counted.epsilon(), rel=1e-12)
    assert counted.epsilon()[4] > 1.05 * counted.epsilon()[0]


@pytest.mark.parametrize("asked", [False, True])
def test_while_its_round_waits_it_pays_too_whether_or_not_it_was_noted_as_asked(*, asked: bool) -> None:
    federation = federated(1, 1, asked=asked)
    [table] = federation.rosters.values()
    assert [4 in each for each in table.rounds.seen(0) if each is not None] == [False, True]
    spent = federation.epsilon()
    assert spent["m4"] > spent["m0"] > 0
    federation.end(table.number)
    assert federation.epsilon()["m4"] >= spent["m4"]


def test_after_a_crash_a_member_that_denies_its_upload_pays_for_it() -> None:
    federation = federated(1, 1, asked=True)
    again = Federation.resume(federation.past(announcing=[]), federation.plan)
    again.heard("m4", {0: set()})
    assert again.epsilon()["m4"] >= federation.epsilon()["m4"]


@pytest.mark.parametrize("grace", [0, 1])
def test_who_is_left_out_is_not_gone_but_rounds_that_stay_void_end_a_roster(grace: int) -> None:
    """Two of five members are misled, and one may be missing: they come, so they are not what ends it."""
    plan = planned(masks="gaussian", grace=grace, stragglers=1, rounds=40, population=10)
    federation = Federation(plan, length=LENGTH, run=RUN, patience=3)
    members = {name: Member.new(plan, length=LENGTH, run=RUN, name=name) for name in (f"m{i}" for i in range(10))}
    for member in members.values():
        federation.enrol(member.enrol())
    federation.form()
    misled = set(federation.rosters[0].names[:2])
    for table in federation.rosters.values():
        for name in table.names:
            members[name].join(table.server.roster(name))
    played = 0
    while 0 not in federation.failing():
        turn = federation.turn()
        assert turn is not None
        played += turn.number == 0
        start = turn.server.announce(since=0)
        for name in turn.names:
            begun = members[name].begin(start).bind(odd(1) if name in misled else MOST)
            federation.receive(begun.upload(np.zeros(LENGTH)))
        federation.close(turn.number)
    cohort = federation.cohorts.rosters[0]
    assert (played, cohort.void, cohort.gone(1)) == (3, 3, set())
    assert federation.cohorts.rosters[1].void == 0


def test_who_is_on_time_again_after_a_late_upload_was_left_out_makes_no_round_void() -> None:
    plan = planned(masks="gaussian", grace=1, stragglers=1, population=10)
    federation = Federation(plan, length=LENGTH, run=RUN)
    members = [Member.new(plan, length=LENGTH, run=RUN, name=f"m{i}") for i in range(10)]
    for member in members:
        federation.enrol(member.enrol())
    federation.form()
    table = federation.rosters[0]
    mine = [member for member in members if member.name in table.names]
    for member in mine:
        member.join(table.server.roster(member.name))
    start = table.server.announce(since=0)
    late = mine[4].begin(start).bind(odd(1)).upload(np.zeros(LENGTH))
    for member in mine[:4]:
        federation.receive(member.begin(start).bind(MOST).upload(np.zeros(LENGTH)))
    federation.close(0)
    start = table.server.announce(since=0)
    federation.receive(late)
    for member in mine[1:]:
        federation.receive(member.begin(start).bind(MOST).upload(np.zeros(LENGTH)))
    result = federation.close(0)
    assert (named(result), len(result.on_time)) == ({0: [table.index[mine[4].name]]}, 4)
    assert federation.cohorts.rosters[0].void == 0

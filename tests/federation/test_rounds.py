"""The rounds of a roster after a crash: what may have been answered is counted until somebody says it was not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.federation import Rounds
from support.parties import joined, planned

if TYPE_CHECKING:
    from lightdp.planning import Plan
    from lightdp.protocol import Client, Server

EVERYBODY = range(5)


def asks(server: Server, clients: list[Client], rounds: Rounds, senders: list[int]) -> dict[int, bytes]:
    """The uploads of the open round of these clients."""
    start = server.announce(since=0)
    for client in senders:
        rounds.asked(server.round, client)
    return {client: clients[client].begin(start).upload(np.zeros(1)) for client in senders}


def arrives(server: Server, rounds: Rounds, message: bytes, client: int, number: int) -> None:
    rounds.came(number, client, taken=server.receive(message))


def plays(server: Server, clients: list[Client], rounds: Rounds, here: list[int]) -> None:
    number = server.round
    for client, message in asks(server, clients, rounds, here).items():
        arrives(server, rounds, message, client, number)
    rounds.close(server.close(), closing=False)


def resumed(server: Server, rounds: Rounds) -> Rounds:
    again = Rounds(server)
    again.resume(json.loads(json.dumps(rounds.past())))
    return again


@settings(max_examples=25, deadline=None)
@given(data=st.data(), grace=st.integers(0, 1))
def test_rounds_that_are_resumed_are_those_that_were_saved(data: st.DataObject, grace: int) -> None:
    """Costs, debts and who was there, after random rounds with late, lost and missing uploads."""
    server, clients = joined(planned(grace=grace), 1)
    rounds, delayed = Rounds(server), list[tuple[bytes, int, int]]()
    for _ in range(data.draw(st.integers(1, 6))):
        for late in [each for each in delayed if data.draw(st.booleans())]:
            delayed.remove(late)
            arrives(server, rounds, *late)
        number = server.round
        fates = data.draw(st.lists(st.sampled_from(["here", "here", "late", "lost", "away"]), min_size=5, max_size=5))
        made = asks(server, clients, rounds, [i for i, fate in enumerate(fates) if fate != "away"])
        for client, message in made.items():
            if fates[client] == "here":
                arrives(server, rounds, message, client, number)
            elif fates[client] == "late":
                delayed.append((message, client, number))
        rounds.close(server.close(), closing=False)
    again = resumed(server, rounds)
    assert again.past() == rounds.past()
    assert again.odometer.counted(worst=True).squares() == rounds.odometer.counted(worst=True).squares()
    assert again.owing() == rounds.owing()
    assert (again.void, again.wait) == (rounds.void, rounds.wait)
    for client in EVERYBODY:
        assert again.was_on_time(client) == rounds.was_on_time(client)
        assert again.may_have_sent(client) == rounds.may_have_sent(client)


def by_hand(plan: Plan, *sets: tuple[list[int], list[int]]) -> list[float]:
    odometer = Odometer(plan)
    for used, late in sets:
        odometer.record(used, late)
    return odometer.epsilon().tolist()


def test_everybody_may_have_answered_a_round_whose_replies_are_lost() -> None:
    plan = planned()
    server, clients = joined(plan, 1)
    rounds = Rounds(server)
    plays(server, clients, rounds, [0, 1, 2])
    rounds.lost(1)
    server.announce()
    rounds.close(server.close(), closing=False)
    assert rounds.void == 1
    assert rounds.owing() == {0, 1, 2}
    assert all(rounds.may_have_sent(client) for client in EVERYBODY)
    assert rounds.odometer.epsilon().tolist() == by_hand(plan, ([0, 1, 2], []), ([], [0, 1, 2, 3, 4]))
    for client in (0, 4):  # say that they have not
        rounds.answered(client, {0} if client == 0 else set())
    assert rounds.odometer.epsilon().tolist() == by_hand(plan, ([0, 1, 2], []), ([], [1, 2, 3]))
    assert [rounds.may_have_sent(client) for client in EVERYBODY] == [True, True, True, True, False]
    rounds.answered(3, {1})
    assert rounds.odometer.epsilon().tolist() == by_hand(plan, ([0, 1, 2], []), ([], [1, 2, 3]))
    again = resumed(server, rounds)
    assert again.odometer.epsilon().tolist() == rounds.odometer.epsilon().tolist()


def test_who_is_used_after_all_is_not_charged_for_a_lost_reply() -> None:
    """A reply that comes again before the round ends is in its sum."""
    plan = planned()
    server, clients = joined(plan, 1)
    rounds = Rounds(server)
    rounds.lost(0)
    for client, message in asks(server, clients, rounds, [0, 1, 2, 3]).items():
        arrives(server, rounds, message, client, 0)
    rounds.close(server.close(), closing=False)
    assert rounds.odometer.epsilon().tolist() == by_hand(plan, ([0, 1, 2, 3], [4]))


def test_under_grace_replies_to_the_round_before_may_be_lost_too() -> None:
    """Client 3 answered round 0 late, and the server crashed before round 1 ended: nobody saw it in a sum."""
    plan = planned(grace=1)
    server, clients = joined(plan, 1)
    rounds = Rounds(server)
    made = asks(server, clients, rounds, [0, 1, 2, 3])
    for client in (0, 1, 2):
        arrives(server, rounds, made[client], client, 0)
    rounds.close(server.close(), closing=False)
    server.announce()
    arrives(server, rounds, made[3], 3, 0)
    past, seen = server.past(), rounds.past()
    again, _ = joined(plan, 1)
    again._roster, again._chains = server._roster, server._chains[:1]  # the same run
    again.resume(past)
    rounds = Rounds(again)
    rounds.resume(seen)
    rounds.crashed()
    rounds.lost(1)
    for _ in range(2):
        again.announce()
        rounds.close(again.close(), closing=False)
    expected = by_hand(plan, ([0, 1, 2], [3]), ([], [0, 1, 2, 3, 4]))
    found = rounds.odometer
    assert found.rounds == 2
    assert found.epsilon().tolist() == expected
    rounds.answered(3, ())
    assert rounds.odometer.epsilon()[3] == 0


def test_after_a_crash_uploads_that_were_asked_for_and_are_in_no_set_may_have_come() -> None:
    """Client 3 was asked in round 0, client 4 in round 1; both uploads were under way when the past was saved."""
    plan = planned()
    server, clients = joined(plan, 1)
    rounds = Rounds(server)
    for late in (3, 4):
        number = server.round
        uploads = asks(server, clients, rounds, [0, 1, 2, late])
        for client in (0, 1, 2):
            arrives(server, rounds, uploads[client], client, number)
        rounds.close(server.close(), closing=False)
    before = rounds.odometer.epsilon().tolist()
    assert before == by_hand(plan, ([0, 1, 2], []), ([0, 1, 2], []))
    again = resumed(server, rounds)
    again.crashed()
    assert again.odometer.epsilon().tolist() == by_hand(plan, ([0, 1, 2], [3]), ([0, 1, 2], [4]))
    assert [again.may_have_sent(client) for client in (3, 4)] == [True, True]
    again.answered(4, ())
    assert again.odometer.epsilon().tolist() == by_hand(plan, ([0, 1, 2], [3]), ([0, 1, 2], []))
    again.answered(3, ())
    assert again.odometer.epsilon().tolist() == before


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"used": ["zz"]}, {"used": ["ff"]}, {"came": [3]}, {"asked": [[0, "x"]]}, {"lost": {"a": 1}},
     {"void": "x"}],
    ids=str,
)  # fmt: skip
def test_what_past_did_not_return_is_refused(wrong: Any) -> None:
    server, _ = joined(planned(), 1)
    rounds = Rounds(server)
    bad = rounds.past() | wrong if isinstance(wrong, dict) and wrong else wrong
    with pytest.raises(ArgumentError, match="past must be that of a roster's rounds"):
        rounds.resume(bad)


def test_sets_of_another_roster_are_refused() -> None:
    server, _ = joined(planned(), 1)
    with pytest.raises(ArgumentError):
        Rounds(server).resume(Rounds(server).past() | {"used": [ClientSet.all(9).to_bytes().hex()]})

"""A server that crashes and goes on from its checkpoint: sums, chains and ledgers are those of one that did not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.protocol import Client, Server
from support.ballots import Ballot
from support.parties import RUN, joined, planned, play, residual
from support.schedules import LEAST, LENGTH, Schedules, Sent

if TYPE_CHECKING:
    from support.parties import Tape


def resumed(old: Server, clients: list[Client], past: dict[str, Any]) -> Server:
    """A server that knows what is public and `past`, after its way through a file."""
    new = Server(old.plan, length=old.length, run=old.run, weighted=old.weighted, number=old.number)
    for client in reversed(clients):
        new.enrol(client.enrol())
    assert new.roster() == old.roster()
    new.resume(json.loads(json.dumps(past)))
    return new


class Crashes(Schedules):
    """The machine of schedules, with a server that crashes at any point; checkpoints are written as rounds end."""

    @initialize()
    def first_checkpoint(self) -> None:
        self.doomed: set[int] = set()  # rounds that are void, whatever comes of them
        self.past: dict[str, Any] = {"used": [], "on_time": [], "late": {}, "closing": 0}
        self.late_then: list[Sent] = []
        self.ballots_then: list[Ballot[Sent]] = [Ballot()]

    @rule(announced=st.booleans())
    def server_crashes(self, *, announced: bool) -> None:
        """What came since the last round ended is lost; what left clients may still come, or come again."""
        old, number = self.server, self.server.round
        self.server = resumed(old, self.clients, self.past)
        assert self.server.round == number
        assert self.server._chains == old._chains
        assert (self.server._used, self.server._on_time) == (old._used, old._on_time)
        self.late = list(self.late_then)
        kept = [ballot.left_out for ballot in self.ballots_then]
        self.ballots[number] = Ballot()
        if self.plan.grace and number > 0:
            before = number - 1
            self.ballots[before] = self.ballots_then[before].copied()
            self.ballots[before].crashes(self.on_time[before])
            if len(self.ballots[before].came) < LEAST:
                self.doomed.add(before)
        self.arrived = [s for s in self.arrived if s.round < number - self.plan.grace]
        self.arrived += [s for b in self.ballots[-2:] for s in b.came if s not in self.arrived]
        self.arrived += [
            s for s in self.sent if s.round == number - 1 and s.client in kept[s.round] and s not in self.arrived
        ]
        if announced or any(s.round == number for s in self.sent):
            self.server.announce()

    @rule()
    def server_crashes_and_the_open_round_is_void(self) -> None:
        self.server_crashes(announced=True)
        self.round_ends()
        assert not self.on_time[-1]
        if not self.plan.grace:
            assert not self.used[-1]

    @rule()
    def round_ends(self) -> None:
        super().round_ends()
        self.past, self.late_then = self.server.past(), list(self.late)
        self.ballots_then = [ballot.copied() for ballot in self.ballots]

    def arrive(self, sent: Sent) -> None:
        if sent.round == self.server.round:
            self.server.announce(closing=self.closing)  # after a crash nothing is open
        super().arrive(sent)

    def least(self, number: int) -> int:
        return 6 if number in self.doomed else super().least(number)

    @invariant()
    def the_checkpoint_is_that_of_the_last_round_that_ended(self) -> None:
        if hasattr(self, "past"):
            now = self.server.past()
            assert {name: now[name] for name in ("used", "on_time", "closing")} == {
                name: self.past[name] for name in ("used", "on_time", "closing")
            }


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("grace", [0, 1])
def test_a_server_that_crashes_in_every_round_trains_as_one_that_does_not(grace: int, tapes: list[Tape]) -> None:
    """After each round that ended; nothing is lost then, and all sums together hold no pairwise noise."""
    plan = planned(grace=grace)
    server, clients = joined(plan, LENGTH)
    left = np.zeros(LENGTH, np.int32)

    def ends(senders: list[int], *, closing: bool = False) -> None:
        nonlocal server, left
        start = server.announce(since=0, closing=closing)
        tapes.clear()
        for i in senders:
            assert server.receive(clients[i].begin(start).upload(np.zeros(LENGTH)))
        result = server.close()
        assert set(result.used) == set(senders)
        left += np.sum([tape.fine[0] - tape.data[0] for tape in tapes], axis=0, dtype=np.int32)
        server = resumed(server, clients, server.past())

    for senders in ([0, 1, 2], [1, 2, 3, 4], [0, 1, 3], [0, 2, 3, 4], [0, 1, 2, 3]):
        ends(senders)
    assert left.any()
    for _ in range(1 + grace):
        ends([0, 1, 2, 3, 4], closing=True)
    assert not left.any()
    with pytest.raises(ProtocolError, match="the run is closed"):
        server.announce(closing=True)


@pytest.mark.parametrize("grace", [0, 1])
def test_a_closing_round_that_is_lost_is_void_and_another_repairs_what_is_left(grace: int, tapes: list[Tape]) -> None:
    plan = planned(grace=grace)
    server, clients = joined(plan, LENGTH)
    play(server, clients, [0, 1, 2])
    if grace:
        play(server, clients, [0, 1, 2, 3, 4])
    start = server.announce(since=0, closing=True)
    for i in (0, 1):  # of whom nobody hears again
        clients[i].begin(start).upload(None)
    server = resumed(server, clients, server.past())
    server.announce()
    assert server.close().total is None
    tapes.clear()
    for _ in range(1 + grace):
        start = server.announce(since=0, closing=True)
        for client in clients:
            server.receive(client.begin(start).upload(None))
        assert len(server.close().used) == 5
    repaired = np.sum([tape.fine[0] - tape.data[0] for tape in tapes], axis=0, dtype=np.int32)
    assert np.array_equal(repaired, -residual(clients, 0, [0, 1, 2], LENGTH))
    assert repaired.any()


def test_a_closing_round_needs_no_least_number_after_a_crash_either() -> None:
    """Under grace its uploads are in a sum, so that who sent them must not be told otherwise."""
    server, clients = joined(planned(grace=1), LENGTH)
    play(server, clients, [0, 1, 2])
    start = server.announce(since=0, closing=True)
    for i in (0, 1):
        server.receive(clients[i].begin(start).upload(None))
    assert list(server.close().used) == [0, 1]
    server = resumed(server, clients, server.past())
    start = server.announce(since=0, closing=True)
    server.receive(clients[0].begin(start).upload(None))
    final = server.close().final
    assert final is not None
    assert list(final) == [0, 1]


def test_uploads_that_were_seen_too_late_stay_recorded_and_are_refused_again() -> None:
    server, clients = joined(planned(), LENGTH)
    start = server.announce()
    uploads = [client.begin(start).upload(np.zeros(LENGTH)) for client in clients]
    for upload in uploads[:3]:
        server.receive(upload)
    server.close()
    assert server.receive(uploads[3]) is False
    server = resumed(server, clients, server.past())
    assert list(server.late(0)) == [3]
    for upload in (*uploads[:3], uploads[3]):
        with pytest.raises(ProtocolError, match="before"):
            server.receive(upload)
    assert server.receive(uploads[4]) is False
    assert list(server.late(0)) == [3, 4]


def test_clients_refuse_a_server_that_resumes_from_before_what_it_announced() -> None:
    """A checkpoint that is too old fails closed: the announcement contradicts an earlier one."""
    server, clients = joined(planned(), LENGTH)
    old = server.past()
    play(server, clients, [0, 1, 2])
    play(server, clients, [0, 1, 2, 3])
    server = resumed(server, clients, old)
    server.announce()
    server.close()
    start = server.announce(since=0)
    with pytest.raises(ProtocolError, match="answered, or is over"):
        clients[0].begin(start)
    server.close()
    with pytest.raises(ProtocolError, match="contradicts an earlier one"):
        clients[0].begin(server.announce(since=0))


def test_a_server_resumes_once_with_its_roster_and_before_it_announces() -> None:
    server, clients = joined(planned(), LENGTH)
    past = server.past()
    with pytest.raises(ProtocolError, match="before it announces anything"):
        Server(server.plan, length=LENGTH, run=RUN).resume(past)
    server.announce()
    with pytest.raises(ProtocolError, match="before it announces anything"):
        server.resume(past)
    other = resumed(server, clients, past)
    other.resume(past)
    play(other, clients, range(5))
    with pytest.raises(ProtocolError, match="before it announces anything"):
        other.resume(past)


def bits(*clients: int) -> str:
    return ClientSet.of(5, clients).to_bytes().hex()


@pytest.mark.parametrize(
    ("grace", "wrong"),
    [
        (0, None), (0, []), (0, {}), (0, {"used": 3}), (0, {"used": ["zz"]}), (0, {"used": ["ff"]}), (0, {"late": []}),
        (0, {"late": {"x": bits(1)}}), (0, {"closing": 2}), (0, {"closing": "no"}), (0, {"on_time": [bits(1)]}),
        (1, {"used": [bits(0, 1, 2)]}), (1, {"on_time": [bits(), bits()]}), (1, {"on_time": [bits()], "closing": 2}),
        (1, {"closing": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_the_past_of_such_a_server_is_refused(grace: int, wrong: Any) -> None:
    server, clients = joined(planned(grace=grace), LENGTH)
    usual: dict[str, Any] = {"used": [], "on_time": [], "late": {}, "closing": 0}
    bad = usual | wrong if isinstance(wrong, dict) and wrong else wrong
    with pytest.raises(ArgumentError):
        resumed(server, clients, bad)

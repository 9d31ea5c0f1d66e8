"""A machine of random schedules: stragglers, late uploads, crashes, replays, corrupted messages, against the theory.

Everything is checked in fine steps, where pairwise noise is whole: nothing here is within a tolerance.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lightdp
from lightdp import masks, stream
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ProtocolError, WireError
from lightdp.protocol import Client, File, Server
from lightdp.protocol.rounds import used_sets
from support.ballots import Ballot, early
from support.parties import seat
from support.repair_rules import Rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lightdp.protocol.history import ClientHistory

RUN = b"a run of 16 byte"
LENGTH, LEAST = 8, 3
MODELS = (*[None] * 6, bytes(32), bytes(range(32)))  # what clients bind a round to


@dataclass(eq=False)
class Sent:
    """One upload as it left: its bytes, and what it was made of in fine steps."""

    client: int
    round: int
    message: bytes
    data: NDArray[np.int32]  # rounded data and individual noise
    fine: NDArray[np.int32]
    keys: frozenset[bytes]  # of the pairwise noise that was added, not of what was repaired
    given: bytes | None  # what it is bound to


class Schedules(RuleBasedStateMachine):
    """A server, five clients with state on disk, and everything that can happen to their messages."""

    @initialize(
        calibration=st.sampled_from(["repair", "repair", "exact"]),
        degree=st.sampled_from([4, 2]),
        grace=st.sampled_from([0, 1, 1]),
    )
    def start(self, calibration: Any, degree: int, grace: int) -> None:
        self.plan = lightdp.plan(
            clients=5, colluders=1, stragglers=2, rounds=500, epsilon=50, delta=1e-5, unit="client",
            calibration=calibration, degree=degree, grace=grace,
        )  # fmt: skip
        self.folder = tempfile.TemporaryDirectory()
        self.server = Server(self.plan, length=LENGTH, run=RUN)
        self.clients = [
            Client.new(self.plan, length=LENGTH, run=RUN, name=f"c{i}", store=File(self.path(i))) for i in range(5)
        ]
        for client in self.clients:
            self.server.enrol(client.enrol())
        for client in self.clients:
            client.join(self.server.roster())
        self.sent: list[Sent] = []  # everything that ever left a client
        self.ballots: list[Ballot[Sent]] = [Ballot()]  # of each round, while it was open
        self.arrived: list[Sent] = []  # while their rounds were open
        self.released: list[Sent] = []  # what is in sums
        self.late: list[Sent] = []
        self.on_time: list[frozenset[int]] = []
        self.used: list[frozenset[int]] = []  # final sets
        self.left = np.zeros(LENGTH, np.int32)  # pairwise noise in the model: what all sums hold together
        self.rng = np.random.default_rng(0)
        self.closing = self.alike = False

    def path(self, i: int) -> Path:
        return Path(self.folder.name) / f"c{i}.json"

    def history(self, i: int) -> ClientHistory:
        history = self.clients[i]._history
        assert history is not None
        return history

    def repairs_of(self, i: int) -> Rules:
        """What (R1) and (R5) say of a client's repairs, from all that happened."""
        sent = [s.round for s in self.sent if s.client == i]
        return Rules(i, self.history(i).neighbours, self.used if self.plan.repairs else (), sent, self.plan.grace)

    def answer(self, i: int) -> Sent:
        """Client i answers the open round, under observation."""
        real = masks._fine
        made: list[tuple[Any, Any, list[stream.Term]]] = []

        def watching(vector: Any, grid: Any, terms: Sequence[stream.Term], keys: Any, **more: Any) -> Any:
            clipped = update * (0.0 if self.closing else min(1.0, self.plan.clip / float(np.linalg.norm(update))))
            assert vector == pytest.approx(clipped, rel=1e-6)
            assert np.linalg.norm(vector) <= self.plan.clip
            made.append((real(vector, grid, [], keys), real(vector, grid, terms, keys, **more), list(terms)))
            return made[-1][1]

        update, since = self.rng.normal(size=LENGTH), self.history(i).next if self.rng.random() < 0.5 else 0
        with mock.patch.object(masks, "_fine", watching):
            start = self.server.announce(since=since, closing=self.closing)
            begun = self.clients[i].begin(start)
            given = None if self.closing or self.alike else MODELS[self.rng.integers(len(MODELS))]
            message = (begun if given is None else begun.bind(given)).upload(None if self.closing else update)
        data, fine, terms = made[0]
        now, history = self.server.round, self.history(i)
        own = {term.key for term in self.noise(i, now, history.neighbours)}
        undone = self.undone(i, now)
        assert {term.key for term in terms} == (set() if self.closing else own) | {term.key for term in undone}
        sent = Sent(i, now, message, data, fine, frozenset(term.key for term in terms) & own, given)
        self.sent.append(sent)
        return sent

    def noise(self, i: int, of: int, peers: Sequence[int], *, undo: bool = False) -> list[stream.Term | stream.Draw]:
        """What a client shares of a round that it answered, from the model that it was bound to."""
        history = self.history(i)
        return seat(self.clients[i]).pairwise(history, of, tuple(peers), given=history.given.get(of), undo=undo)

    def undone(self, i: int, number: int) -> list[stream.Term | stream.Draw]:
        """What the upload of a client takes out again: noise of one round, the oldest that it owes."""
        of = self.repairs_of(i).carries(number)
        if of is None:
            return []
        return self.noise(i, of, self.repairs_of(i).absent(of), undo=True)

    def has_answered(self, i: int) -> bool:
        return any(s.client == i and s.round == self.server.round for s in self.sent)

    def arrive(self, sent: Sent) -> None:
        assert self.server.receive(sent.message) == self.ballots[sent.round].receives(sent)
        self.arrived.append(sent)

    @rule(i=st.integers(0, 4))
    def upload_arrives(self, i: int) -> None:
        if not self.has_answered(i):
            self.arrive(self.answer(i))

    @rule(i=st.integers(0, 4))
    def upload_is_lost_or_delayed(self, i: int) -> None:
        if not self.has_answered(i):
            self.answer(i)

    @rule(i=st.integers(0, 4), before=st.booleans())
    def client_crashes_and_is_restored(self, i: int, *, before: bool) -> None:
        if before and not self.has_answered(i):
            self.answer(i)  # the upload was made, and the crash came before it arrived
        known = self.history(i)
        self.clients[i] = Client.restore(self.plan, length=LENGTH, store=File(self.path(i)))
        again = self.history(i)
        for name in ("rounds", "sent", "closing", "given", "repair", "pending"):
            assert getattr(again, name) == getattr(known, name)
        assert (again.repairs.waiting, again.repairs.flying) == (known.repairs.waiting, known.repairs.flying)
        assert again.odometer.waits == known.odometer.waits
        if self.has_answered(i):
            with pytest.raises(ProtocolError, match="was answered"):
                self.clients[i].begin(self.server.announce(since=0))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def old_message_arrives(self, data: st.DataObject) -> None:
        """A replay, or an upload that comes late: it is never added to a sum a second time."""
        sent = data.draw(st.sampled_from(self.sent))
        if sent in self.arrived or sent in self.late:
            with pytest.raises(ProtocolError, match="before"):
                self.server.receive(sent.message)
        elif sent.round < self.server.round - self.plan.grace:
            assert self.server.receive(sent.message) is False
            self.late.append(sent)
        else:
            self.arrive(sent)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
    def corrupted_message_arrives(self, data: st.DataObject, at: float, bit: int, *, cut: bool) -> None:
        message = bytearray(data.draw(st.sampled_from(self.sent)).message)
        position = int(at * len(message))
        message[position] ^= 1 << bit
        for receiver in (self.server.receive, lambda m: self.clients[0].begin(m).upload(np.zeros(LENGTH))):
            with pytest.raises((WireError, ProtocolError)):
                receiver(bytes(message[:position]) if cut else bytes(message))

    @rule()
    def round_ends(self) -> None:
        """(R5): what is released is all of the round that came in time, and what came of the round before since."""
        self.server.announce(closing=self.closing)
        number, grace, least = self.server.round, self.plan.grace, 0 if self.closing else LEAST
        now = self.ballots[number]
        now.settles(early(self.plan) if grace and not self.closing else 1)
        self.on_time.append(frozenset(s.client for s in now.came if now.chosen))
        final, joined = number - grace, list[Sent]()
        if final >= 0:
            self.ballots[final].settles()
            settled = self.ballots[final].came
            counts = len(settled) >= (least if final == number else self.least(final))
            self.used.append(frozenset(s.client for s in settled) if counts else frozenset())
            joined = [s for s in settled if counts and s not in self.released]
        fresh = list(now.came) if grace and now.chosen and len(now.came) >= least else []
        result = self.server.close()
        self.ballots.append(Ballot())
        named = {each: self.ballots[each].newly_left_out() for each in {number, max(final, 0)}}
        assert {each: set(found) for each, found in result.left_out.items()} == {k: v for k, v in named.items() if v}
        assert set(result.used) == {s.client for s in (fresh if grace else joined)}
        assert set(result.joined) == {s.client for s in (joined if grace else [])}
        assert result.final == (ClientSet.of(5, self.used[-1]) if self.used else None)
        assert (result.total is None) == (not joined + fresh)
        if result.total is not None:
            self.check_sum(result.total, joined + fresh)
        if final >= 0:
            seen = frozenset[int]() if self.used[-1] else frozenset(s.client for s in settled)
            assert set(self.server.late(final)) == seen | self.ballots[final].left_out

    @rule(
        come=st.lists(st.sampled_from(["arrives", "arrives", "is held back", "away"]), min_size=5, max_size=5),
        joins=st.lists(st.booleans(), min_size=5, max_size=5),
    )
    def round_of(self, come: list[str], joins: list[bool]) -> None:
        """A whole round, in which some uploads of the round before may still come."""
        before = self.server.round - 1
        for s in [s for s in self.sent if s.round == before and s not in self.arrived and joins[s.client]]:
            if self.plan.grace:
                self.arrive(s)
        for i in range(5):
            if come[i] == "arrives":
                self.upload_arrives(i)
            elif come[i] == "is held back":
                self.upload_is_lost_or_delayed(i)
        self.round_ends()

    def least(self, number: int) -> int:
        return 0 if any(number in self.history(i).closing for i in range(5)) else LEAST

    def check_sum(self, total: NDArray[np.float64], released: list[Sent]) -> None:
        """The sum is that of the uploads, rounded once; these are data, noise and what theory names."""
        grid = self.server._grid
        rounded = np.sum([np.rint(s.fine / 2**grid.shift) for s in released], axis=0)
        assert np.array_equal(np.rint(total / grid.wire_step), rounded)
        expected = np.zeros(LENGTH, np.int32)
        for s in released:
            beside = {other.client for other in released if other.round == s.round}
            uncancelled = tuple(j for j in self.history(s.client).neighbours if j not in beside)
            if s.keys:
                stream.accumulate(expected, self.noise(s.client, s.round, uncancelled))
            stream.accumulate(expected, self.undone(s.client, s.round))
        found = np.sum([s.fine - s.data for s in released], axis=0, dtype=np.int32)
        assert np.array_equal(found, expected)
        self.released += released
        self.left += found

    @invariant()
    def no_mask_is_used_twice(self) -> None:
        for i in range(5):
            keys = [key for s in getattr(self, "sent", []) if s.client == i for key in s.keys]
            assert len(keys) == len(set(keys))

    @invariant()
    def odometers_are_those_of_the_theory(self) -> None:
        for i, client in enumerate(getattr(self, "clients", [])):
            history, theory = self.history(i), Odometer(self.plan, [i])
            mine = {s.round for s in self.sent if s.client == i}
            for t, used in enumerate(self.used[: len(used_sets(history.rounds))]):
                theory.record(used, [j for j in range(5) if j not in used and (j != i or t in mine)])
                assert used_sets(history.rounds)[t] == history._near.near(ClientSet.of(5, used))
            if self.plan.grace and history.next > 0:
                last = self.on_time[history.next - 1]
                theory.open(last, [i] if history.next - 1 in mine and i not in last else [])
            assert client.epsilon() == theory.counted(ahead=history.next in mine).epsilon()[0]

    @invariant()
    def nobody_holds_more_than_grace_needs(self) -> None:
        if hasattr(self, "server"):
            assert len(self.server._open) <= 1 + self.plan.grace
            assert all(len(each._sums) <= 2 for each in self.server._open.values())
            histories = [self.history(i) for i in range(5)]
            assert all(len(each.repairs.owed(each._place)) <= 1 + self.plan.grace for each in histories)

    def everybody_answers(self) -> None:
        for i in range(5):
            self.upload_arrives(i)
        for s in [s for s in self.sent if s.round == self.server.round and s not in self.arrived]:
            self.arrive(s)
        self.round_ends()

    def check_what_is_left(self) -> None:
        expected = np.zeros(LENGTH, np.int32)
        for i in range(5):
            rules = self.repairs_of(i)
            for of in rules.given_up():
                stream.accumulate(expected, self.noise(i, of, rules.absent(of)))
        assert np.array_equal(self.left, expected)

    @precondition(lambda self: self.plan.repairs)
    @rule()
    def everybody_answers_until_nothing_is_left(self) -> None:
        """Once all have answered 2 + grace rounds in a row, bound to one model, only what nobody repairs is left."""
        for number in range(3 + self.plan.grace):
            self.alike = number > 0  # in the first some may have been bound to something else before
            self.everybody_answers()
        self.alike = False
        self.check_what_is_left()

    def teardown(self) -> None:
        """After 1 + grace rounds without data only what nobody repairs is left (R4), (R5)."""
        if not hasattr(self, "folder"):
            return
        try:
            if self.plan.repairs:
                self.round_ends()
                self.closing = True
                for _ in range(1 + self.plan.grace):
                    self.everybody_answers()
                self.check_what_is_left()
                with pytest.raises(ProtocolError, match="the run is closed"):
                    self.server.announce(closing=True)
        finally:
            self.folder.cleanup()

"""Random schedules of stragglers, late uploads, crashes, replays and corrupted messages, against the theory.

Everything is checked in fine steps, where pairwise noise is whole: nothing here is within a tolerance.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lightdp
from lightdp import masks, stream
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ProtocolError, WireError
from lightdp.protocol import Client, File, Server
from lightdp.repair import RETRIES
from support.parties import seat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RUN = b"a run of 16 byte"
LENGTH = 8


@dataclass
class Sent:
    """One upload as it left: its bytes, and what it was made of in fine steps."""

    client: int
    round: int
    message: bytes
    data: NDArray[np.int32]  # rounded data and individual noise
    fine: NDArray[np.int32]
    keys: frozenset[bytes]  # of the pairwise noise that was added, not of what was repaired


class Schedules(RuleBasedStateMachine):
    """A server, five clients with state on disk, and everything that can happen to their messages."""

    @initialize(calibration=st.sampled_from(["repair", "exact"]), degree=st.sampled_from([4, 2]))
    def start(self, calibration: Any, degree: int) -> None:
        self.plan = lightdp.plan(
            clients=5, colluders=1, stragglers=2, rounds=500, epsilon=50, delta=1e-5, unit="client",
            calibration=calibration, degree=degree,
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
        self.accepted: list[Sent] = []  # of the open round
        self.late: dict[int, set[int]] = {}
        self.used: list[tuple[int, ...]] = []
        self.left = np.zeros(LENGTH, np.int32)  # pairwise noise in the model: what all sums hold together
        self.rng = np.random.default_rng(0)

    def path(self, i: int) -> Path:
        return Path(self.folder.name) / f"c{i}.json"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def answer(self, i: int) -> Sent:
        """Client i answers the open round, under observation."""
        real = masks._fine
        made: list[tuple[Any, Any, list[stream.Term]]] = []

        def watching(vector: Any, grid: Any, terms: Sequence[stream.Term], keys: Any, **more: Any) -> Any:
            clipped = update * min(1.0, self.plan.clip / float(np.linalg.norm(update)))
            assert vector == pytest.approx(clipped, rel=1e-6)
            assert np.linalg.norm(vector) <= self.plan.clip
            made.append((real(vector, grid, [], keys), real(vector, grid, terms, keys, **more), list(terms)))
            return made[-1][1]

        update = self.rng.normal(size=LENGTH)
        with mock.patch.object(masks, "_fine", watching):
            message = self.clients[i].begin(self.server.announce(since=0)).upload(update)
        data, fine, terms = made[0]
        history = self.clients[i]._history
        assert history is not None
        added = {term.key for term in seat(self.clients[i]).pairwise(history, self.server.round, history.neighbours)}
        keys = frozenset(term.key for term in terms) & added
        sent = Sent(i, self.server.round, message, data, fine, keys)
        self.sent.append(sent)
        return sent

    def has_answered(self, i: int) -> bool:
        return any(s.client == i and s.round == self.server.round for s in self.sent)

    @rule(i=st.integers(0, 4))
    def upload_arrives(self, i: int) -> None:
        if not self.has_answered(i):
            sent = self.answer(i)
            assert self.server.receive(sent.message)
            self.accepted.append(sent)

    @rule(i=st.integers(0, 4))
    def upload_is_lost_or_delayed(self, i: int) -> None:
        if not self.has_answered(i):
            self.answer(i)

    @rule(i=st.integers(0, 4), before=st.booleans())
    def client_crashes_and_is_restored(self, i: int, *, before: bool) -> None:
        if before and not self.has_answered(i):
            self.answer(i)  # the upload was made, and the crash came before it arrived
        self.clients[i] = Client.restore(self.plan, length=LENGTH, store=File(self.path(i)))
        if self.has_answered(i):
            with pytest.raises(ProtocolError, match="was answered"):
                self.clients[i].begin(self.server.announce(since=0))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def old_message_arrives(self, data: st.DataObject) -> None:
        """A replay, or an upload that comes late: it is never added to a sum a second time."""
        sent = data.draw(st.sampled_from(self.sent))
        taken = sent in self.accepted or any(sent.round == t and sent.client in u for t, u in enumerate(self.used))
        if taken or sent.client in self.late.get(sent.round, ()):
            with pytest.raises(ProtocolError, match="before"):
                self.server.receive(sent.message)
        elif sent.round < self.server.round:
            assert self.server.receive(sent.message) is False
            self.late.setdefault(sent.round, set()).add(sent.client)
        else:
            self.server.announce()
            assert self.server.receive(sent.message)
            self.accepted.append(sent)

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
        self.server.announce()
        result = self.server.close()
        assert list(result.used) == sorted(s.client for s in self.accepted) or result.total is None
        if result.total is None:
            assert len(self.accepted) < 3
            self.late[result.round] = {s.client for s in self.accepted}
            self.used.append(())
        else:
            self.check_sum(result.total)
            self.used.append(tuple(s.client for s in self.accepted))
            self.left += np.sum([s.fine - s.data for s in self.accepted], axis=0, dtype=np.int32)
        self.accepted = []

    def check_sum(self, total: NDArray[np.float64]) -> None:
        """The sum is that of the uploads, rounded once; these are data, noise and what theory names."""
        grid = self.server._grid
        rounded = np.sum([np.rint(s.fine / 2**grid.shift) for s in self.accepted], axis=0)
        assert np.array_equal(np.rint(total / grid.wire_step), rounded)
        expected = np.zeros(LENGTH, np.int32)
        used = [s.client for s in self.accepted]
        for s in self.accepted:
            client = self.clients[s.client]
            history = client._history
            assert history is not None
            uncancelled = tuple(j for j in history.neighbours if j not in used)
            stream.accumulate(expected, seat(client).pairwise(history, s.round, uncancelled))
            repaired = self.repaired_by(s)
            if repaired is not None:
                absent = tuple(j for j in history.neighbours if j not in self.used[repaired])
                stream.accumulate(expected, seat(client).pairwise(history, repaired, absent, undo=True))
        assert np.array_equal(np.sum([s.fine - s.data for s in self.accepted], axis=0, dtype=np.int32), expected)

    def repaired_by(self, sent: Sent) -> int | None:
        """(R1): the round that an upload repairs: the last one its client was used in, at most RETRIES + 1 times."""
        if not self.plan.repairs:
            return None
        last = max((t for t, used in enumerate(self.used[: sent.round]) if sent.client in used), default=None)
        if last is None:
            return None
        tries = sum(s.client == sent.client and last < s.round < sent.round for s in self.sent)
        return last if tries <= RETRIES else None

    @invariant()
    def no_mask_is_used_twice(self) -> None:
        for i in range(5):
            keys = [key for s in getattr(self, "sent", []) if s.client == i for key in s.keys]
            assert len(keys) == len(set(keys))

    @invariant()
    def odometers_are_those_of_the_theory(self) -> None:
        for i, client in enumerate(getattr(self, "clients", [])):
            history = client._history
            theory = Odometer(self.plan, [i])
            for t, used in enumerate(self.used[: len(history.used)]):
                mine = any(s.client == i and s.round == t for s in self.sent)
                theory.record(used, [j for j in range(5) if j not in used and (j != i or mine)])
                assert history.used[t] == ClientSet.of(5, used)
            pending = any(s.client == i and s.round == len(history.used) for s in self.sent)
            assert client.epsilon() == theory.counted(ahead=pending).epsilon()[0]

    @precondition(lambda self: self.plan.repairs)
    @rule()
    def everybody_answers_until_nothing_is_left(self) -> None:
        """Once all have answered two rounds in a row, only repairs that were given up are left, and no others."""
        for _ in range(2):
            for i in range(5):
                self.upload_arrives(i)
            for s in [s for s in self.sent if s.round == self.server.round and s not in self.accepted]:
                assert self.server.receive(s.message)
                self.accepted.append(s)
            self.round_ends()
        given_up = np.zeros(LENGTH, np.int32)
        for i, client in enumerate(self.clients):
            history = client._history
            assert history is not None
            mine = [t for t, used in enumerate(self.used) if i in used]
            for last, following in itertools.pairwise(mine):
                tries = sum(s.client == i and last < s.round < following for s in self.sent)
                if tries > RETRIES:
                    absent = tuple(j for j in history.neighbours if j not in self.used[last])
                    stream.accumulate(given_up, seat(client).pairwise(history, last, absent))
        assert np.array_equal(self.left, given_up)


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

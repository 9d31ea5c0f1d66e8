"""A federation whose members come, go and crash, whose messages are late, lost and repeated, and whose server dies.

Everything that happens is chosen by one seed. `Book` says what must be true, and every step is compared with it.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import gaussian
from lightdp.errors import ProtocolError
from lightdp.federation import Federation, Table
from support.federated_books import Book, Sent, exact_mu, masks_used_twice
from support.federated_nodes import LENGTH, RUN, Nodes, planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightdp.planning import Plan

MOST = 12  # members
ODD = 30  # in 256 rounds of a member, that it binds to something other than most


class CrashError(Exception):
    """The server's process is gone."""


class World:
    """One schedule. `step` does something at random; `finish` closes all rosters and compares the ledgers."""

    def __init__(self, seed: int, plan: Plan, *, weighted: bool = False, crashes: float = 0.03, **options: Any) -> None:
        self.random = random.Random(seed)  # noqa: S311  chooses what happens, protects nothing
        self.plan, self.weighted, self.options = plan, weighted, options
        self.crash_rate, self.crashed, self.equal = crashes, 0, 0
        self.unsure: set[str] = set()  # members that have not said since a crash what they have answered
        self.said: dict[tuple[str, int], frozenset[int]] = {}  # rounds that they said, by member and roster
        self.fed = Federation(plan, length=LENGTH, run=RUN, weighted=weighted, **options)
        self.nodes = Nodes(self.random, plan, weighted=weighted)
        self.sent = self.nodes.sent
        self.seen: dict[tuple[str, int, int], Sent] = {}  # what reached a server, also one that has crashed
        self.books = self.nodes.books
        for _ in range(self.random.randint(plan.clients, MOST - 2)):
            self.somebody_new()
        self.save()

    def run(self, steps: int) -> World:
        with self.nodes.taped():
            for _ in range(steps):
                self.step()
            self.finish()
        return self

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def step(self) -> None:
        does = [self.serve] * 6 + [self.somebody_new, self.somebody_leaves, self.somebody_is_back]
        does += [self.process_dies, self.old_request_arrives, self.old_upload_arrives]
        try:
            self.random.choice(does)()
        except CrashError:
            self.resume()

    def point(self) -> None:
        """Where the server may crash."""
        if self.chance(self.crash_rate):
            raise CrashError

    def somebody_new(self) -> None:
        if len(self.nodes.by_name) < MOST:
            self.fed.enrol(self.nodes.new().enrol())

    def somebody_leaves(self) -> None:
        self.fed.leave(self.random.choice([*self.nodes.by_name]))

    def somebody_is_back(self) -> None:
        name = self.random.choice([*self.nodes.by_name])
        self.fed.enrol(self.nodes.by_name[name].member.enrol())
        self.hears(name)

    def process_dies(self) -> None:
        self.nodes.restore(self.random.choice([*self.nodes.by_name]))

    def old_request_arrives(self) -> None:
        waiting = [name for name, node in self.nodes.by_name.items() if node.inbox]
        if waiting:
            name = self.random.choice(waiting)
            inbox = self.nodes.by_name[name].inbox
            roster, start = self.random.choice(inbox) if self.chance(0.5) else inbox.pop(0)
            sent = self.nodes.ask(name, roster, start)
            if sent is not None and self.chance(0.7):
                self.arrive(sent)

    def old_upload_arrives(self) -> None:
        made = [s for s in self.sent if s.message]
        if made:
            self.arrive(self.random.choice(made))

    def arrive(self, s: Sent) -> None:
        """An upload is in a sum once at most, and whatever comes too late is recorded."""
        if s.roster not in self.fed.rosters:
            with pytest.raises(ProtocolError, match="ended"):
                self.fed.receive(s.message)
            return
        book = self.books[s.roster]
        if book.has(s):
            with pytest.raises(ProtocolError, match="before"):
                self.fed.receive(s.message, sender=s.name)
            return
        _, used = self.fed.receive(s.message, sender=s.name, round=s.round)
        assert used is book.takes(s)
        self.seen[s.place] = s
        book.receives(s)

    def save(self) -> None:
        self.saved = self.fed.past(), {number: book.copied() for number, book in self.books.items()}

    def resume(self) -> None:
        """As after SIGKILL: nothing is left but what was saved; the round that was open is void."""
        self.crashed += 1
        past, books = self.saved
        self.fed = Federation.resume(past, self.plan, **self.options)
        self.books = self.nodes.books = {number: book.copied() for number, book in books.items()}
        assert all(s.roster in self.books for s in self.sent)  # nothing was sent of a roster that was not saved
        for number in self.fed.rosters:
            self.books[number].crashes()
        self.unsure, self.said = set(self.nodes.by_name), {}
        for name, node in self.nodes.by_name.items():
            if self.chance(0.2):
                self.nodes.restore(name)
            self.fed.enrol(node.member.enrol())
            if self.chance(0.8):
                self.hears(name)
        self.check_rosters()

    def hears(self, name: str) -> None:
        """A member says which rounds it has answered; the server charges the same, and no other."""
        answered = self.nodes.by_name[name].member.answered()
        self.fed.heard(name, answered)
        self.unsure.discard(name)
        for number, table in self.fed.rosters.items():
            if name in table.index and (number in answered or number > max(answered, default=-1)):
                mine, ended = answered.get(number, frozenset()), frozenset(range(table.rounds.count))
                assert charged(table, table.index[name]) == mine & ended
                self.said[name, number] = mine

    def check_charges(self, table: Table) -> None:
        """Charged is what came, and what a member said; the member may count more that never came, and never less."""
        book = self.books[table.number]
        for i, name in enumerate(table.names):
            came = {t for t in range(table.rounds.count) if i in book.seen(t)}
            found, mine = charged(table, i), self.nodes.by_name[name].member.answered().get(table.number)
            expected = came | (self.said.get((name, table.number), frozenset()) & frozenset(range(table.rounds.count)))
            assert found >= expected
            if name not in self.unsure:
                assert found == expected
                assert mine is None or found <= mine

    def check_rosters(self) -> None:
        for number, table in self.fed.rosters.items():
            book = self.books[number]
            assert table.server.roster_hash == book.roster.hash
            assert table.server.round == book.round
            assert table.server.closed == book.closed

    def serve(self) -> None:
        """What a server does in a round, with a crash at any point of it."""
        self.point()
        for number in self.fed.failing():
            self.wind_up(number)
        self.point()
        for number in self.fed.form(force=self.fed.cohorts.turn() is None):
            server = self.fed.rosters[number].server
            assert number not in self.books
            assert server._roster is not None
            self.books[number] = Book(server.plan, server._roster, LENGTH + self.weighted, odd=ODD)
        self.point()
        self.save()
        self.point()
        table = self.fed.turn()
        if table is not None:
            self.round(table, closing=False)

    def wind_up(self, number: int) -> None:
        table = self.fed.rosters[number]
        short = not table.server.closing and self.chance(0.1)  # ended without closing rounds
        while not table.server.closed and not short:
            self.save()
            self.round(table, closing=True)
        self.point()
        if not short:
            self.check_end(table)
        self.fed.end(number)
        self.point()
        self.save()

    def round(self, table: Table, *, closing: bool) -> None:
        book = self.books[table.number]
        table.server.announce(closing=closing)
        for name in self.random.sample(table.names, len(table.names)):
            self.point()
            self.request(table, name, closing=closing)
        for s in [s for s in self.sent if s.message and s.roster == table.number and s.place not in self.seen]:
            if self.chance(0.4):
                self.arrive(s)
        self.point()
        own, joined = book.ends(closing=closing)
        result = self.fed.close(table.number, closing=closing)
        self.point()
        assert set(result.used) == {s.client for s in own}
        assert set(result.joined) == {s.client for s in joined}
        assert {number: set(found) for number, found in result.left_out.items()} == book.newly_left_out()
        assert (result.total is None) == (not own + joined)
        if result.total is not None:
            self.check_sum(table, result, own + joined)
        self.check_charges(table)
        if self.chance(0.5):
            self.save()

    def request(self, table: Table, name: str, *, closing: bool) -> None:
        fate = self.random.choices(["arrives", "lost", "held", "away"], [12, 1, 1, 2])[0]
        node = self.nodes.by_name[name]
        last = max(node.member.answered().get(table.number, ()), default=0)
        since = self.random.choice([0, min(last, table.server.round)])
        start = table.server.announce(since=since, closing=closing)
        if fate == "away":
            return
        table.rounds.asked(table.server.round, table.index[name])
        if fate == "held":
            node.inbox.append((table.server.roster(), start))
            return
        if self.chance(0.04):
            self.nodes.ask_while_the_disk_fails(name, table.server.roster(), start)
            return
        sent = self.nodes.ask(name, table.server.roster(), start)
        if sent is not None and fate == "arrives":
            self.arrive(sent)

    def check_sum(self, table: Table, result: Any, released: list[Sent]) -> None:
        """The sum is that of the uploads, rounded once; these are data, noise and what theory names."""
        book = self.books[table.number]
        rounded = np.sum([np.rint(s.fine / 2**book.grid.shift) for s in released], axis=0)
        assert np.array_equal(np.rint(result.total / book.grid.wire_step), rounded[:LENGTH])
        found = np.sum([s.fine - s.data for s in released], axis=0, dtype=np.int32)
        assert np.array_equal(found, book.expected(self.nodes.pairs, released, self.sent))
        book.left += found

    def check_end(self, table: Table) -> None:
        """After the closing rounds only noise that could not be repaired is left of a roster; ledgers agree."""
        book = self.books[table.number]
        assert book.closed
        assert np.array_equal(book.left, book.owed(self.nodes.pairs, self.sent))
        costs = table.rounds.odometer.counted().squares()
        for i, name in enumerate(table.names):
            mine = [s for s in self.sent if (s.name, s.roster) == (name, table.number)]
            client = self.nodes.by_name[name].member._clients.get(table.number)
            found = charged(table, i)
            if name in self.unsure or client is None or found & client._state.closing:
                continue  # the server counts rounds that it cannot know as if they had been answered, with data
            assert total(costs[i]) <= total(client.squares(worst=True)) * (1 + 1e-12)
            alike = found == client.answered - client._state.closing and not self.plan.repairs
            if alike and self.plan.late_is_seen:  # a round costs the same, whoever is in it
                assert costs[i] == client.squares(worst=False)
            elif all(i in book.used[s.round] for s in mine) and book.round - 1 in {s.round for s in mine}:
                assert costs[i] == client.squares(worst=False)  # both know the same
            else:
                continue
            self.equal += 1

    def finish(self) -> None:
        """Ledgers of all members, in all rosters: never below what was revealed, never over the budget."""
        self.crash_rate = 0.0
        budget = gaussian.mu(self.plan.budget, self.plan.delta, up=True)
        known = [
            s
            for book in self.books.values()
            for t in range(book.round)
            for s in self.sent
            if s.message and (s.roster, s.round) == (book.roster.number, t) and s.client in book.seen(t)
        ]
        for name in self.nodes.by_name:
            self.hears(name)  # afterwards the server charges exactly what each member counts
        for table in self.fed.rosters.values():
            self.check_charges(table)
        spent = self.fed.epsilon()
        for name in self.nodes.by_name:
            seen = exact_mu(self.books, known, name)
            if seen > 0 and self.plan.sampling_rate == 1:
                assert gaussian.epsilon(seen, self.plan.delta) <= spent[name] * (1 + 1e-9)
        for number in [*self.fed.rosters]:
            self.wind_up(number)
        assert not masks_used_twice(self.sent)
        made = [s for s in self.sent if s.message]
        for name, node in self.nodes.by_name.items():
            exact = exact_mu(self.books, made, name)
            assert exact <= node.member.mu(worst=True) * (1 + 1e-9)
            assert exact <= budget or not node.member._keeps
            assert exact == 0 or node.member.epsilon() > 0 or not self.plan.late_is_seen


def charged(table: Table, client: int) -> set[int]:
    """Rounds with data that the server counts for a client."""
    sets = enumerate(map(table.rounds.seen, range(table.rounds.count)))
    return {t for t, (on_time, used, other) in sets if client in other or client in (on_time if used is None else used)}


def total(squares: Mapping[float, int]) -> float:
    return math.fsum(square * count for square, count in squares.items())


CASES: dict[str, dict[str, Any]] = {
    "repair": {},
    "grace": {"grace": 1},
    "exact": {"calibration": "exact"},
    "exact-grace": {"calibration": "exact", "grace": 1},
    "sparse": {"clients": 6, "population": 12, "degree": 4},
    "unseen": {"late": "unseen"},
    "sampled": {"unit": "record", "sampling_rate": 0.2, "calibration": "exact", "rounds": 4},
    "one-roster": {"population": None, "rounds": 8},
    "drawn": {"clients": 6, "population": 12, "masks": "drawn", "gamma": 6.0},
    "drawn-grace": {"clients": 6, "population": 12, "masks": "drawn", "gamma": 3.0, "grace": 1},
}
"""Settings of plans, beside those of `planned`."""


def scheduled(case: str, seed: int, steps: int = 30) -> World:
    """A schedule of one of `CASES`; everything else about it is chosen by the seed."""
    chosen = random.Random(f"{case} {seed}")  # noqa: S311
    plan = _plan(case)
    options: dict[str, Any] = {"least": plan.clients - chosen.randint(0, 1), "patience": chosen.randint(1, 3)}
    options |= {"consecutive": chosen.randint(1, 2), "crashes": chosen.choice([0.0, 0.005, 0.03])}
    weighted = plan.unit == "client" and chosen.random() < 0.3
    return World(seed, plan, weighted=weighted, **options).run(steps)


@lru_cache
def _plan(case: str) -> Plan:
    return planned(**CASES[case])

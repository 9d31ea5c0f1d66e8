"""Members of a federation as processes: they answer, remember, die and are restored, under observation."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

import lightdp
from lightdp import masks, stream
from lightdp.errors import BudgetError, ProtocolError
from lightdp.federation import Federation, Member, MemberState, Table
from lightdp.keys import KeyPair, Roster
from lightdp.wire import Announcement, Message
from support.federated_books import Book, Sent

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from lightdp.planning import Plan

RUN = b"a federation: 16"
LENGTH = 8


class DiskError(OSError):
    """A store could not save."""


@dataclass
class Memory:
    """A store that never loses what it saved, and fails on demand, before or after it has saved."""

    state: bytes = b""
    fails: str = ""

    def save(self, state: bytes) -> None:
        fails, self.fails = self.fails, ""
        if fails != "before":
            self.state = state
        if fails:
            raise DiskError(fails)

    def append(self, entry: bytes) -> None:
        self.save(self.state + b"\n" + entry)

    def load(self) -> bytes:
        return self.state


@dataclass
class Node:
    """A member with its store, and messages that have not reached it yet."""

    member: Member
    store: Memory
    inbox: list[tuple[bytes, bytes]] = field(default_factory=list)


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 4, "population": 8, "colluders": 1, "stragglers": 1, "rounds": 16}
    asked |= {"epsilon": 8.0, "delta": 1e-5, "unit": "client", "calibration": "repair"}
    return lightdp.plan(**(asked | changed))


class Nodes:
    """All members that ever enrolled, and every upload that left them."""

    def __init__(self, chosen: random.Random, plan: Plan, *, weighted: bool) -> None:
        self.random, self.plan, self.weighted = chosen, plan, weighted
        self.by_name: dict[str, Node] = {}
        self.sent: list[Sent] = []
        self.books: dict[int, Book] = {}  # what was announced in each roster
        self._tape: list[tuple[Any, Any, tuple[stream.Term, ...]]] = []

    @contextmanager
    def taped(self) -> Iterator[None]:
        """Watch what uploads are made of."""
        real = masks._fine

        def watched(vector: Any, grid: masks.Grid, terms: Sequence[stream.Term], keys: Any, **more: Any) -> Any:
            fine = real(vector, grid, terms, keys, **more)
            self._tape.append((real(vector, grid, [], keys), fine, tuple(terms)))
            return fine

        with mock.patch.object(masks, "_fine", watched):
            yield

    def new(self) -> Member:
        """One more member."""
        name, store = f"m{len(self.by_name):02}", Memory()
        options: Any = {"length": LENGTH, "weighted": self.weighted, "store": store}
        self.by_name[name] = Node(Member.new(self.plan, run=RUN, name=name, **options), store)
        return self.by_name[name].member

    def restore(self, name: str) -> None:
        """Nothing that was saved is lost, and nothing else was known."""
        node = self.by_name[name]
        before, facts = node.member, MemberState.from_bytes(node.store.state)
        options: Any = {"length": LENGTH, "weighted": self.weighted, "store": node.store}
        node.member = Member.restore(self.plan, **options)
        assert node.member.serial == facts.serial >= before.serial
        answered = node.member.answered()
        assert all(answered.get(number, rounds) >= rounds for number, rounds in before.answered().items())
        if node.member.serial == before.serial:
            assert node.member.answered() == before.answered()
            assert node.member.epsilon() == before.epsilon()
            assert node.member.mu(worst=True) == before.mu(worst=True)
        for number, part in facts.rosters.items():
            mine = {s.round for s in self.sent if (s.name, s.roster) == (name, number)}
            assert part.sent >= mine

    def ask_while_the_disk_fails(self, name: str, roster: bytes, start: bytes) -> None:
        """Nothing leaves while the state is not saved; a member whose store is unsure is restored from it."""
        node, count = self.by_name[name], len(self.sent)
        before = node.member.serial, node.member.answered()
        node.store.fails = self.random.choice(["before", "after"])
        try:
            self.ask(name, roster, start)
        except DiskError as error:
            assert len(self.sent) == count
            assert (node.member.serial, node.member.answered()) == before
            if str(error) == "after":
                content = Message.from_bytes(start, run=RUN, roster=Message.roster_of(start))
                number = next(number for number, book in self.books.items() if book.roster.hash == content.roster)
                self.restore(name)
                if content.round in node.member.answered().get(number, ()):  # it was saved, so it is spent
                    closing = Announcement.from_bytes(
                        content.payload,
                        round=content.round,
                        clients=self.books[number].plan.clients,
                        grace=self.plan.grace,
                    ).closing
                    self.spent(name, number, content.round, closing=closing)
        node.store.fails = ""

    def ask(self, name: str, roster: bytes, start: bytes) -> Sent | None:
        """Let a member answer an announcement, if it may."""
        member, data = self.by_name[name].member, Message.from_bytes(roster, run=RUN).payload
        number, _ = Roster.claims(bytes(data))
        content = Message.from_bytes(start, run=RUN, roster=Message.roster_of(start))
        if number < member._state.last and number not in member.answered():
            with pytest.raises(ProtocolError, match="rosters must have growing numbers"):
                member.join(roster)
            with pytest.raises(ProtocolError, match="answers no more"):
                member.begin(start)
            return None
        assert member.join(roster) == number
        if content.round <= max(member.answered()[number], default=-1):
            with pytest.raises(ProtocolError, match="was answered, or is over"):
                member.begin(start)
            return None
        try:
            begun = member.begin(start)
        except BudgetError:
            return None
        book = self.books[number]
        client = book.names.index(name)
        given = None if begun.closing else book.model(begun.number, client)
        if given is not None:
            begun.bind(given)
        if self.random.random() < 0.3:
            begun.claim()
            if self.random.random() < 0.2:
                self.spent(name, number, begun.number, closing=begun.closing)
                self.restore(name)  # the process dies before the upload is made
                return None
        update = np.array([self.random.gauss(0, 1) for _ in range(LENGTH)])
        message = begun.upload(None if begun.closing else update, self.random.random() if self.weighted else 1.0)
        with pytest.raises(ProtocolError):
            begun.upload(update)
        data, fine, terms = self._tape[-1]
        sent = Sent(name, number, client, begun.number, begun.closing, message, data, fine, terms, given)
        assert sent.place not in {s.place for s in self.sent}
        parts = book.parts(self.pairs, sent, [*self.sent, sent])
        assert {*terms} == {term for part in parts for term in part.values()}
        sent.peers = {term.key: peer for part in parts for peer, term in part.items()}
        self.sent.append(sent)
        return sent

    def spent(self, name: str, roster: int, number: int, *, closing: bool) -> None:
        """Note a round that counts as answered, and whose upload never left."""
        nothing = np.zeros(0, np.int32)
        client = self.books[roster].names.index(name)
        self.sent.append(Sent(name, roster, client, number, closing, b"", nothing, nothing, ()))

    @property
    def pairs(self) -> dict[str, KeyPair]:
        """The keys of all members."""
        return {name: node.member._state.pair for name, node in self.by_name.items()}


class Party:
    """A federation and members that do as they are asked."""

    def __init__(self, count: int, plan: Any = None, **options: Any) -> None:
        self.plan = planned() if plan is None else plan
        self.options: dict[str, Any] = {"least": self.plan.clients - 1, "patience": 1} | options
        self.fed = Federation(self.plan, length=LENGTH, run=RUN, **self.options)
        self.members: dict[str, Member] = {}
        for i in range(count):
            self.join(f"m{i:02}")

    def join(self, name: str) -> None:
        self.members[name] = Member.new(self.plan, length=LENGTH, run=RUN, name=name)
        self.fed.enrol(self.members[name].enrol())

    def make(self, table: Table, name: str, *, closing: bool = False) -> bytes:
        self.members[name].join(table.server.roster())
        start = table.server.announce(since=0, closing=closing)
        table.rounds.asked(table.server.round, table.index[name])
        return self.members[name].begin(start).upload(None if closing else np.zeros(LENGTH))

    def play(self, table: Table, names: Any = None, *, closing: bool = False) -> Any:
        table.server.announce(closing=closing)
        table.rounds._asked.setdefault(table.server.round, set())  # who is not named was not asked
        for name in table.names if names is None else names:
            self.fed.receive(self.make(table, name, closing=closing), sender=name)
        return self.fed.close(table.number, closing=closing)

    def crash(self) -> None:
        self.fed = Federation.resume(self.fed.past(), self.plan, **self.options)

    def first(self) -> Table:
        self.fed.form(force=True)
        return self.fed.rosters[0]

"""A server of members that says what it likes: any rosters, any histories, to each member others."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from lightdp import masks
from lightdp.errors import BudgetError, ProtocolError
from lightdp.federation import Member
from lightdp.keys import Keyring, Roster
from lightdp.protocol.vector import agreement
from lightdp.wire import Announcement, Kind, Message
from support.federated_books import Book, Sent, exact_mu
from support.federated_nodes import RUN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightdp.auditing._stories import Telling
    from lightdp.client_set import ClientSet
    from lightdp.planning import Plan

LENGTH = 2


def roster_message(roster: Roster) -> bytes:
    return Message(kind=Kind.ROSTER, run=RUN, payload=roster.to_bytes()).to_bytes()


def announcement(
    roster: Roster, number: int, past: Sequence[tuple[ClientSet, ...]] = (), *, grace: int = 0, closing: bool = False
) -> bytes:
    told = tuple(each for sets in past for each in sets)
    content = Announcement(round=number, clients=len(roster), grace=grace, past=told, closing=closing)
    return Message(kind=Kind.ANNOUNCE, run=RUN, round=number, roster=roster.hash, payload=content.to_bytes()).to_bytes()


class Liar:
    """Members of a federation, and everything that a server which they must not trust got out of them."""

    def __init__(self, plan: Plan, members: int) -> None:
        self.plan = plan
        self.members = [Member.new(plan, length=LENGTH, run=RUN, name=f"m{i:02}") for i in range(members)]
        self.books: dict[int, Book] = {}  # of all rosters that were ever made, also of one number
        self.seen: list[Sent] = []
        self.refused = 0
        self._planned = lru_cache(plan.among)
        self._ends: dict[bytes, tuple[str, str]] = {}

    def roster(self, members: Iterable[int], number: int) -> int:
        """A roster of some members; returns its place among the books, which need not be its number."""
        chosen = [self.members[i]._state.enrolment for i in members]
        plan = self._planned(len(chosen))
        agreed = agreement(plan, LENGTH, weighted=False)
        made = Roster.of(chosen, run=RUN, plan=agreed, number=number)
        self.books[len(self.books)] = Book(plan, made, LENGTH)
        return len(self.books) - 1

    def tell(self, at: int, telling: Telling) -> bool:
        """Ask a client of a roster for an upload, as a story has it; returns whether it answered."""
        book, past = self.books[at], telling.past
        name = book.names[telling.client]
        member = next(each for each in self.members if each.name == name)
        shape: Any = {"grace": book.plan.grace, "closing": telling.closing}
        try:
            member.join(roster_message(book.roster))
            begun = member.begin(announcement(book.roster, len(past), past, **shape))
            given = None if begun.closing else book.model(begun.number, telling.client)
            if given is not None:
                begun.bind(given)
            with self._taped(book) as tape:
                message = begun.upload(None if telling.closing else np.zeros(LENGTH))
        except (BudgetError, ProtocolError):
            self.refused += 1
            return False
        nothing, (terms,) = np.zeros(0, np.int32), tape
        sent = Sent(name, at, telling.client, begun.number, begun.closing, message, nothing, nothing, tuple(terms))
        for term in terms:
            first, second = self._ends[term.key]
            sent.peers[term.key] = second if first == name else first
        self.seen.append(sent)
        return True

    def exact(self, name: str = "m00") -> float:
        """The μ of all that the server has seen of a member."""
        return exact_mu(self.books, self.seen, name)

    def _taped(self, book: Book) -> Any:
        return _Tape(book, self._ends)


class _Tape:
    """While it is open, what uploads are made of, and who shares each key."""

    def __init__(self, book: Book, ends: dict[bytes, tuple[str, str]]) -> None:
        self._book, self._ends, self._patches = book, ends, list[Any]()

    def __enter__(self) -> list[Any]:
        found: list[Any] = []
        fine, keys = masks._fine, Keyring.stream_keys

        def taped(vector: Any, grid: Any, terms: Any, own: Any, **more: Any) -> Any:
            found.append(list(terms))
            return fine(vector, grid, terms, own, **more)

        def noted(ring: Keyring, peers: Iterable[int], **place: Any) -> dict[int, bytes]:
            made = keys(ring, peers, **place)
            self._ends.update({key: (self._book.names[ring.me], self._book.names[j]) for j, key in made.items()})
            return made

        self._patches = [mock.patch.object(masks, "_fine", taped), mock.patch.object(Keyring, "stream_keys", noted)]
        for patch in self._patches:
            patch.start()
        return found

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()


def interleaved(*stories: Sequence[Telling]) -> Iterator[tuple[int, Telling]]:
    """One telling of each story after the other, with the place of its story."""
    for turn in range(max(map(len, stories))):
        for at, story in enumerate(stories):
            if turn < len(story):
                yield at, story[turn]

"""What must be true of a federation, kept by hand beside it: sets, sums and costs of every roster, from the theory."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lightdp import masks, stream
from lightdp.auditing._signs import worst_signs
from lightdp.client_set import ClientSet
from lightdp.keys import KeyPair, Keyring, Roster, link
from lightdp.repair import RETRIES
from support.ballots import Ballot, early
from support.repair_rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from lightdp.planning import Plan


@dataclass(eq=False)
class Sent:
    """One upload as it left a member: its bytes, and what it was made of in fine steps."""

    name: str
    roster: int
    client: int
    round: int
    closing: bool
    message: bytes
    data: NDArray[np.int32]  # rounded data and individual noise
    fine: NDArray[np.int32]
    terms: tuple[stream.Term, ...]
    given: bytes | None = None  # what its round was bound to
    peers: dict[bytes, str] = field(default_factory=dict)  # with whom each key is shared

    @property
    def place(self) -> tuple[str, int, int]:
        return self.name, self.roster, self.round


@dataclass(eq=False)
class Book:
    """One roster: who was used when, by the rules of (R5), and the pairwise noise that its sums left in the model."""

    plan: Plan
    roster: Roster
    length: int
    odd: int = 0  # in 256 rounds of a member, that it binds to something other than most
    used: list[frozenset[int]] = field(default_factory=list)
    on_time: list[frozenset[int]] = field(default_factory=list)
    closings: frozenset[int] = frozenset()
    ballots: defaultdict[int, Ballot[Sent]] = field(default_factory=lambda: defaultdict(Ballot))  # of each round
    late: dict[int, frozenset[int]] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()  # rounds that waited for more uploads when the server crashed
    released: tuple[Sent, ...] = ()
    left: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.left = np.zeros(self.length, np.int32)
        self.names = list(self.roster.names)
        self.grid = masks.Grid.of(self.plan, self.length)
        self.rings: dict[int, Keyring] = {}

    def copied(self) -> Book:
        result = Book(self.plan, self.roster, self.length, self.odd, list(self.used), list(self.on_time), self.closings)
        result.ballots.update((number, ballot.copied()) for number, ballot in self.ballots.items())
        result.late, result.dead = dict(self.late), self.dead
        result.released, result.left, result.rings = self.released, self.left.copy(), self.rings
        return result

    @property
    def round(self) -> int:
        return len(self.on_time)

    @property
    def closed(self) -> bool:
        return len(self.closings) == 1 + self.plan.grace

    def least(self, number: int) -> int:
        return 0 if number in self.closings else self.plan.clients - self.plan.stragglers

    def takes(self, s: Sent) -> bool:
        """Whether an upload can still be in a sum; the present round must have been announced."""
        open_ = s.round >= self.round - self.plan.grace and not (self.closed and s.round < self.round)
        return open_ and self.ballots[s.round].takes(s)

    def has(self, s: Sent) -> bool:
        """Whether an upload of this member and round has come before."""
        used = self.used[s.round] if s.round < len(self.used) else frozenset[int]()
        before = self.ballots[s.round]
        came = any(s.client == each.client for each in before.came)
        return came or s.client in before.left_out | used | self.late.get(s.round, frozenset())

    def receives(self, s: Sent) -> None:
        """Note an upload that has come."""
        if s.round >= len(self.used):
            self.ballots[s.round].receives(s)
        else:
            self.late[s.round] = self.late.get(s.round, frozenset()) | {s.client}

    def seen(self, number: int) -> frozenset[int]:
        """Clients of whom an upload of a round has come, at any time."""
        ballot = self.ballots[number]
        return frozenset(s.client for s in ballot.came) | ballot.left_out | self.late.get(number, frozenset())

    def newly_left_out(self) -> dict[int, frozenset[int]]:
        """Clients that the last round must name: of it, and of the one whose set is final since."""
        rounds = {self.round - 1, max(self.round - 1 - self.plan.grace, 0)}
        return {number: found for number in rounds if (found := self.ballots[number].newly_left_out())}

    def ends(self, *, closing: bool) -> tuple[list[Sent], list[Sent]]:
        """(R5): uploads that the sum of the open round holds: its own, and those of the round before."""
        number, nobody = self.round, frozenset[int]()
        self.closings |= {number} if closing else nobody
        now = self.ballots[number]
        now.settles(early(self.plan) if self.plan.grace and not closing else 1)
        self.on_time.append(frozenset(s.client for s in now.came if now.chosen))
        final, own, joined = number - self.plan.grace, list[Sent](), list[Sent]()
        if self.plan.grace and now.chosen and len(now.came) >= self.least(number):
            own = list(now.came)
        if final >= 0:
            self.ballots[final].settles()
            settled = self.ballots[final].came
            counts = final not in self.dead and len(settled) >= self.least(final)
            self.used.append(frozenset(s.client for s in settled) if counts else nobody)
            joined = [s for s in settled if counts and s not in self.released]
            late = self.ballots[final].left_out | (nobody if counts else frozenset(s.client for s in settled))
            self.late |= {final: late} if late else {}
        if self.plan.grace and self.closed:
            self.used.append(self.on_time[-1])
        self.released += (*own, *joined)
        return (own, joined) if self.plan.grace else (joined, [])

    def crashes(self) -> None:
        """The server that resumes has lost all uploads that are in no sum, and declares the open round void."""
        for number in range(max(self.round - self.plan.grace, 0), self.round):
            self.ballots[number].crashes(self.on_time[number])
            enough = len(self.ballots[number].came) >= self.least(number)
            self.dead |= frozenset[int]() if enough else {number}
        self.ballots.pop(self.round, None)
        if not self.closed:
            self.ends(closing=bool(self.closings))

    def chain(self, number: int) -> bytes:
        result, nobody = self.roster.hash, frozenset[int]()
        for t in range(number):
            sets = [(self.used[t - 1] if t > 0 else nobody), self.on_time[t]] if self.plan.grace else [self.used[t]]
            announced = b"".join(ClientSet.of(self.plan.clients, each).to_bytes() for each in sets)
            result = link(result, round=t, announcement=announced)
        return result

    def model(self, number: int, client: int) -> bytes | None:
        """What a member binds a round with data to: nearly all to the same; where they need not, every second one."""
        bound = number % 2 == 1 or self.plan.masks.kind == "drawn"
        drawn = hashlib.sha256(b"%d %d" % (number, client) + self.roster.hash).digest()[0]
        odd = drawn % 3 if drawn < self.odd else 3  # three models beside the right one
        return hashlib.sha256(b"%d %d" % (number, odd)).digest() if bound or odd < 3 else None

    def neighbours(self, client: int) -> list[int]:
        found: list[int] = self.plan.graph.neighbours()[client].tolist()
        return found

    def pairwise(
        self, pairs: Mapping[str, KeyPair], client: int, of: int, peers: Iterable[int], *, undo: bool = False
    ) -> dict[str, stream.Term | stream.Draw]:
        """Noise of a round that a member shares with each of its peers, from its keys and what was announced."""
        if client not in self.rings:
            self.rings[client] = Keyring(pairs[self.names[client]], self.roster, client)
        chain = self.chain(of)
        if (given := self.model(of, client)) is not None:
            chain = hashlib.sha256(b"lightdp given" + chain + given).digest()
        keys = self.rings[client].stream_keys(peers, round=of, chain=chain)
        terms = masks.pairwise_terms(keys, client, self.grid, undo=undo)
        return {self.names[peer]: term for peer, term in zip(keys, terms, strict=bool(terms))}

    def rules(self, client: int, sent: Sequence[Sent]) -> Rules:
        """(R1): what a member repairs when. Rounds without data leave nothing to repair."""
        rounds = [s.round for s in sent if (s.roster, s.client) == (self.roster.number, client)]
        used = self.used if self.plan.repairs else []
        return Rules(client, self.neighbours(client), used, rounds, self.plan.grace)

    def parts(
        self, pairs: Mapping[str, KeyPair], s: Sent, sent: Sequence[Sent]
    ) -> list[dict[str, stream.Term | stream.Draw]]:
        """The pairwise noise that an upload must hold: that of its round, and what it takes out again."""
        own = {} if s.closing else self.pairwise(pairs, s.client, s.round, self.neighbours(s.client))
        rules = self.rules(s.client, sent)
        of = rules.carries(s.round)
        undone = {} if of is None else self.pairwise(pairs, s.client, of, rules.absent(of), undo=True)
        return [own, undone]

    def expected(
        self, pairs: Mapping[str, KeyPair], released: Sequence[Sent], sent: Sequence[Sent]
    ) -> NDArray[np.int32]:
        """What a sum holds beside data and individual noise, in fine steps."""
        result = np.zeros(self.length, np.int32)
        for s in released:
            beside = {other.client for other in released if other.round == s.round}
            alone = [j for j in self.neighbours(s.client) if j not in beside]
            if not s.closing:
                stream.accumulate(result, [*self.pairwise(pairs, s.client, s.round, alone).values()])
            stream.accumulate(result, [*self.parts(pairs, s, sent)[1].values()])
        return result

    def owed(self, pairs: Mapping[str, KeyPair], sent: Sequence[Sent]) -> NDArray[np.int32]:
        """What a closed roster leaves in the model: noise of rounds whose repair no used upload carried."""
        result = np.zeros(self.length, np.int32)
        for client in range(self.plan.clients):
            rules = self.rules(client, sent)
            for of in range(len(self.used)):
                absent = (
                    ()
                    if of in self.closings or client not in self.used[of]
                    else tuple(j for j in self.neighbours(client) if j not in self.used[of])
                )
                paid = self.plan.repairs and "used" in rules.fates(of, len(self.used) + self.plan.grace)
                if absent and not paid:
                    stream.accumulate(result, [*self.pairwise(pairs, client, of, absent).values()])
        return result


def masks_used_twice(sent: Sequence[Sent]) -> list[tuple[str, bytes]]:
    """Stream keys that a member added in two uploads, or took out more often than (R1) allows, or before it added."""
    added, undone = Counter[tuple[str, bytes]](), Counter[tuple[str, bytes]]()
    first: dict[tuple[str, bytes], int] = {}
    for s in sent:
        for term in s.terms:
            use = s.name, term.key
            if use not in first:
                first[use] = term.sign
            (added if term.sign == first[use] else undone)[use] += 1
    twice = [use for use, count in added.items() if count > 1]
    return twice + [use for use, count in undone.items() if count > 1 + RETRIES]


def exact_mu(books: Mapping[int, Book], seen: Sequence[Sent], name: str) -> float:
    """(E2), (C1): the μ of everything that a server and the colluders of each roster have seen of a member.

    Keys of all rosters stand side by side: noise that two rosters shared would show here.
    """
    rows: list[dict[object, float]] = []
    mine: list[int] = []
    helpers = {number: colluders(book, name) for number, book in books.items() if name in book.names}
    for s in seen:
        if s.roster not in helpers or s.name in helpers[s.roster]:
            continue
        plan = books[s.roster].plan
        row: dict[object, float] = {s.place: plan.sigma_individual}
        for term in s.terms:
            if s.peers[term.key] not in helpers[s.roster]:
                row[term.key] = row.get(term.key, 0.0) + term.sign * plan.sigma_pairwise
        if s.name == name and not s.closing:
            mine.append(len(rows))
        rows.append(row)
    if not mine:
        return 0.0
    columns = {key: at for at, key in enumerate({key for row in rows for key in row})}
    matrix = np.zeros((len(rows), len(columns)))
    for at, row in enumerate(rows):
        matrix[at, [columns[key] for key in row]] = list(row.values())
    precision = np.linalg.inv(matrix @ matrix.T)[np.ix_(mine, mine)]
    return math.sqrt(worst_signs(precision)[0]) * next(iter(books.values())).plan.sensitivity


def colluders(book: Book, name: str) -> list[str]:
    """As many as the plan allows: the last neighbours of a member, who know most of it."""
    near = [book.names[j] for j in book.neighbours(book.names.index(name))]
    far = [each for each in book.names if each not in near and each != name]
    return [*reversed(near), *far][: book.plan.colluders]

"""A client over all rosters of a federation: one enrolment, one ledger, one state (C1)."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn, Self, SupportsIndex

from lightdp import gaussian, masks
from lightdp._validate import integer
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.federation._state import MemberState
from lightdp.keys import Identity, KeyPair, Pins, Roster
from lightdp.planning import Plan, Request
from lightdp.protocol import Client, ClientRound, ClientState, File, Store
from lightdp.protocol.enrolments import challenge
from lightdp.protocol.host import Host
from lightdp.protocol.state import Entry
from lightdp.protocol.store import appended
from lightdp.protocol.vector import Floats, agreement
from lightdp.wire import Kind, Message

_LIVE = 4  # rosters that a member answers: one, and others that are about to be closed
_solved = lru_cache(maxsize=64)(Plan.from_json)  # a stateless member computes its rosters' plans with each message


@lru_cache(maxsize=64)
def _asked(text: str, clients: int) -> tuple[Request, str]:
    """The request of a roster of so many clients, and its text."""
    asked = Request.from_json(text).among(clients)
    return asked, asked.to_json()


@contextmanager
def _no_plan(clients: int) -> Iterator[None]:
    try:
        yield
    except ArgumentError as error:
        raise ProtocolError(f"a roster of this federation cannot have {clients} clients: {error}") from None


class Member:
    """A client of a federation, made by `Member.new` or, from its stored state, by `Member.restore`.

    It enrols once. Each roster that it joins is a `Client` with the same keys and a plan that follows from the
    federation's by `Plan.among`.

    Formal guarantees, whatever bytes arrive, beside those of each `Client`:
    - one budget for all rosters: `begin` raises `BudgetError`, and nothing leaves, if the round could take what this
      member has spent in all of them, each at its worst (W5), over the plan's (ε, δ) (C1);
    - no mask is used in two rosters: their numbers grow, and the number is in every key (W3);
    - the state of all rosters is one value, saved before anything leaves.

    >>> import lightdp, numpy
    >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=4, epsilon=8, delta=1e-5, unit="client")
    >>> federation = lightdp.Federation(plan, length=4, run=bytes(16))
    >>> members = [lightdp.Member.new(plan, length=4, run=bytes(16), name=name) for name in ("ann", "bob", "eve")]
    >>> [federation.enrol(member.enrol()) for member in members]
    ['ann', 'bob', 'eve']
    >>> federation.form()
    [0]
    >>> table = federation.turn()
    >>> for member in members:
    ...     _ = member.join(table.server.roster(member.name))
    ...     _ = federation.receive(member.begin(table.server.announce()).upload(numpy.full(4, 0.1)))
    >>> list(federation.close(table.number).used)
    [0, 1, 2]

    Attributes:
        plan: of the federation.
        length: number of values of an update.
        weighted: whether updates carry weights.
    """

    def __init__(
        self,
        plan: Plan,
        state: MemberState,
        *,
        pins: Pins | None = None,
        store: Store | None = None,
        threads: int | None = 1,
        accept: Callable[[Request], None] | None = None,
    ) -> None:
        self.plan, self.length, self.weighted = plan, state.length, state.weighted
        masks.Grid.of(plan, state.length + state.weighted)  # refuses plans that clients cannot keep
        self._state, self._pins, self._store, self._threads = state, pins, store, threads
        self._accept, self._process = accept, os.getpid()
        self._lock = threading.RLock()
        self._hashes: dict[int, bytes] = {}  # of the rosters that it answers
        self._distrusted: dict[int, WireError] = {}  # rosters that today's pins refuse: counted, and not answered
        self._clients = {n: self._restored(n, part) for n, part in state.rosters.items()}

    @classmethod
    def new(
        cls,
        plan: Plan,
        *,
        length: int,
        run: bytes,
        name: str,
        identity: Identity | None = None,
        pins: Pins | None = None,
        weighted: bool = False,
        store: Store | None = None,
        threads: int | None = 1,
        accept: Callable[[Request], None] | None = None,
    ) -> Member:
        """A member with a new one-time key.

        Args:
            plan: of the federation.
            length: number of values of an update.
            run: 16 bytes that name the federation.
            name: the member's name in rosters.
            identity: as for `Client.new`.
            pins: as for `Client.new`.
            weighted: as for `Client.new`.
            store: where the state lives, for `restore`; without it a restart must enrol anew.
            threads: cores that expand noise; None for all.
            accept: raises if the request of a roster's plan is beyond what this member accepts; called before that plan
                is computed.
        """
        pair = KeyPair.generate()
        signed = (Identity.generate() if identity is None else identity).enrol(pair, run=run, name=name)
        state = MemberState(plan.to_json(), integer("length", length, 1), weighted, run, pair, signed)
        return cls(plan, state, pins=pins, store=store, threads=threads, accept=accept)

    @classmethod
    def restore(
        cls,
        plan: Plan,
        *,
        length: int,
        store: Store,
        pins: Pins | None = None,
        weighted: bool = False,
        threads: int | None = 1,
        moved: bool = False,
        accept: Callable[[Request], None] | None = None,
    ) -> Member:
        """The member whose state is in `store`; it only reads. Arguments as for `new` and `Client.restore`.

        Raises:
            ArgumentError: `store` holds no state, or one of another plan, length or weights.
            ProtocolError: it was saved on another machine, or is an older copy as far as `store` can tell.
        """
        state = MemberState.from_bytes(store.load())
        if state.plan != plan.to_json() or (state.length, state.weighted) != (length, weighted):
            raise ArgumentError("plan, length and weighted must be those of the state in store")
        if not moved:
            state.host.refuse_elsewhere()
        try:
            return cls(plan, state, pins=pins, store=store, threads=threads, accept=accept)
        except (ProtocolError, WireError) as error:
            raise ArgumentError(f"store must hold a member's state, got {type(error).__name__}") from None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse copies and pickles, which would answer rounds a second time."""
        raise ProtocolError("a member must not be copied: both would answer the same rounds")

    @property
    def run(self) -> bytes:
        """16 bytes that name the federation."""
        return self._state.run

    @property
    def name(self) -> str:
        """The member's name in rosters."""
        return self._state.enrolment.name

    @property
    def serial(self) -> int:
        """The number of the state that was saved last."""
        return self._state.serial

    def answered(self) -> dict[int, frozenset[int]]:
        """The rounds that this member has answered in each roster, by the roster's number; closing ones too."""
        return {number: client.answered for number, client in self._clients.items()}

    def enrol(self) -> bytes:
        """The ENROL message: this member's signed one-time key, for all rosters of the federation."""
        with self._alone():
            if self._state.serial == 0:
                self._adopt(self._state)
        return Message(kind=Kind.ENROL, run=self.run, payload=self._state.enrolment.to_bytes()).to_bytes()

    def prove(self, nonce: bytes) -> bytes:
        """The signature by which a server tells this member from one that repeats its ENROL message.

        Args:
            nonce: 32 bytes that the server has drawn for this.
        """
        return self._state.pair.sign(challenge(self.run, nonce))

    def join(self, message: bytes) -> int:
        """Take in a ROSTER message and return the roster's number; the same one again changes nothing.

        Raises:
            WireError: it is malformed, of another federation or plan, or not to be trusted.
            ProtocolError: its number is not larger than those of all rosters before, or no plan has its size.
        """
        content = Message.from_bytes(message, run=self.run)
        if content.kind != Kind.ROSTER:
            raise ProtocolError(f"expected ROSTER, got {content.kind.name}")
        data = bytes(content.payload)
        number, clients = Roster.claims(data)
        if not 2 <= clients < 2 * self.plan.clients:
            most = 2 * self.plan.clients - 1
            raise ProtocolError(f"a roster of this federation has 2 to {most} clients, got {clients}")
        with self._alone():
            if number in self._clients and self._is_roster(data, number):
                return number
            if number <= self._state.last:
                raise ProtocolError(f"rosters must have growing numbers: {self._state.last} was joined, got {number}")
            roster = self._verified(data, clients)  # a plan may take seconds: not for bytes that anybody can write
            plan = self._planned(clients)
            agreed = agreement(plan, self.length, weighted=self.weighted)
            if roster.plan != agreed:
                raise WireError("roster is of another run or plan")
            keys = self._state.run, self._state.pair, self._state.enrolment
            part = ClientState(agreed, plan.to_json(), self.length, self.weighted, *keys, roster=roster).next()
            client = self._client(number, part)  # refuses a roster that is not to be trusted
            part = replace(part, roster=roster.to_keep())
            rosters, spent = dict(self._state.rosters) | {number: part}, Counter(self._state.spent)
            for old in sorted(rosters)[:-_LIVE]:
                spent += self._clients[old].squares(worst=self.plan.late_is_seen)
                del rosters[old]
            self._adopt(replace(self._state, rosters=rosters, spent=spent, last=number))
            self._clients = {each: client if each == number else self._clients[each] for each in rosters}
            self._hashes = {each: self._hashes[each] for each in rosters}
        return number

    def begin(self, message: bytes) -> MemberRound:
        """Take in an ANNOUNCE message of a roster and return its round, to be answered by `MemberRound.upload`.

        Raises:
            WireError: as for `Client.begin`.
            ProtocolError: as for `Client.begin`, or the message is of no roster that this member answers.
            BudgetError: the round could take this member over its budget.
        """
        with self._alone():
            wanted = Message.roster_of(message)
            for number, client in self._clients.items():
                if self._hashes[number] == wanted:
                    self._refuse_distrusted(number)
                    begun = client.begin(message, elsewhere=self._elsewhere(number, worst=self.plan.late_is_seen))
                    return MemberRound(self, begun, number, self._state.serial)
            Message.from_bytes(message, run=self.run, roster=wanted)  # refuses what is no message of this federation
            raise ProtocolError("the message is of a roster that this member has not joined, or answers no more")

    def epsilon(self, *, worst: bool = False) -> float:
        """What this member's data has cost in all rosters: an upper bound from the announcements received so far.

        Args:
            worst: as for `Client.epsilon`. Rosters that are not answered any more count at their worst in any case, or
                with late="unseen" as that assumption has it.
        """
        if not self._clients:
            return 0.0
        if self.plan.sampling_rate == 1 or (worst and self.plan.repairs):
            spent = gaussian.epsilon(self.mu(worst=worst), self.plan.delta)
        else:
            number = max(self._clients)
            counted = self._clients[number].counted(worst=worst)
            spent = float(counted.beside([self._elsewhere(number, worst=worst)]).epsilon()[0])
        return min(spent, self.plan.budget) if worst and self._keeps else spent

    def mu(self, *, worst: bool = False) -> float:
        """What this member's data has cost, as μ of μ-GDP; with sampled batches, as if they had been whole.

        Args:
            worst: as for `epsilon`.
        """
        spent = math.sqrt(math.fsum(square * count for square, count in self._elsewhere(None, worst=worst).items()))
        most = gaussian.mu(self.plan.budget, self.plan.delta, up=True)
        return min(spent, most) if worst and self._keeps else spent

    @property
    def _keeps(self) -> bool:
        """Whether the budget is kept against any server (W5)."""
        return self.plan.withstands_lies

    def _elsewhere(self, number: int | None, *, worst: bool = True) -> Counter[float]:
        """What was spent in all rosters but one."""
        clients = self._clients  # before what was spent: a roster that ends in between counts twice, not never
        result = Counter(self._state.spent)
        for other, client in clients.items():
            if other != number:
                result += client.squares(worst=worst)
        return result

    def _is_roster(self, data: bytes, number: int) -> bool:
        """Whether these are the bytes of a roster that was joined; its signatures need not be verified again."""
        try:
            return Roster.from_bytes(data, run=self.run, plan=None, verified=True).hash == self._hashes[number]
        except WireError:
            return False

    def _verified(self, data: bytes, clients: int) -> Roster:
        """A roster whose enrolments are valid and pinned, this member's among them; its plan is not compared yet."""
        roster = Roster.from_bytes(data, run=self.run, plan=None, clients=clients)
        roster.index(self._state.enrolment)
        if self._pins is not None:
            self._pins.check(roster)
        return roster

    def _planned(self, clients: int) -> Plan:
        """The plan of a roster of so many clients, if this member accepts it."""
        with _no_plan(clients):
            asked, text = _asked(self.plan.to_json(), clients)
        if self._accept is not None:
            self._accept(asked)
        with _no_plan(clients):
            return _solved(text)

    def _refuse_distrusted(self, number: int) -> None:
        if (error := self._distrusted.get(number)) is not None:
            raise WireError(f"roster {number} is not answered any more: {error}")

    def _restored(self, number: int, part: ClientState) -> Client:
        """The client of a roster that was joined; pins may have changed since."""
        try:
            return self._client(number, part)
        except WireError as error:
            self._distrusted[number] = error
            return self._client(number, part, pinned=False)

    def _client(self, number: int, part: ClientState, *, pinned: bool = True) -> Client:
        if part.roster is None or part.roster.number != number:
            raise ProtocolError(f"the state must hold roster {number}")
        plan, store = self._planned(len(part.roster)), _Part(self, number)
        self._hashes[number] = part.roster.hash
        if agreement(plan, self.length, weighted=self.weighted) != part.agreement:
            raise ProtocolError(f"the state must hold a roster of this plan, got roster {number}")
        pins = self._pins if pinned else None
        return Client(
            plan, part, length=self.length, pins=pins, weighted=self.weighted, store=store, threads=self._threads
        )

    def _alone(self) -> AbstractContextManager[object]:
        """The lock under which a message is handled; refused in another process than the member's."""
        if os.getpid() != self._process:
            raise ProtocolError("the member belongs to the process that this one was forked from; make it here")
        return self._lock

    def _adopt(self, state: MemberState) -> None:
        """Go on from `state` once it is saved."""
        if state.serial == 0 and isinstance(self._store, File):
            state = replace(state, serial=self._store.last())  # the file's numbers never start again
        state = state.next()
        if self._store is not None:
            self._store.save(state.to_bytes())
        self._state = state

    def _save(self, number: int, part: bytes) -> None:
        """Save the state of one roster together with all others."""
        with self._alone():
            self._refuse_ended(number)
            parts = dict(self._state.rosters) | {number: ClientState.from_bytes(part)}
            self._adopt(replace(self._state, rosters=parts))

    def _append(self, number: int, line: bytes) -> None:
        """Keep one more entry of a roster; a state that was lost, or saved on another machine, is saved as a whole."""
        with self._alone():
            self._refuse_ended(number)
            before, entry = self._state, Entry.of(json.loads(line))
            state = before.after(number, entry)
            if before.host == Host.here() and appended(self._store, before.line(number, entry)):
                self._state = state
            else:
                self._adopt(replace(state, serial=before.serial))

    def _refuse_ended(self, number: int) -> None:
        if number not in self._state.rosters:
            raise ProtocolError(f"roster {number} is not answered any more")


class _Part:
    """Where the `Client` of one roster keeps its state: in the member's."""

    def __init__(self, member: Member, number: int) -> None:
        self._member, self._number = member, number

    def save(self, state: bytes) -> None:
        """Keep the newest state."""
        self._member._save(self._number, state)  # noqa: SLF001  the two are one machine

    def append(self, entry: bytes) -> None:
        """Keep one more entry."""
        self._member._append(self._number, entry)  # noqa: SLF001

    def load(self) -> bytes:
        """The newest state."""
        return self._member._state.rosters[self._number].to_bytes()  # noqa: SLF001


class MemberRound:
    """A round of one roster that a member has begun and may answer, once.

    Attributes:
        number: of the round.
        closing: whether it carries no data and only repairs what stragglers left (R4).
        roster: the number of its roster.
    """

    def __init__(self, member: Member, begun: ClientRound, roster: int, serial: int) -> None:
        self.number, self.closing, self.roster = begun.number, begun.closing, roster
        self._member, self._begun, self._serial = member, begun, serial
        self._claimed = False

    @property
    def binds(self) -> bool:
        """As `ClientRound.binds`."""
        return self._begun.binds

    def bind(self, given: bytes) -> Self:
        """As `ClientRound.bind`."""
        self._begun.bind(given)
        return self

    def claim(self) -> None:
        """As `ClientRound.claim`."""
        with self._fresh():
            self._begun.claim()
            self._claimed = True

    def upload(self, update: Floats | None, weight: float = 1.0) -> bytes:
        """As `ClientRound.upload`."""
        with self._fresh():
            return self._begun.upload(update, weight)

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """Hold the member while the round is answered; refused if the member has changed since it was begun."""
        with self._member._alone():  # noqa: SLF001  the two classes are one machine
            if not self._claimed and self._member.serial != self._serial:  # another roster may have spent since
                raise ProtocolError(f"round {self.number} was begun before another was answered; begin it again")
            yield

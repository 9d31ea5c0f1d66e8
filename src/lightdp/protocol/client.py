"""The client: enrols, joins a roster, and answers each round once, with one masked upload."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn, SupportsIndex

from lightdp import gaussian, masks
from lightdp._validate import integer
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.keys import Identity, KeyPair, Pins, Roster
from lightdp.planning import Plan
from lightdp.protocol.client_round import ClientRound
from lightdp.protocol.history import ClientHistory
from lightdp.protocol.host import Host
from lightdp.protocol.seat import Seat
from lightdp.protocol.state import ClientState, Entry
from lightdp.protocol.store import File, Store, appended
from lightdp.protocol.vector import Floats, agreement, clipped, rotation
from lightdp.wire import Announcement, Kind, Message

_EARLIER = "the client's roster is of an earlier version, with other noise: go on in a new run"


class Client:
    """One client of one run, made by `Client.new` or, from its stored state, by `Client.restore`.

    Formal guarantees, whatever bytes arrive:
    - at most one upload leaves for each round, also after a restart from `store` or if several threads ask (W3);
      copies of the client are refused, and so is a client after its process was forked;
    - what leaves is signed for its place in the run, so that nobody else can answer in this client's name;
    - what leaves is clipped to the plan's sensitivity (the whole vector for unit "client"; for unit "record" the
      caller clips each record), clamped to the plan's range, and carries the plan's noise;
    - `begin` raises `BudgetError`, and nothing leaves, if the round could exceed the budget (R2);
    - with drawn masks nothing leaves for a round with data that is not bound to its model (`ClientRound.bind`, B2);
    - a message that is malformed (`WireError`) or contradicts the protocol (`ProtocolError`) changes nothing;
    - the state is a value: each step makes the next one, saves it, and goes on from it only then. If `store` fails,
      nothing leaves and nothing has changed.

    Two clients and a server, in one round:

    >>> import lightdp, numpy
    >>> plan = lightdp.plan(
    ...     clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5, unit="client", calibration="repair"
    ... )
    >>> server = lightdp.Server(plan, length=4, run=bytes(16))
    >>> clients = [lightdp.Client.new(plan, length=4, run=bytes(16), name=name) for name in ("ann", "bob")]
    >>> [server.enrol(client.enrol()) for client in clients]
    ['ann', 'bob']
    >>> for client in clients:
    ...     client.join(server.roster(client.name))
    >>> start = server.announce()
    >>> [server.receive(client.begin(start).upload(numpy.full(4, 0.1))) for client in clients]
    [True, True]
    >>> list(server.close().used)
    [0, 1]
    >>> 0 < clients[0].epsilon() <= plan.budget
    True

    Attributes:
        plan: the noise.
        length: number of values of an update.
        weighted: whether updates carry weights.
        threads: cores that expand noise; None for all.
    """

    def __init__(
        self,
        plan: Plan,
        state: ClientState,
        *,
        length: int,
        pins: Pins | None,
        weighted: bool,
        store: Store | None,
        threads: int | None,
    ) -> None:
        self.plan, self.length, self.weighted, self.threads = plan, length, weighted, threads
        self._grid = masks.Grid.of(plan, length + weighted)  # refuses plans that clients cannot keep
        self._turn = rotation(plan, length + weighted, state.run)
        self._state, self._pins, self._store = state, pins, store
        self._process = os.getpid()
        self._lock = threading.Lock()  # what is decided on a state is done before another message is looked at
        self._seat: Seat | None = None
        self._history: ClientHistory | None = None
        self._claimed: ClientHistory | None = None  # of the round that is counted as answered before its upload is made
        if state.roster is not None:
            self._seat = Seat(plan, state, state.roster, pins, self._grid)
            self._state = replace(state, roster=self._seat.kept)
            history = self._seat.history()
            history.sent, history.closing, history.given = state.sent, state.closing, state.given
            for told in state.rounds:
                history.adopt(told)
            self._history = history

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
    ) -> Client:
        """A client with a new one-time key.

        Args:
            plan: the noise; the roster binds it, so that clients with another plan are refused.
            length: number of values of an update.
            run: 16 bytes that name the run.
            name: the client's name in the roster.
            identity: long-lived key that signs the one-time key; by default a new one.
            pins: identities expected of peers. A client that is not among them counts as a colluder: a roster with
                more than the plan's colluders of them is refused, so that a server cannot invent peers. On a random
                graph a client sees its neighbours alone, and refuses more of them than is usual (S1).
            weighted: whether updates carry weights in [0, 1], with their sum aggregated beside them (P5).
            store: where the state lives, for `restore`; without it a restart must enrol anew.
            threads: cores that expand noise; None for all.
        """
        length, pair = integer("length", length, 1), KeyPair.generate()
        signed = (Identity.generate() if identity is None else identity).enrol(pair, run=run, name=name)
        agreed = agreement(plan, length, weighted=weighted)
        state = ClientState(agreed, plan.to_json(), length, weighted, run, pair, signed)
        return cls(plan, state, length=length, pins=pins, weighted=weighted, store=store, threads=threads)

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
    ) -> Client:
        """The client whose state is in `store`; it only reads.

        The state must be the newest: an older copy would let a round be answered twice. `File` refuses those that it
        can notice, and lets one of several clients of one state go on.

        Args:
            plan: as it was made with.
            length: as it was made with.
            store: where the state is, and where it is kept from now on.
            pins: as for `new`.
            weighted: as it was made with.
            threads: as for `new`.
            moved: whether the state may come from another machine, where nothing uses it any more.

        Raises:
            ArgumentError: `store` holds no state, or one of another plan, length or weights.
            ProtocolError: it was saved on another machine, or is an older copy as far as `store` can tell.
            WireError: its roster contradicts `pins`, which have changed since it was joined.
        """
        expected = agreement(plan, integer("length", length, 1), weighted=weighted)
        state = ClientState.from_bytes(store.load(), agreement=expected)
        if not moved:
            state.host.refuse_elsewhere()
        try:
            return cls(plan, state, length=length, pins=pins, weighted=weighted, store=store, threads=threads)
        except (ProtocolError, WireError) as error:
            if pins is not None and isinstance(error, WireError):
                raise  # the state was whole when it was saved; the pins have changed since
            raise ArgumentError(f"store must hold a client's state, got {type(error).__name__}") from None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse copies and pickles, which would answer rounds a second time."""
        raise ProtocolError("a client must not be copied: both would answer the same rounds")

    @property
    def run(self) -> bytes:
        """16 bytes that name the run."""
        return self._state.run

    @property
    def name(self) -> str:
        """The client's name in the roster."""
        return self._state.enrolment.name

    def enrol(self) -> bytes:
        """The ENROL message: this client's signed one-time key."""
        with self._alone():
            if self._state.roster is None:
                self._adopt(self._state)
        return Message(kind=Kind.ENROL, run=self.run, payload=self._state.enrolment.to_bytes()).to_bytes()

    def join(self, message: bytes) -> None:
        """Take in the ROSTER message, once.

        Raises:
            WireError: it is malformed, of another run or plan, or not to be trusted.
            ProtocolError: it is another roster than the one joined before, or that is of an earlier version.
        """
        content = Message.from_bytes(message, run=self.run)
        if content.kind != Kind.ROSTER:
            raise ProtocolError(f"expected ROSTER, got {content.kind.name}")
        agreed, clients = self._state.agreement, self.plan.clients
        roster = Roster.from_bytes(bytes(content.payload), run=self.run, plan=agreed, clients=clients)
        with self._alone():
            known = self._state.roster
            if known is None:
                seat = Seat(self.plan, self._state, roster, self._pins, self._grid)
                self._adopt(replace(self._state, roster=seat.kept))
                self._seat, self._history = seat, seat.history()
            elif not known.current:
                raise ProtocolError(_EARLIER)
            elif known.hash != roster.hash:
                raise ProtocolError("the roster must not change in a run; who joins or leaves needs a new run")

    def begin(self, message: bytes, *, elsewhere: Mapping[float, int] | None = None) -> ClientRound:
        """Take in an ANNOUNCE message and return its round, to be answered by `ClientRound.upload`.

        Nothing is answered or spent, and the client does not change: a round that was begun may be left alone.

        Args:
            message: from the server.
            elsewhere: what else was spent of the same budget, in other rosters, as `squares` returns it.

        Raises:
            WireError: the message is malformed or of another run or roster.
            ProtocolError: the round was answered before, is out of order or beyond `max_rounds`, its past
                contradicts what is known, or the roster is of an earlier version.
            BudgetError: the round could take this client over its budget.
        """
        with self._alone():
            if self._state.roster is None or self._history is None or self._seat is None:
                raise ProtocolError("the client has no roster yet")
            if not self._state.roster.current:  # its peers made other noise of the same keys
                raise ProtocolError(_EARLIER)
            content = Message.from_bytes(message, run=self.run, roster=self._state.roster.hash)
            if content.kind != Kind.ANNOUNCE:
                raise ProtocolError(f"expected ANNOUNCE, got {content.kind.name}")
            self._history.refuse_beyond(content.round)  # before anything is done with its past
            shape = {"clients": self.plan.clients, "grace": self.plan.grace}
            start = Announcement.from_bytes(content.payload, round=content.round, **shape)
            self._refuse_answered(start.round)
            history = self._history.copied()
            history.learn(start.history())
            if start.round != history.next:
                raise ProtocolError(f"expected round {history.next}, got round {start.round}")
            if start.closing:
                history.refuse_closing(masked=start.masked)
            else:
                history.odometer.admit(elsewhere)
            return ClientRound(self, self._seat, start, self._history, history)

    @property
    def answered(self) -> frozenset[int]:
        """The rounds that this client has answered, closing ones too; it answers none before the last of them."""
        return self._state.sent

    @property
    def next_round(self) -> int:
        """The first round that this client may still answer."""
        return max(self._state.sent, default=-1) + 1

    def epsilon(self, *, worst: bool = False) -> float:
        """What this client's data has cost: an upper bound from the announcements received so far.

        The last upload counts at its worst case until the next announcement says who was used; what peers repair of a
        round that came too late counts once it is announced (`begin` kept room for all of it). A closing round, which
        has no data and needs no budget, counts like any other if a server goes on after it: then this number may exceed
        the budget, and what was revealed does not.

        Args:
            worst: bound the truth at this moment for any server, whatever it announced to whom (W5). With whole
                batches that never exceeds the budget, for which `begin` kept room, unless the plan says late="unseen"
                or its graph is random: then every upload counts as seen behind its own noise alone.
                With repair, sampled batches count as whole (R2).
        """
        if self._history is None:
            return 0.0
        if worst and self.plan.repairs:
            return min(gaussian.epsilon(self.mu(worst=True), self.plan.delta), self._most)
        spent = float(self._spent(self._history, worst=worst).epsilon()[0])
        return min(spent, self._most) if worst else spent

    def mu(self, *, worst: bool = False) -> float:
        """What this client's data has cost, as μ of μ-GDP; with sampled batches, as if they had been whole.

        Args:
            worst: as for `epsilon`.
        """
        if self._history is None:
            return 0.0
        spent = float(self._spent(self._history, worst=worst).mu()[0])
        kept = worst and math.isfinite(self._most)
        return min(spent, gaussian.mu(self.plan.budget, self.plan.delta, up=True)) if kept else spent

    def counted(self, *, worst: bool = False) -> Odometer:
        """An odometer of this client that counts its last upload at its worst case; to be read.

        Args:
            worst: as for `epsilon`.

        Raises:
            ProtocolError: the client has no roster yet.
        """
        if self._history is None:
            raise ProtocolError("the client has no roster yet")
        return self._spent(self._history, worst=worst)

    def squares(self, *, worst: bool = True) -> Counter[float]:
        """μ² of every round of this client, and how many have it: they add up with those of other rosters (C1).

        Args:
            worst: as for `epsilon`; with it, all that peers may still reveal of these rounds is counted.
        """
        if self._history is None or not self._state.sent - self._state.closing:
            return Counter()  # nor can lies cost anything where no data was sent
        if self.plan.graph.random:  # for one history, whatever else
            return self._history.odometer.counted(ahead=self._history.pending, worst=worst).squares()[0]
        return self._spent(self._history, worst=worst).squares()[0]

    @property
    def _most(self) -> float:
        """The ε that is kept against any server (W5)."""
        return self.plan.budget if self.plan.withstands_lies else math.inf

    def _spent(self, history: ClientHistory, *, worst: bool) -> Odometer:
        if worst and not (self.plan.late_is_seen and not self.plan.graph.random):
            return history.odometer.alone(len(history.sent - history.closing))
        return history.odometer.counted(ahead=history.pending, worst=worst)

    def _claim(self, begun: ClientRound) -> None:
        """Count a round as answered, so that nothing but its own upload can follow."""
        with self._alone():
            self._refuse_stale(begun)
            begun._refuse_unbound()  # noqa: SLF001
            self._count(begun)
            self._claimed = begun._history  # noqa: SLF001  the two classes are one machine

    def _answer(self, begun: ClientRound, update: Floats | None, weight: float) -> bytes:
        """The upload of a round that was begun on the present state, which is saved before it is returned."""
        with self._alone():
            history = begun._history  # noqa: SLF001
            claimed = self._claimed is history
            if not claimed:
                self._refuse_stale(begun)
            begun._refuse_unbound()  # noqa: SLF001
            data = None if begun.closing else update
            vector = clipped(self.plan, data, weight, self.length, weighted=self.weighted, turn=self._turn)
            message = begun._seat.upload(  # noqa: SLF001
                vector,
                history,
                begun.number,
                closing=begun.closing,
                bare=begun.bare,
                given=begun.given,
                threads=self.threads,
            )
            if not claimed:
                self._count(begun)
            self._claimed = None
        return message

    def _count(self, begun: ClientRound) -> None:
        """Save that a round was answered."""
        after = begun._history.answered(begun.number, closing=begun.closing, given=begun.given)  # noqa: SLF001
        told = tuple(after.rounds[len(self._state.rounds) :])
        self._add(Entry(begun.number, begun.closing, told, begun.given))
        self._history = after

    def _refuse_stale(self, begun: ClientRound) -> None:
        self._refuse_answered(begun.number)
        if self._history is not begun._basis:  # noqa: SLF001
            raise ProtocolError(f"round {begun.number} was begun before another round was answered; begin it again")

    def _refuse_answered(self, number: int) -> None:
        if number < self.next_round:
            raise ProtocolError(f"round {number} was answered, or is over")

    def _alone(self) -> threading.Lock:
        """The lock under which a message is handled; refused in another process than the client's."""
        if os.getpid() != self._process:
            raise ProtocolError("the client belongs to the process that this one was forked from; make it here")
        return self._lock

    def _adopt(self, state: ClientState) -> None:
        """Go on from `state` once it is saved."""
        if state.serial == 0 and isinstance(self._store, File):
            state = replace(state, serial=self._store.last())  # the file's numbers never start again
        state = state.next()
        if self._store is not None:
            self._store.save(state.to_bytes())
        self._state = state

    def _add(self, entry: Entry) -> None:
        """Go on from the state with one more entry once that is kept; what another machine saved is written anew."""
        before, state = self._state, self._state.after(entry)
        if before.host == Host.here() and appended(self._store, before.line(entry)):
            self._state = state
        else:
            self._adopt(replace(state, serial=before.serial))

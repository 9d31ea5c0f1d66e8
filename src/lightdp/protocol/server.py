"""The server: collects enrolments, starts rounds, and adds uploads to one sum as they arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightdp import masks
from lightdp._validate import integer, octets
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Enrolment, Pins, Roster, link
from lightdp.planning import Plan
from lightdp.protocol.history import max_rounds
from lightdp.protocol.vector import agreement, rotation, weight_share
from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What a round gave.

    Attributes:
        round: its number.
        used: clients whose uploads are in the sum.
        total: the noisy sum of their updates, or None if the round was void: fewer than the minimum came. (length,)
        weight: the noisy sum of their weights, if updates are weighted and the round was not void.
    """

    round: int
    used: ClientSet
    total: NDArray[np.float64] | None
    weight: float | None

    def mean(self) -> NDArray[np.float64]:
        """total/N: the same denominator in every round, however many came (R3)."""
        if self.total is None:
            raise ProtocolError(f"round {self.round} was void: there is no mean")
        return self.total / self.used.clients


class Server:
    """The server of one run. It holds one sum, however many clients there are.

    `Client` has an example of a whole round.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5)
    >>> lightdp.Server(plan, length=4, run=bytes(16)).roster()
    Traceback (most recent call last):
    ...
    lightdp.errors.ProtocolError: 2 clients must enrol, 0 have

    Args:
        plan: as the clients have it.
        length: number of values of an update.
        run: 16 bytes that name the run.
        weighted: whether updates carry weights, as the clients have it.
        pins: the identities of all who may enrol, by name. Without them the first to use a name has it.
    """

    def __init__(
        self, plan: Plan, *, length: int, run: bytes, weighted: bool = False, pins: Pins | None = None
    ) -> None:
        if pins is not None and len(pins.identities) < plan.clients:
            raise ArgumentError(f"pins must name the plan's {plan.clients} clients, got {len(pins.identities)}")
        self.plan, self.run, self.weighted = plan, octets("run", run, 16), weighted
        self.length = integer("length", length, 1)
        self.minimum = plan.clients - plan.stragglers
        self._grid = masks.Grid.of(plan, length + weighted)
        self._turn = rotation(plan, length + weighted, run)
        self._agreement = agreement(plan, length, weighted=weighted)
        self._pins = pins
        self._enrolments: dict[str, Enrolment] = {}
        self._taken: dict[tuple[str, bytes], str] = {}  # identities and one-time keys, by whom
        self._roster: Roster | None = None
        self._used: list[ClientSet] = []  # of each past round
        self._chains: list[bytes] = []  # of each round, as it goes into its keys
        self._late: dict[int, ClientSet] = {}
        self._closing = False
        self._sum: Accumulator | None = None  # of the open round
        self._received = np.zeros(plan.clients, dtype=bool)

    def enrol(self, message: bytes) -> str:
        """Take in an ENROL message and return the client's name; a second one of a name must be the same.

        Formal guarantee: after as many enrolments as the plan has clients, `roster` succeeds, whatever else was sent.

        Raises:
            WireError: it is malformed, of another run, or contradicts the pins; nothing changed.
            ProtocolError: its name, identity or key is taken, or all clients have enrolled; nothing changed.
        """
        if self._roster is not None:
            raise ProtocolError("the roster is fixed; a client that joins later needs a new run")
        content = Message.from_bytes(message, run=self.run)
        if content.kind != Kind.ENROL:
            raise ProtocolError(f"expected ENROL, got {content.kind.name}")
        new = Enrolment.from_bytes(bytes(content.payload), run=self.run)
        if self._pins is not None:
            self._pins.check_one(new, complete=True)
        if self._enrolments.get(new.name, new) != new:
            raise ProtocolError(f"{new.name} enrolled before with other keys")
        if new.name not in self._enrolments:
            if len(self._enrolments) == self.plan.clients:
                raise ProtocolError(f"all {self.plan.clients} clients have enrolled, and {new.name} is none of them")
            keys = ("identity", new.identity), ("key", new.public)
            for key in keys:
                if key in self._taken:
                    raise ProtocolError(f"{new.name} enrolled with the {key[0]} of {self._taken[key]}")
            self._taken |= dict.fromkeys(keys, new.name)
            self._enrolments[new.name] = new
        return new.name

    def roster(self) -> bytes:
        """Fix the roster, once all have enrolled, and return the ROSTER message for everybody."""
        if self._roster is None:
            if len(self._enrolments) != self.plan.clients:
                raise ProtocolError(f"{self.plan.clients} clients must enrol, {len(self._enrolments)} have")
            self._roster = Roster.of(self._enrolments.values(), run=self.run, plan=self._agreement)
            self._chains = [self._roster.hash]
        return Message(kind=Kind.ROSTER, run=self.run, payload=self._roster.to_bytes()).to_bytes()

    @property
    def names(self) -> tuple[str, ...]:
        """The clients of the roster, by index."""
        return tuple(enrolment.name for enrolment in self._fixed().enrolments)

    @property
    def round(self) -> int:
        """The number of the open round, or of the next one."""
        return len(self._used)

    def announce(self, *, since: int | None = None, closing: bool = False) -> bytes:
        """Start the next round, or repeat its start, and return the ANNOUNCE message.

        Args:
            since: the first past round to announce; by default the last one. A client that was away from round r
                on, or whose answer to round r got lost, needs `since=r`; 0 tells everything.
            closing: the last round, without data, in which only what stragglers left is repaired (R4).

        Raises:
            ProtocolError: the run is closed, or has had as many rounds as `max_rounds` allows but one, which is left
                for the closing round.
        """
        roster = self._fixed()
        if self._sum is None:
            if self._closing:
                raise ProtocolError("the run is closed")
            if self.round >= (limit := max_rounds(self.plan)) - (not closing):
                raise ProtocolError(
                    f"a run of a plan of {self.plan.rounds} rounds has at most {limit}, with void ones and the closing "
                    "one; a longer training needs a new run"
                )
            self._sum = Accumulator(self.length + self.weighted, self._grid.bits)
            self._received[:] = False
            self._closing = closing
        elif closing != self._closing:
            raise ProtocolError(f"round {self.round} was announced with closing={self._closing}")
        first = integer("since", max(self.round - 1, 0) if since is None else since, 0, self.round)
        past = b"".join(used.to_bytes() for used in self._used[first:])
        payload = Announcement(round=self.round, clients=self.plan.clients, used=past, closing=self._closing).to_bytes()
        return Message(
            kind=Kind.ANNOUNCE, run=self.run, round=self.round, roster=roster.hash, payload=payload
        ).to_bytes()

    def receive(self, message: bytes, *, sender: str | None = None) -> bool:
        """Take in an UPLOAD: add it to the open round and return True, or record it as late and return False.

        Args:
            message: the bytes.
            sender: the name of the client that they came from, where the transport knows it.

        Raises:
            WireError: it is malformed, of another run or roster, or not signed by the client that it names, for this
                round and what was announced before it; nothing changed.
            ProtocolError: it repeats one that was taken in, or is of a round that has not begun; nothing changed.
        """
        roster = self._fixed()
        content = Message.from_bytes(message, run=self.run, roster=roster.hash)
        if content.kind != Kind.UPLOAD:
            raise ProtocolError(f"expected UPLOAD, got {content.kind.name}")
        if content.client >= self.plan.clients:
            raise ProtocolError(f"there is no client {content.client}")
        if sender is not None and sender != self.names[content.client]:
            raise ProtocolError(f"{sender} sent an upload of {self.names[content.client]}")
        upload = Upload.from_bytes(content.payload, length=self.length + self.weighted, bits=self._grid.bits)
        if content.round > self.round or (content.round == self.round and self._sum is None):
            raise ProtocolError(f"round {content.round} has not begun")
        statement = upload.statement(content, chain=self._chains[content.round])
        roster.enrolments[content.client].verify(upload.signature, statement)
        if content.round < self.round or self._sum is None:
            self._record_late(content.round, content.client)
            return False
        if self._received[content.client]:
            raise ProtocolError(f"client {content.client} has answered round {content.round} before")
        self._sum.add(upload.packed)
        self._received[content.client] = True
        return True

    def close(self) -> Aggregate:
        """End the open round with the uploads received so far."""
        if self._sum is None:
            raise ProtocolError(f"round {self.round} has not begun")
        came = ClientSet(self._received)
        enough = self._closing or len(came) >= self.minimum
        used = came if enough else ClientSet.none(self.plan.clients)
        if not enough:
            self._late[self.round] = came
        total = weight = None
        if enough:
            values = self._sum.total().astype(np.float64)
            values *= self._grid.wire_step
            if self._turn is not None:
                self._turn.invert(values)
            total = values[: self.length]
            weight = float(values[-1]) / weight_share(self.plan) if self.weighted else None
        result = Aggregate(self.round, used, total, weight)
        self._used.append(used)
        self._chains.append(link(self._chains[-1], round=result.round, announcement=used.to_bytes()))
        self._sum = None
        return result

    def late(self, round: int) -> ClientSet:  # noqa: A002  the paper's word
        """Clients whose uploads of a past round were seen but not used."""
        return self._late.get(round, ClientSet.none(self.plan.clients))

    def _record_late(self, past: int, client: int) -> None:
        late = self.late(past)
        if client in late or client in self._used[past]:
            raise ProtocolError(f"client {client} has answered round {past} before")
        self._late[past] = late | ClientSet.of(self.plan.clients, [client])

    def _fixed(self) -> Roster:
        if self._roster is None:
            raise ProtocolError("the roster is not fixed yet")
        return self._roster

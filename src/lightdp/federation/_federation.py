"""The server of a federation: who has enrolled, rosters that take turns, and what each member has spent (C1)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from lightdp import gaussian
from lightdp._validate import integer, octets
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, BudgetError, ProtocolError
from lightdp.federation._cohorts import Cohorts
from lightdp.federation._rounds import Rounds
from lightdp.keys import Pins
from lightdp.planning import Plan
from lightdp.protocol import Aggregate, Server
from lightdp.protocol.enrolments import Enrolments
from lightdp.wire import Message

_VERSION = 1
_DRAWS = 16  # numbers that a roster may try; a draw is bad once in a thousand times


class Table:
    """One roster of a federation, as the server has it.

    Attributes:
        number: of the roster.
        server: its server, with the roster fixed.
        rounds: what came in its rounds, and what that cost.
        names: its members by index.
        index: the index of each member.
    """

    def __init__(self, server: Server) -> None:
        server.roster()
        self.server, self.number, self.rounds = server, server.number, Rounds(server)
        self.names = server.names
        self.index = {name: i for i, name in enumerate(self.names)}
        self._said: dict[int, Collection[int]] = {}  # rounds that clients say they have answered

    def resume(self, server: dict[str, Any], rounds: dict[str, Any], *, announced: bool) -> None:
        """Go on from what was saved of both. A round that may have been announced since then is void."""
        self.server.resume(server)
        self.rounds.resume(rounds)
        self.rounds.crashed()
        if announced and not self.server.closed:
            self._void()

    def heard(self, client: int, answered: Collection[int]) -> None:
        """Take in which rounds a client has answered, and skip rounds that too many have answered before.

        A server has announced such rounds and lost them, if its past was an older one. It cannot announce them again:
        each is answered once. What as many clients say as may straggle changes nothing, for they may lie.
        """
        self._said[client] = answered
        last = sorted((max(rounds, default=-1) for rounds in self._said.values()), reverse=True)
        bears, known = self.server.plan.stragglers, self.rounds.count
        while not (self.server.is_open or self.server.closing or self.server.full):
            if len(last) <= bears or last[bears] < self.server.round:
                break
            self._void()
        for each, rounds in self._said.items():
            self.rounds.answered(each, rounds, since=0 if each == client else known)

    def _void(self) -> None:
        """A round without uploads, in place of one that may have been answered."""
        closing = self.server.closing or self.server.full
        if not closing:
            self.rounds.lost(self.server.round)
        self.server.announce(closing=closing)
        self.rounds.close(self.server.close(), closing=closing)


class Federation:
    """The server of a training made of rosters, without input or output.

    Members enrol at any time and wait. `form` makes rosters of those who wait; each takes its turn. A roster that has
    lost more members than it can bear is failing: `end` it, after its closing rounds, and its other members wait for
    the next. `Member` has an example of a whole round.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=20, population=100, colluders=4, stragglers=4, rounds=50, epsilon=8, delta=1e-5)
    >>> federation = lightdp.Federation(plan, length=4, run=bytes(16))
    >>> for i in range(45):
    ...     member = lightdp.Member.new(plan, length=4, run=bytes(16), name=f"member-{i:02}")
    ...     _ = federation.enrol(member.enrol())
    >>> [len(federation.rosters[number].names) for number in federation.form()]
    [23, 22]

    Formal guarantee: two rosters never have the same number, also after `resume`, if the past that is resumed was saved
    after they were formed and before anything was sent to their members.

    Args:
        plan: of a roster of `plan.clients`; others follow from it by `Plan.among`.
        length: number of values of an update.
        run: 16 bytes that name the federation.
        weighted: whether updates carry weights.
        pins: the identities of all who may enrol, by name. Without them the first to use a name has it.
        least: members of which a roster is formed if no more come; `plan.clients` by default.
        patience: how many rounds in a row a member may miss before it counts as gone.
        consecutive: rounds of a turn.

    Attributes:
        plan: as all parties compute it.
        cohorts: who waits, who is in which roster, whose turn it is.
        rosters: the rosters that take turns, by number.

    Raises:
        ArgumentError: an argument is wrong.
        InfeasibleError: there is no plan for `least` members.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        length: int,
        run: bytes,
        weighted: bool = False,
        pins: Pins | None = None,
        least: int | None = None,
        patience: int = 3,
        consecutive: int = 1,
    ) -> None:
        self.plan = Plan.from_json(plan.to_json())
        self.run, self.length, self.weighted = octets("run", run, 16), integer("length", length, 1), weighted
        self._planned = lru_cache(self.plan.among)
        self.cohorts: Cohorts[str] = Cohorts(
            plan.clients,
            bears=lambda clients: self._planned(clients).stragglers,
            least=least,
            patience=patience,
            consecutive=consecutive,
        )
        self._planned(self.cohorts.least)  # refuses what could never be formed
        self.rosters: dict[int, Table] = {}
        self._enrolments = Enrolments(self.run, pins)
        self._messages: dict[str, bytes] = {}  # of the enrolments
        self._spent: dict[str, Counter[float]] = {}  # μ² of rounds in rosters that have ended, at their worst

    @property
    def names(self) -> tuple[str, ...]:
        """All who have enrolled."""
        return tuple(self._messages)

    def enrol(self, message: bytes, *, proof: tuple[bytes, bytes] | None = None) -> str:
        """Take in an ENROL message and return the member's name; it waits, or is back in its roster.

        All members of a roster have read each other's ENROL messages, and could repeat them.

        Args:
            message: the bytes.
            proof: a nonce that was drawn for this message alone, and what `Member.prove` made of it; None if the
                transport knows who sent the message.

        Raises:
            WireError: it is malformed, of another federation, contradicts the pins, or is not proven; nothing changed.
            ProtocolError: its name, identity or key is taken; nothing changed.
        """
        name = self._enrolments.add(message, proof=proof)
        self._messages[name] = bytes(message)
        self.cohorts.join(name)
        return name

    def leave(self, name: str) -> None:
        """Let a member go: it is in no roster that is formed from now on, until it enrols again."""
        self.cohorts.leave(name)

    def form(self, *, force: bool = False) -> list[int]:
        """Form rosters of those who wait, if there are enough of them; members without budget are left out.

        Args:
            force: whether `least` are enough, as when no more will come; otherwise `plan.clients`.

        Returns:
            The numbers of the new rosters.
        """
        for name in [name for name in self.cohorts.waiting if not self.has_room(name)]:
            self.cohorts.leave(name)
        return [self._opened(number) for number in self.cohorts.form(force=force)]

    def _opened(self, number: int) -> int:
        """Make the server of a new roster; returns its number, another one if its hash places members badly (S1)."""
        for _ in range(_DRAWS):
            server = self._server(number)
            try:
                self.rosters[number] = Table(server)
            except ArgumentError:
                number = self.cohorts.renumber(number)
            else:
                return number
        raise ProtocolError(
            f"{_DRAWS} rosters in a row left a member too few neighbours: the plan's degree is too small"
        )

    def turn(self) -> Table | None:
        """The roster whose turn it is; None if there is none."""
        cohort = self.cohorts.turn()
        return None if cohort is None else self.rosters[cohort.number]

    def receive(
        self,
        message: bytes | memoryview,
        *,
        sender: str | None = None,
        round: int | None = None,  # noqa: A002
    ) -> tuple[Table, bool]:
        """Take in an UPLOAD of any roster, for the sum of its round or recorded as too late.

        Args:
            message: the bytes.
            sender: the name of the member that they came from, where the transport knows it.
            round: the round that they answer, where the transport knows it.

        Returns:
            The roster, and whether the upload may be in a sum, as for `Server.receive`.

        Raises:
            WireError: as for `Server.receive`; nothing changed.
            ProtocolError: as for `Server.receive`, or of a roster that has ended; nothing changed.
        """
        wanted = Message.roster_of(message)
        for table in self.rosters.values():
            if table.server.roster_hash == wanted:
                taken = table.server.receive(message, sender=sender, round=round)
                client, number = Message.sender_of(message)
                table.rounds.came(number, client, taken=taken)
                return table, taken
        raise ProtocolError("the upload is of a roster that has ended, or was never formed")

    def close(self, number: int, *, closing: bool = False) -> Aggregate:
        """End the open round of a roster.

        Args:
            number: of the roster.
            closing: whether it was a closing round, without data.

        Raises:
            ProtocolError: no round is open, or it was announced with another `closing`; nothing changed.
        """
        table = self.rosters[number]
        if closing != table.server.closing:
            raise ProtocolError(f"roster {number} has a round with closing={table.server.closing}, got {closing=}")
        result = table.server.close()
        table.rounds.close(result, closing=closing)
        if not closing:
            came = {name for name, i in table.index.items() if table.rounds.was_on_time(i) or i in result.joined}
            odd = {table.names[i] for clients in result.left_out.values() for i in clients - result.on_time}
            self.cohorts.played(number, came, left_out=len(came & odd))
            for name in self.exhausted(number):
                self.cohorts.leave(name)
        return result

    def failing(self) -> list[int]:
        """Rosters that must be ended: too many members are gone, its closing has begun, or it had all its rounds."""
        lost = self.cohorts.failing()
        over = {number for number, table in self.rosters.items() if table.server.closing or table.server.full}
        return [number for number in self.rosters if number in over or number in lost]

    def end(self, number: int) -> None:
        """End a roster: what it cost its members is kept, and those who are not gone wait for another one.

        Uploads that come later are refused and in no figure of the server; members count what they have sent.
        """
        table = self.rosters.pop(number)
        for name, squares in zip(table.names, table.rounds.odometer.counted(worst=True).squares(), strict=True):
            if table.rounds.may_have_sent(table.index[name]):
                self._spent[name] = self._spent.get(name, Counter()) + squares
        self.cohorts.close(number)

    def exhausted(self, number: int) -> set[str]:
        """(R8): members of a roster that can take no further round in it, for what they have spent in all rosters."""
        table = self.rosters[number]
        elsewhere = [self._spent.get(name, Counter()) for name in table.names]
        odometer = table.rounds.odometer
        found = odometer.exhausted(elsewhere if any(elsewhere) else None)
        return {table.names[i] for i in found}

    def has_room(self, name: str) -> bool:
        """Whether a member could take a first round in a roster of the plan's size."""
        spent = self._spent.get(name)
        if not spent:
            return True
        try:
            Odometer(self.plan, [0]).admit(spent)
        except BudgetError:
            return False
        return True

    def mu(self) -> dict[str, float]:
        """What each member that was in a roster has spent so far, as μ; sampled batches count as whole ones."""
        found = {name: Counter(squares) for name, squares in self._spent.items()}
        for table in self.rosters.values():
            for name, squares in zip(table.names, table.rounds.odometer.counted().squares(), strict=True):
                found[name] = found.get(name, Counter()) + squares
        return {name: math.sqrt(math.fsum(x * k for x, k in squares.items())) for name, squares in found.items()}

    def epsilon(self) -> dict[str, float]:
        """What each member that was in a roster has spent so far, in all of them, at the plan's δ.

        It counts uploads that reached this server, those that `heard` told of, and after a crash all that may have got
        lost, until `heard` says which were made. `Member.epsilon` counts those that were made. So after `heard` both
        charge the same rounds, and later the member those too whose uploads never come. For these rounds both say the
        same where all uploads were used and the member knows of all rounds; otherwise the member's, at its worst, is
        the larger one.
        """
        found = {name: _alone(self.plan, squares) for name, squares in self._spent.items()}
        for table in self.rosters.values():
            elsewhere = [self._spent.get(name, Counter()) for name in table.names]
            counted = table.rounds.odometer.counted()
            if not any(elsewhere):
                spent = counted.epsilon().tolist()
            elif self.plan.gdp:
                spent = [_alone(self.plan, a + b) for a, b in zip(counted.squares(), elsewhere, strict=True)]
            else:
                spent = counted.beside(elsewhere).epsilon().tolist()
            found |= dict(zip(table.names, spent, strict=True))
        return found

    def max_epsilon(self) -> float:
        """The ε of the member that has spent most."""
        if not any(self._spent.values()):
            tables = self.rosters.values()
            return max((table.rounds.odometer.counted().max_epsilon() for table in tables), default=0.0)
        return max(self.epsilon().values(), default=0.0)

    def heard(self, name: str, answered: Mapping[int, Collection[int]]) -> None:
        """Take in what a member said it has answered, so that the server charges what the member does.

        It is charged for each round that it has answered, also if the upload never came, and for no other. If more
        members than may straggle have answered rounds that this server does not know, these are void.

        Args:
            name: of the member.
            answered: what `Member.answered` returned. A member with a later roster may have forgotten this one: then
                nothing changes.
        """
        for number, table in self.rosters.items():
            if name in table.index and (number in answered or max(answered, default=-1) < number):
                table.heard(table.index[name], answered.get(number, ()))

    def past(self, announcing: Collection[int] | None = None) -> bytes:
        """All that `resume` needs, as JSON; it holds no secret. Uploads of open rounds are not in it.

        Args:
            announcing: the rosters of which a round may be announced before a past is saved again; by default all.
        """
        facts = {
            "federation": _VERSION,
            "run": self.run.hex(),
            "plan": json.loads(self.plan.to_json()),
            "length": self.length,
            "weighted": self.weighted,
            "enrolments": {name: message.hex() for name, message in self._messages.items()},
            "cohorts": self.cohorts.to_dict(),
            "rosters": {
                str(number): {"server": table.server.past(), "rounds": table.rounds.past()}
                for number, table in self.rosters.items()
            },
            "spent": {name: list(found.items()) for name, found in self._spent.items()},
            "announcing": sorted(self.rosters if announcing is None else announcing),
        }
        return json.dumps(facts).encode()

    @classmethod
    def resume(
        cls,
        data: bytes,
        plan: Plan,
        *,
        pins: Pins | None = None,
        least: int | None = None,
        patience: int = 3,
        consecutive: int = 1,
    ) -> Federation:
        """The federation whose past was saved, after a crash; other arguments as for `Federation`.

        A round that may have been announced since then is void: nobody was told anything else of it. Save the past of
        the result before it announces anything, so that a second crash does not lose this round. Uploads that were
        asked for and have not come count as seen until `heard` says otherwise. Members that `pins` has no more are as
        if they had left.

        Raises:
            ArgumentError: the data is no past of a federation of this plan.
        """
        try:
            facts = json.loads(data)
            if facts["federation"] != _VERSION:
                raise ArgumentError(f"the past must be of version {_VERSION}, got {facts['federation']!r}")
            if Plan.from_json(json.dumps(facts["plan"])).digest() != plan.digest():
                raise ArgumentError("plan must be that of the past")
            result = cls(
                plan,
                length=facts["length"],
                run=bytes.fromhex(facts["run"]),
                weighted=facts["weighted"],
                pins=pins,
                least=least,
                patience=patience,
                consecutive=consecutive,
            )
            for message in map(bytes.fromhex, facts["enrolments"].values()):
                result._messages[result._enrolments.add(message, pinned=False)] = message
            result.cohorts.load_dict(facts["cohorts"])
            announced = {int(number) for number in facts["announcing"]}
            for number in result.cohorts.rosters:
                table, part = Table(result._server(number)), facts["rosters"][str(number)]
                table.resume(part["server"], part["rounds"], announced=number in announced)
                result.rosters[number] = table
            result._spent = {name: Counter({x: int(k) for x, k in found}) for name, found in facts["spent"].items()}
            for name, enrolment in result._enrolments.by_name.items():
                if pins is not None and not pins.allow(enrolment):
                    result.leave(name)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"the past must be that of a federation, got {error!r}") from None
        return result

    def _server(self, number: int) -> Server:
        members = self.cohorts.rosters[number].members
        plan = self._planned(len(members))
        server = Server(plan, length=self.length, run=self.run, weighted=self.weighted, number=number)
        for name in members:
            server.enrol(self._messages[name])
        return server


def _alone(plan: Plan, squares: Mapping[float, int]) -> float:
    """The ε of rounds that have these μ²; with whole batches these are all that counts, in whatever rosters."""
    if plan.gdp:
        return gaussian.epsilon(math.sqrt(math.fsum(square * count for square, count in squares.items())), plan.delta)
    return float(Odometer(plan, [0]).beside([squares]).epsilon()[0])

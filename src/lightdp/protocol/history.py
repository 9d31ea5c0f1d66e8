"""What one client knows of a run: who was used in each past round, and what follows from it.

Everything a client decides (keys, repairs, cost) is a function of the roster, of what each round's announcement says of
its neighbourhood (`LocalRound`), and of the rounds in which it sent. So its state on disk is these facts alone, and a
restart recomputes the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.neighbourhood import Neighbourhood, Whole
from lightdp.noise_graph import Graph
from lightdp.planning import Plan
from lightdp.protocol.rounds import LocalRound
from lightdp.repair import Repairs

_MORE_ROUNDS, _MORE_TIMES = 100, 10


def max_rounds(plan: Plan) -> int:
    """The most rounds of a run: void ones, those that a client missed, and the closing ones included.

    Each round is a set that every client reads and keeps, so a limit keeps a server from sending histories without
    end. A run may have more rounds than the plan: where nobody straggles, the budget of a client lasts for about
    n/(n − S̄) T rounds (R1), and rounds that it stays away from cost it nothing. Ten times T leaves room for both, and
    100 more for outages in short runs. Server and clients count alike, and the server stops itself first.

    >>> import lightdp
    >>> max_rounds(lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5))
    1600
    """
    return _MORE_TIMES * plan.rounds + _MORE_ROUNDS


def known(used: Sequence[ClientSet], on_time: Sequence[ClientSet], number: int, clients: int) -> tuple[ClientSet, ...]:
    """The sets that became known when round `number` closed, as announcements tell them and the chain binds them.

    Without grace, that is whom the round used. Under grace (R5), it is whom the round before it used, nobody if there
    was none, and who was on time in it.

    Args:
        used: the final set of each round.
        on_time: the clients that were on time in each round; empty without grace.
        number: of the round.
        clients: N.
    """
    if not on_time:
        return (used[number],)
    return used[number - 1] if number > 0 else ClientSet.none(clients), on_time[number]


class ClientHistory:
    """What was announced to one client (W4), and the keys, repairs and costs that follow from it.

    Attributes:
        plan: the noise.
        me: the client.
        neighbours: with which it shares noise.
        odometer: what its data has cost, from the rounds whose sets are final.
        repairs: what it owes.
        rounds: what is kept of each announced round.
        sent: rounds that it answered.
        closing: those that it answered without data.
        given: what some of them were bound to, 32 bytes each (W4).
    """

    def __init__(self, plan: Plan, me: int, start: bytes, neighbours: Iterable[int]) -> None:
        degrees = plan.graph.degrees if plan.graph.random else None
        self._near = Neighbourhood(plan.clients, me, neighbours, degrees)
        self.plan, self.me, self.neighbours = plan, me, self._near.neighbours
        self.odometer = Odometer(plan, near=self._near)
        among = self._near.clients
        self.repairs = Repairs(Graph(clients=among, degree=among - 1), [self._near.place])
        self.rounds: list[LocalRound] = []
        self.sent: frozenset[int] = frozenset()
        self.closing: frozenset[int] = frozenset()
        self.given: Mapping[int, bytes] = {}
        self._start, self._place = start, self._near.place
        self._alone, self._nobody = ClientSet.of(self._near.clients, [self._place]), ClientSet.none(self._near.clients)
        self._others, self._limit = ~self._alone, max_rounds(plan)

    @property
    def next(self) -> int:
        """The number of the round that comes after all that was announced."""
        return len(self.rounds)

    def chain(self, number: int) -> bytes:
        """The hash chain that goes into the keys of a round."""
        return self._start if number == 0 else self.rounds[number - 1].chain

    @property
    def repair(self) -> tuple[int, tuple[int, ...]] | None:
        """The round whose pairwise noise its next upload takes out of the sum again, and the peers who straggled."""
        debt = self.repairs.next(self._place)
        if debt is None:
            return None
        return debt.round, self._near.absent(self.rounds[debt.round + self.plan.grace].sets[0])

    @property
    def pending(self) -> bool:
        """Whether it has sent data in a round of which nothing was announced yet."""
        return self.next in self.sent - self.closing

    def copied(self) -> ClientHistory:
        """A history that learns apart from this one; what never changes is shared."""
        result = copy.copy(self)
        result.rounds = list(self.rounds)
        result.odometer, result.repairs = self.odometer.copied(), self.repairs.copied()
        return result

    def answered(self, number: int, *, closing: bool, given: bytes | None = None) -> ClientHistory:
        """The history after an upload in round `number`, bound to `given`, which shares all else with this one."""
        result = copy.copy(self)
        result.sent, result.closing = self.sent | {number}, self.closing | ({number} if closing else set())
        result.given = self.given if given is None else {**self.given, number: given}
        return result

    def learn(self, past: Iterable[tuple[int, tuple[ClientSet, ...]]]) -> None:
        """Take in what became known when past rounds closed.

        Raises:
            ProtocolError: it leaves a gap, contradicts what is known, or breaks the protocol's rules.
        """
        for number, sets in past:
            if number > self.next:
                raise ProtocolError(
                    f"announcement leaves out round {self.next}, which this client does not know yet: the server must "
                    f"announce to it with since={self.next}"
                )
            self.refuse_beyond(number)
            told = LocalRound.of(self._near, self.chain(number), number, sets)
            if number == self.next:
                self.adopt(told)
            elif told.chain != self.rounds[number].chain:
                raise ProtocolError(f"announcement of round {number} contradicts an earlier one")

    def refuse_beyond(self, number: int) -> None:
        """Refuse a round that no run of the plan has.

        Raises:
            ProtocolError: there are not that many.
        """
        if number >= self._limit:
            most = f"a run of a plan of {self.plan.rounds} rounds has at most {self._limit}"
            raise ProtocolError(f"{most}, got round {number}")

    def refuse_closing(self, *, masked: bool) -> None:
        """Refuse a closing round that has pairwise noise and must not, or has none and needs it.

        Where all clients hide a late upload, whoever was used with it repairs it in an upload that has pairwise noise,
        unless another round was used in between, without this client (S1).

        Args:
            masked: whether the round has pairwise noise.

        Raises:
            ProtocolError: it must have what it does not.
        """
        debt = self.repairs.next(self._place)
        if masked and not self.plan.hides_late:
            raise ProtocolError("a closing round of this plan must have no pairwise noise")
        if masked or not self.plan.hides_late or debt is None or debt.round in self.closing:
            return
        if not any(told.wholes[0].members > 0 for told in self.rounds[debt.round + 1 :]):
            raise ProtocolError(f"a closing round must have pairwise noise right after data, got round {self.next}")

    def adopt(self, told: LocalRound) -> None:
        """Take in what became known when the next round closed; it changes nothing unless all of it holds.

        Raises:
            ProtocolError: it is of another place in a graph, or breaks the protocol's rules.
        """
        number, grace = self.next, self.plan.grace
        self.refuse_beyond(number)
        shape = told.place, told.sets[0].clients, len(told.sets)
        if shape != (self._place, self._near.clients, 1 + grace):
            raise ProtocolError(f"round {number} must be of place {self._place} of {self._near.clients}, got {shape}")
        final, used, newest = number - grace, told.sets[0], told.sets[-1]
        if number not in self.sent and self._place in newest:
            raise ProtocolError(
                f"announcement says that client {self.me} was used in round {number}, which it did not send"
            )
        if final < 0 and told.wholes[0].members > 0:
            raise ProtocolError("announcement says who was used before the first round")
        if grace and final >= 0:
            self._check_final(final, told)
        if final >= 0:
            self._count(final, used, told.wholes[0])  # the last that may refuse
        if number in self.sent:
            self.repairs.ride(number, self._alone)
        if final >= 0 and self.plan.repairs:
            self.repairs.close(final, used)
        if grace:
            late = number in self.sent and self._place not in newest
            if number not in self.closing:  # which has no data
                self.odometer.open(newest, self._alone if late else self._nobody)
        self.rounds.append(told)

    def _check_final(self, number: int, told: LocalRound) -> None:
        """Whether the final set of a round agrees with who was on time in it (R5), as far as it is near."""
        before = self.rounds[number]
        used, on_time, members, came = told.sets[0], before.sets[-1], told.wholes[0].members, before.wholes[-1]
        if number not in self.sent and self._place in used:
            raise ProtocolError(
                f"announcement says that client {self.me} was used in round {number}, which it did not send"
            )
        if not (on_time <= used and came.members <= members) and (members > 0 or self._counts(came)):
            raise ProtocolError(f"announcement of round {number} leaves out clients that were on time before")

    def _counts(self, came: Whole) -> bool:
        """As `Plan.counts`, of what is known of a set as a whole."""
        enough = came.members >= self.plan.clients - self.plan.stragglers
        return enough and came.least >= self.plan.request.least_used

    def _count(self, number: int, used: ClientSet, whole: Whole) -> None:
        """Count a round whose set is final."""
        sent, late = number in self.sent, self._nobody
        if self.plan.hides_late and number in self.closing:  # it had no data, and another round follows
            used, sent = used - self._alone, False
        if self.plan.late_is_seen or whole.members == 0:  # uploads of a void round came in time: they were seen
            late = ~used if sent else self._others - used
        try:
            self.odometer.record(used, late, whole=whole)
        except ArgumentError as error:
            raise ProtocolError(f"announcement of round {number} breaks the protocol: {error}") from None

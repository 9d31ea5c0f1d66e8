"""What one client knows of a run: who was used in each past round, and what follows from it.

Everything a client decides (keys, repairs, cost) is a function of the roster, the announced sets and the rounds in
which it sent. So its state on disk is these facts alone, and a restart recomputes the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import link
from lightdp.planning import Plan
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
    """What was announced to one client (W4), and the keys, repairs and costs that follow from it."""

    def __init__(self, plan: Plan, me: int, start: bytes, neighbours: Iterable[int]) -> None:
        self.plan = plan
        self.me = me
        self.neighbours = tuple(neighbours)
        self.odometer = Odometer(plan, [me])
        self.used: list[ClientSet] = []  # of each round whose set is final
        self.on_time: list[ClientSet] = []  # of each past round, under grace
        self.sent: frozenset[int] = frozenset()  # rounds that it answered
        self.closing: frozenset[int] = frozenset()  # those that it answered without data
        self.chains = [start]  # chains[t] goes into the keys of round t
        self.repairs = Repairs(plan.graph, [me])
        self._alone, self._nobody = ClientSet.of(plan.clients, [me]), ClientSet.none(plan.clients)
        self._others, self._limit = ~self._alone, max_rounds(plan)

    @property
    def next(self) -> int:
        """The number of the round that comes after all that was announced."""
        return len(self.chains) - 1

    @property
    def repair(self) -> tuple[int, tuple[int, ...]] | None:
        """The round whose pairwise noise its next upload takes out of the sum again, and the peers who straggled."""
        debt = self.repairs.next(self.me)
        if debt is None:
            return None
        return debt.round, tuple(j for j in self.neighbours if j not in self.used[debt.round])

    @property
    def pending(self) -> bool:
        """Whether it has sent data in a round of which nothing was announced yet."""
        return self.next in self.sent - self.closing

    def copied(self) -> ClientHistory:
        """A history that learns apart from this one; what never changes is shared."""
        result = copy.copy(self)
        result.used, result.on_time, result.chains = list(self.used), list(self.on_time), list(self.chains)
        result.odometer, result.repairs = self.odometer.copied(), self.repairs.copied()
        return result

    def answered(self, number: int, *, closing: bool) -> ClientHistory:
        """The history after an upload in round `number`, which shares all else with this one."""
        result = copy.copy(self)
        result.sent, result.closing = self.sent | {number}, self.closing | ({number} if closing else set())
        return result

    def learn(self, past: Iterable[tuple[int, tuple[ClientSet, ...]]]) -> None:
        """Take in what became known when past rounds closed.

        Raises:
            ProtocolError: it leaves a gap, contradicts what is known, or breaks the protocol's rules.
        """
        for number, sets in past:
            if number == self.next:
                self._add(number, sets)
            elif number > self.next:
                raise ProtocolError(
                    f"announcement leaves out round {self.next}, which this client does not know yet: the server must "
                    f"announce to it with since={self.next}"
                )
            elif known(self.used, self.on_time, number, self.plan.clients) != sets:
                raise ProtocolError(f"announcement of round {number} contradicts an earlier one")

    def refuse_beyond(self, number: int) -> None:
        """Refuse a round that no run of the plan has.

        Raises:
            ProtocolError: there are not that many.
        """
        if number >= self._limit:
            most = f"a run of a plan of {self.plan.rounds} rounds has at most {self._limit}"
            raise ProtocolError(f"{most}, got round {number}")

    def _add(self, number: int, sets: tuple[ClientSet, ...]) -> None:
        """Take in what became known when round `number` closed; it changes nothing unless all of it holds."""
        self.refuse_beyond(number)
        final, newest = number - self.plan.grace, sets[-1]
        if number not in self.sent and self.me in newest:
            raise ProtocolError(
                f"announcement says that client {self.me} was used in round {number}, which it did not send"
            )
        if final < 0 and sets[0]:
            raise ProtocolError("announcement says who was used before the first round")
        if self.plan.grace and final >= 0:
            self._check_final(final, sets[0])
        if final >= 0:
            self._count(final, sets[0])  # the last that may refuse
        if number in self.sent:
            self.repairs.ride(number, self._alone)
        if final >= 0:
            self.used.append(sets[0])
        if final >= 0 and self.plan.repairs:
            self.repairs.close(final, sets[0])
        if self.plan.grace:
            self.on_time.append(newest)
            late = number in self.sent and self.me not in newest
            if number not in self.closing:  # which has no data
                self.odometer.open(newest, self._alone if late else self._nobody)
        announced = b"".join(each.to_bytes() for each in sets)
        self.chains.append(link(self.chains[-1], round=number, announcement=announced))

    def _check_final(self, number: int, used: ClientSet) -> None:
        """Whether the final set of a round agrees with who was on time in it (R5)."""
        on_time = self.on_time[number]
        if number not in self.sent and self.me in used:
            raise ProtocolError(
                f"announcement says that client {self.me} was used in round {number}, which it did not send"
            )
        if not on_time <= used and (used or self.plan.counts(on_time.flags)):
            raise ProtocolError(f"announcement of round {number} leaves out clients that were on time before")

    def _count(self, number: int, used: ClientSet) -> None:
        """Count a round whose set is final."""
        sent, late = number in self.sent, self._nobody
        if self.plan.late_is_seen or not used:  # uploads of a void round came in time: they were seen
            late = ~used if sent else self._others - used
        try:
            self.odometer.record(used, late)
        except ArgumentError as error:
            raise ProtocolError(f"announcement of round {number} breaks the protocol: {error}") from None

"""What one client knows of a run: who was used in each past round, and what follows from it.

Everything a client decides (keys, repairs, cost) is a function of the roster, the announced sets and the rounds in
which it sent. So its state on disk is these facts alone, and a restart recomputes the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import link
from lightdp.planning import Plan
from lightdp.repair import Repairs

_MORE_ROUNDS, _MORE_TIMES = 100, 10


def max_rounds(plan: Plan) -> int:
    """The most rounds of a run: void ones, those that a client missed, and the closing one included.

    Each round is a set that every client reads and keeps, so a limit keeps a server from sending histories without
    end. A run may have more rounds than the plan: where nobody straggles, the budget of a client lasts for about
    n/(n − S̄) T rounds (R1), and rounds that it stays away from cost it nothing. Ten times T leaves room for both, and
    100 more for outages in short runs. Server and clients count alike, and the server stops itself first.

    >>> import lightdp
    >>> max_rounds(lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5))
    1600
    """
    return _MORE_TIMES * plan.rounds + _MORE_ROUNDS


class ClientHistory:
    """The announced sets of one client's run (W4), and the keys, repairs and costs that follow from them."""

    def __init__(self, plan: Plan, me: int, start: bytes, neighbours: Iterable[int]) -> None:
        self.plan = plan
        self.me = me
        self.neighbours = tuple(neighbours)
        self.odometer = Odometer(plan, [me])
        self.used: list[ClientSet] = []  # of each past round
        self.sent: frozenset[int] = frozenset()  # rounds that it answered
        self.closing: int | None = None  # the round in which it sent without data
        self.chains = [start]  # chains[t] goes into the keys of round t
        self.repairs = Repairs(plan.graph, [me])
        self._alone, self._nobody = ClientSet.of(plan.clients, [me]), ClientSet.none(plan.clients)
        self._others = ~self._alone

    @property
    def repair(self) -> tuple[int, tuple[int, ...]] | None:
        """The round whose pairwise noise its next upload takes out of the sum again, and the peers who straggled."""
        debt = self.repairs.owed.get(self.me)
        if debt is None:
            return None
        return debt.round, tuple(j for j in self.neighbours if j not in self.used[debt.round])

    @property
    def pending(self) -> bool:
        """Whether it has sent data in a round of which it does not know yet who was used."""
        return len(self.used) in self.sent and len(self.used) != self.closing

    def copied(self) -> ClientHistory:
        """A history that learns apart from this one; what never changes is shared."""
        result = copy.copy(self)
        result.used, result.chains = list(self.used), list(self.chains)
        result.odometer, result.repairs = self.odometer.copied(), copy.copy(self.repairs)
        return result

    def answered(self, number: int, *, closing: bool) -> ClientHistory:
        """The history after an upload in round `number`, which shares all else with this one."""
        result = copy.copy(self)
        result.sent, result.closing = self.sent | {number}, number if closing else self.closing
        return result

    def learn(self, history: Iterable[tuple[int, ClientSet]]) -> None:
        """Take in the sets of past rounds.

        Raises:
            ProtocolError: they leave a gap, contradict what is known, or break the protocol's rules.
        """
        for number, used in history:
            if number > len(self.used):
                first = len(self.used)
                raise ProtocolError(
                    f"announcement leaves out round {first}, which this client does not know yet: the server must "
                    f"announce to it with since={first}"
                )
            if number == len(self.used):
                self._add(number, used)
            elif self.used[number] != used:
                raise ProtocolError(f"announcement of round {number} contradicts an earlier one")

    def refuse_beyond(self, number: int) -> None:
        """Refuse a round that no run of the plan has.

        Raises:
            ProtocolError: there are not that many.
        """
        if number >= (limit := max_rounds(self.plan)):
            raise ProtocolError(f"a run of a plan of {self.plan.rounds} rounds has at most {limit}, got round {number}")

    def _add(self, number: int, used: ClientSet) -> None:
        self.refuse_beyond(number)
        sent = number in self.sent
        if not sent and self.me in used:
            raise ProtocolError(
                f"announcement says that client {self.me} was used in round {number}, which it did not send"
            )
        late = self._nobody
        if self.plan.late == "seen" or not used:  # uploads of a void round came in time: they were seen
            late = ~used if sent else self._others - used
        try:
            self.odometer.record(used, late)
        except ArgumentError as error:
            raise ProtocolError(f"announcement of round {number} breaks the protocol: {error}") from None
        self.used.append(used)
        self.chains.append(link(self.chains[-1], round=number, announcement=used.to_bytes()))
        if self.plan.repairs and (sent or used):
            self.repairs.close(number, used, used | self._alone if sent else used)

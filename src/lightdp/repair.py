"""Repair, once (R1): what each round of a client costs under it, and who still owes which repair.

A client that was used in a round with stragglers takes the pairwise noise that they left out of its next upload. The
first half of this module is the arithmetic of (R1) and (W5), in which the cost of a round is its squared μ in units of
(Δ/σ_U)²; the second half follows a training: `Repairs` holds the debts of clients, and `Window` what may still be
added to the cost of a round that came too late.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightdp.client_set import ClientSet
from lightdp.noise_graph import Graph, gain

RETRIES = 2
"""How many more uploads may carry a repair that rode in an upload which came too late (R1)."""


def late_cost(gamma: float, peers: int, crossed: float, retries: float = 0.0) -> float:
    """(R7): cost of a round that came too late.

    >>> late_cost(1.0, peers=12, crossed=0.0)
    0.2

    Args:
        gamma: γ.
        peers: a, honest neighbours that were used in that round.
        crossed: x, all its cross terms with other rounds.
        retries: f, repairs of it by these peers that came too late themselves.
    """
    if peers < 1 or gamma == 0 or crossed >= 2:
        return 1.0  # its own individual noise, which no late round exceeds
    spread = (2 + 1 / gamma) / peers + retries / (peers * peers)
    return (spread + crossed - crossed * crossed / 4) / (1 + spread)


def late_costs(gamma: float, peers: ArrayLike, crossed: ArrayLike, retries: ArrayLike) -> NDArray[np.float64]:
    """`late_cost` where it has peers, γ > 0 and cross terms below 2, an entry each."""
    peers, crossed = np.asarray(peers, dtype=float), np.asarray(crossed, dtype=float)
    spread = (2 + 1 / gamma) / peers + np.asarray(retries) / peers**2
    return np.asarray((spread + crossed - crossed**2 / 4) / (1 + spread))


def lie_cost(gamma: float, honest: int, stragglers: int) -> float:
    """(W5): the most that one peer which a server tells another history can add to the costs of a client.

    It repairs noise that it shares with the client, up to 1 + `RETRIES` times, in a round in which the client was used
    with at least n − S̄ honest clients, itself included.
    """
    if honest < 2:
        return 0.0
    least = max(honest - stragglers, 2)  # a round with one honest client has no peers that could leave
    return (1 + RETRIES) * gamma**2 / ((1 + (least + 1 + RETRIES) * gamma) * (1 + least * gamma))


def lies_cost(gamma: float, honest: int, stragglers: int, grace: int = 0) -> float:
    """(W5): the most that all lies can add to the costs of a client in a whole training.

    Every honest peer can be told something else about 1 + `grace` rounds whose noise it still shares with the client.
    """
    return (1 + grace) * (honest - 1) * lie_cost(gamma, honest, stragglers)


def used_at_worst(gamma: float, honest: int, stragglers: int, crossed: float = 0.0) -> float:
    """(R1): the most that a used round can cost, without lies; arguments as in `worst_cost`."""
    return min(1.0, 1 / float(gain(max(honest - stragglers, 1), gamma)) + crossed)


def late_at_worst(gamma: float, honest: int, stragglers: int, crossed: float = 0.0) -> float:
    """(W5): the most by which a late round can cost more than the lies that its retries take the place of.

    If c of the n − S̄ used peers retry, then with P = 1 − x/2 and Q = 1 + s, both linear in c, that is 1 − P²/Q − c e:
    concave in c, and largest where its derivative vanishes, or at an end. Arguments as in `worst_cost`.
    """
    least = honest - stragglers
    if least < 1 or gamma == 0 or crossed >= 2:
        return 1.0
    lie = lie_cost(gamma, honest, stragglers)
    p, q = 1 - crossed / 2, 1 + 1 / (gamma * least)
    p_slope, q_slope = (1 / least + RETRIES / honest) / (2 * least), (2 + RETRIES) / least**2
    ratio = (math.sqrt(p_slope**2 + q_slope * lie) - p_slope) / q_slope  # P/Q at the largest
    retrying = min(max((p - ratio * q) / (p_slope + ratio * q_slope), 0.0), float(least))
    share = max(p - p_slope * retrying, 0.0) ** 2 / (q + q_slope * retrying)
    return 1 - share - retrying * lie


def worst_cost(
    gamma: float, honest: int, stragglers: int, *, seen: bool = True, crossed: float = 0.0, grace: int = 0
) -> float:
    """(W5): the most that one more round and all lies can cost, which the budget must have left for it to begin.

    Args:
        gamma: γ.
        honest: n.
        stragglers: S̄.
        seen: whether late uploads are seen.
        crossed: cross terms with repairs that ride in the round.
        grace: rounds for which uploads may be late and are used all the same.
    """
    used = used_at_worst(gamma, honest, stragglers, crossed)
    if not seen:
        return used
    return max(used, late_at_worst(gamma, honest, stragglers, crossed)) + lies_cost(gamma, honest, stragglers, grace)


@dataclass
class Window:
    """A late round of one client, while its peers may still repair it.

    The client does not learn whether a peer that was not used had sent. So unlike in `Repairs`, a peer stays until it
    has repaired for sure, however long that takes, and each round that it missed counts as a late repair, up to
    `RETRIES`. Under grace sets are known two rounds later, and a repair may be in flight in an upload whose fate is
    not yet known: a peer has repaired for sure once it was used in two rounds in a row (R5).

    Attributes:
        gamma: γ.
        honest: a_t, peers used in that round that are honest for sure.
        waiting: peers that may still repair it. (N,)
        crossed: its cross terms with other rounds, if all repairs come in time.
        retries: repairs by each peer that may have come too late, at most `RETRIES`. (N,)
        ready: peers whose next used upload repairs it for sure; None if that holds for all of them. (N,)
        quiet: rounds until the first repair can ride.
    """

    gamma: float
    honest: int
    waiting: NDArray[np.bool_]
    crossed: float
    retries: NDArray[np.int64]
    ready: NDArray[np.bool_] | None = None
    quiet: int = 0

    @classmethod
    def after(cls, gamma: float, honest: int, used: NDArray[np.bool_], crossed: float, grace: int) -> Window:
        """The window of a round in which these peers were `used`."""
        ready = np.zeros_like(used) if grace else None
        return cls(gamma, honest, used, crossed, np.zeros(used.size, dtype=np.int64), ready, grace)

    def close(self, used: ClientSet, late: ClientSet) -> None:
        """Take in the next round: peers that were used have repaired, those that were late may have tried to."""
        if self.quiet > 0:
            self.quiet -= 1
            return
        self.retries = np.minimum(self.retries + (self.waiting & late.flags), RETRIES)
        self.waiting = self.waiting & ~(used.flags if self.ready is None else used.flags & self.ready)
        self.ready = None if self.ready is None else used.flags

    def cost(self, everyone: float, *, all_late: bool = False) -> float:
        """Cost of the round with its late repairs, or all that may still come, each perhaps in a void round."""
        retries = np.where(self.waiting, RETRIES, self.retries) if all_late else self.retries
        # the sum of the `honest` largest, whichever peers collude
        largest = sum(min(int(np.count_nonzero(retries > k)), self.honest) for k in range(RETRIES))
        crossed = self.crossed + largest / (self.honest * everyone)
        return late_cost(self.gamma, self.honest, crossed, largest)

    def riders(self, carriers: ClientSet | None = None, *, awake: bool = False) -> int:
        """How many repairs, each of p = 1/`honest`, may ride in the next round in uploads of `carriers`.

        Args:
            carriers: clients; by default all peers left.
            awake: count as if the window was not quiet.
        """
        if self.quiet > 0 and not awake:
            return 0
        left = self.waiting if carriers is None else self.waiting & carriers.flags
        return min(int(np.count_nonzero(left)), self.honest)


class Debt(NamedTuple):
    """Pairwise noise that a client shares with stragglers of a round in which it was used, still in the model.

    Attributes:
        round: that round.
        tries: uploads that may still carry the repair.
    """

    round: int
    tries: int


Debtors: TypeAlias = Mapping[Debt, ClientSet]
"""Which clients have a debt, of which there are few kinds."""


class Settled(NamedTuple):
    """What the final set of a round changed: debts that its uploads paid, and those given up after `RETRIES`."""

    paid: Debtors
    given_up: Debtors


class Repairs:
    """Who owes which repair (R1), and in which upload it rides.

    A client learns from the announcement of a round who was used in earlier ones. Each upload carries the repair of
    one round: the oldest that waits. It is in flight until the set of its round is known; if it was not used, it waits
    again. So a client owes one round at most, or two where sets become known one round later, under grace (R5).

    >>> from lightdp.noise_graph import Graph
    >>> repairs = Repairs(Graph(clients=4, degree=3))
    >>> everyone = ClientSet.all(4)
    >>> repairs.ride(0, everyone), repairs.close(0, used=ClientSet.of(4, [0, 1, 2])).paid
    ({}, {})
    >>> repairs.ride(1, everyone)
    {Debt(round=0, tries=3): ClientSet.of(4, [0, 1, 2])}
    >>> repairs.close(1, used=everyone).paid, repairs.waiting
    ({Debt(round=0, tries=3): ClientSet.of(4, [0, 1, 2])}, {})

    Args:
        graph: who shares noise with whom.
        clients: those to follow, by default all.

    Attributes:
        waiting: who has which debts, without those in flight.
        flying: the debts that ride in uploads whose fate is not known yet, by round.
    """

    def __init__(self, graph: Graph, clients: Iterable[int] | None = None) -> None:
        self._tracked = ClientSet.all(graph.clients) if clients is None else ClientSet.of(graph.clients, clients)
        self._places = slice(None) if clients is None else np.array(list(self._tracked), np.int64)
        self._graph = graph
        self._rows: Sequence[NDArray[np.int64]] | NDArray[np.int64] | None = None  # if the graph counts by itself
        if not graph.complete and (clients is not None or not graph.random):
            self._rows = graph.rows(list(self._tracked))
        self._circle: ClientSet | None = None  # neighbours of the one client that is followed
        if self._rows is not None and len(self._rows) == 1:
            self._circle = ClientSet.of(graph.clients, self._rows[0].tolist())
        self.waiting: dict[Debt, ClientSet] = {}
        self.flying: dict[int, dict[Debt, ClientSet]] = {}

    def copied(self) -> Repairs:
        """Repairs that go on by themselves from here."""
        result = copy.copy(self)
        result.waiting, result.flying = dict(self.waiting), dict(self.flying)
        return result

    def owed(self, client: int) -> tuple[Debt, ...]:
        """All debts of a client, in flight or not, the oldest first."""
        return tuple(sorted(debt for each in (self.waiting, *self.flying.values()) for debt in _of(each, client)))

    def next(self, client: int) -> Debt | None:
        """What the next upload of a client repairs."""
        return min(_of(self.waiting, client), default=None)

    def ride(self, number: int, senders: ClientSet) -> Debtors:
        """The repairs in the uploads of a round, which are in flight from now on.

        Args:
            number: of the round.
            senders: tracked clients that send in it, whether or not that arrives.
        """
        riding: dict[Debt, ClientSet] = {}
        for debt in sorted(self.waiting):
            if going := self.waiting[debt] & senders:
                riding[debt], senders = going, senders - going
                self.waiting[debt] -= going
                if not self.waiting[debt]:
                    del self.waiting[debt]
        if riding:
            self.flying[number] = riding
        return riding

    def close(self, number: int, used: ClientSet) -> Settled:
        """Settle a round: used clients have paid and owe anew; repairs in other uploads wait again, with a try less.

        Args:
            number: of the round; they are settled in order.
            used: clients whose uploads were used; none in a void round.
        """
        paid, given_up = {}, {}
        for debt, clients in self.flying.pop(number, {}).items():
            if done := clients & used:
                paid[debt] = done
            if left := clients - used:
                if debt.tries == 1:
                    given_up[debt] = left
                else:
                    self._wait(Debt(debt.round, debt.tries - 1), left)
        if owing := self._owing(used):
            self._wait(Debt(number, RETRIES + 1), owing)
        return Settled(paid, given_up)

    def _wait(self, debt: Debt, clients: ClientSet) -> None:
        self.waiting[debt] = self.waiting[debt] | clients if debt in self.waiting else clients

    def _owing(self, used: ClientSet) -> ClientSet:
        """Tracked and used clients that miss neighbours in a round."""
        here = self._tracked & used
        if self._graph.complete:
            return here if len(used) < used.clients else ClientSet.none(used.clients)
        if self._circle is not None:
            return ClientSet.none(used.clients) if self._circle <= used else here
        flags = np.zeros(used.clients, np.bool_)
        flags[self._places] = self.absent(used) > 0
        return ClientSet(flags)

    def absent(self, used: ClientSet) -> NDArray[np.int64]:
        """How many neighbours each tracked client misses in a round; 0 for those that were not used. (tracked,)"""
        flags = used.flags
        if self._rows is None:
            present = self._graph.degrees(flags)
            return np.where(flags, self._graph.degrees(np.ones_like(flags)) - present, 0)[self._places]
        if isinstance(self._rows, np.ndarray):
            missing = np.count_nonzero(~flags[self._rows], axis=1)
        else:
            missing = np.array([np.count_nonzero(~flags[row]) for row in self._rows])
        return np.where(flags[self._places], missing, 0)


def _of(debtors: Debtors, client: int) -> Iterator[Debt]:
    return (debt for debt, clients in debtors.items() if client in clients)

"""What each round costs many clients at once: the rules of `_costs`, an array operation for all clients each.

All that late rounds have in common, which peers still repair them and how often they tried, is the same for all
clients that were late in the same round. It is kept once for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightdp.accountant._at_random import RandomRounds
from lightdp.accountant._costs import Open
from lightdp.accountant._reserve import Reserve
from lightdp.accountant._table import LateRound, LedgerTable
from lightdp.client_set import ClientSet
from lightdp.neighbourhood import Whole
from lightdp.noise_graph import Graph
from lightdp.planning import Plan, used_at_random
from lightdp.repair import RETRIES, Window, late_costs


class ConstantTableCosts:
    """Plans without repair: as `ConstantCosts`.

    Args:
        plan: the noise.
        clients: those whose ledgers are kept.

    Attributes:
        usual: cost of a used round.
    """

    def __init__(self, plan: Plan, clients: Sequence[int]) -> None:
        self._clients = np.array(clients)
        self.usual = plan.seen_cost

    def record(self, ledgers: LedgerTable, used: ClientSet, late: ClientSet, whole: Whole) -> None:  # noqa: ARG002
        """Add a round to the ledger of each client."""
        ledgers.count(self.usual, (used | late).flags[self._clients])

    def reserved(
        self,
        ledgers: LedgerTable,
        waits: Open | None,
        *,
        ahead: bool,
        lies: bool = False,  # noqa: ARG002
    ) -> LedgerTable:
        """Copies with the round that waits and, if `ahead`, one more. Lies add nothing: nobody repeats noise."""
        after = ledgers.copied()
        if waits is not None:
            after.count(self.usual, (waits.on_time | waits.late).flags[self._clients])
        if ahead:
            after.put(self.usual, 1)
        return after


class RepairTableCosts:
    """(R1) for many clients: as `RepairCosts`.

    Args:
        plan: the noise.
        clients: those whose ledgers are kept.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    def __init__(self, plan: Plan, clients: Sequence[int]) -> None:
        self.plan = plan
        self._clients, self._reserve, self._grace = np.array(clients), Reserve(plan), plan.request.grace
        self._random = RandomRounds(plan, clients) if plan.request.random else None
        least = self._reserve.least
        self.usual = float(plan.used_cost(least)) if self._random is None else used_at_random(plan.request, plan.gamma)

    @cached_property
    def _peers(self) -> Neighbours | None:
        """Who are neighbours, unless all are; a random graph must be placed."""
        return None if self.plan.graph.complete else Neighbours(self.plan.graph)

    def record(self, ledgers: LedgerTable, used: ClientSet, late: ClientSet, whole: Whole) -> None:
        """Add a round to the ledger of each client, and to its late rounds what they may cost after it."""
        mine, sent = used.flags[self._clients], late.flags[self._clients]
        too_late = sent if used else np.zeros_like(sent)
        peers, costs, moved = self._measured(used, whole)
        crossed = np.zeros(sent.size)
        if ledgers.late:
            # how much this round moves each peer's n_j for its own sake: q in the cross terms 2pq <= pq + pq
            own = np.where(too_late, 1 / np.maximum(peers, 1), moved)
            crossed = own * self._repaired(ledgers, used, late)
        seen = (mine | sent) & ~too_late
        plain = seen & (crossed == 0)
        for cost in np.unique(costs[plain]).tolist():
            ledgers.count(cost, plain & (costs == cost))
        at = np.flatnonzero(seen & (crossed > 0))
        ledgers.charge(at, np.minimum(1.0, costs[at] + crossed[at]))
        at = np.flatnonzero(too_late)
        if at.size > 0:
            self._add_late(ledgers, at, peers[at], crossed[at], used)

    def _measured(
        self, used: ClientSet, whole: Whole
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Honest used peers of each client, the cost of a round that is not late, and how much it moves each n_j."""
        plan = self.plan
        if self._random is not None:
            peers, costs = self._random.measured(used, whole)
            return peers, costs, costs
        absent = self._absent(used)
        honest = np.maximum(plan.honest - absent, 1) if used else np.full(absent.size, plan.honest)
        return plan.honest - 1 - absent, plan.used_cost(honest), plan.gamma / (honest * plan.gamma + 1)

    def _absent(self, used: ClientSet) -> NDArray[np.int64]:
        """How many neighbours of each client were not used. (clients,)"""
        if self._peers is not None:
            return self._peers.members(~used)[self._clients]
        return self.plan.clients - len(used) - ~used.flags[self._clients]

    def _repaired(self, ledgers: LedgerTable, used: ClientSet, late: ClientSet) -> NDArray[np.float64]:
        """Update the late rounds with a round; returns the sum of p over the repairs of each client's that it carries.

        Rounds of clients whose peers have all repaired them have their last cost.
        """
        riding, left = np.zeros(ledgers.clients), []
        carriers = (used or late).flags
        for each in ledgers.late:
            riding[each.at] += self._riders(each, carriers) / each.honest
            window = replace(each.window)
            window.close(used, late)
            after = replace(each, window=window)
            after = replace(after, costs=self._late_costs(after))
            waiting = np.broadcast_to(self._count(window.waiting, after.at) > 0, after.at.shape)
            over = after.only(~waiting)
            ledgers.charge(over.at, over.costs)
            if waiting.any():
                left.append(after.only(waiting) if over.at.size > 0 else after)
        ledgers.late = left
        return riding

    def _add_late(
        self,
        ledgers: LedgerTable,
        at: NDArray[np.int64],
        others: NDArray[np.int64],
        crossed: NDArray[np.float64],
        used: ClientSet,
    ) -> None:
        """Add a round that came too late for clients `at`, with at least `others` honest peers used, and its window."""
        window = Window.after(self.plan.gamma, self.plan.honest, used.flags, 0.0, self._grace)
        crossed = crossed + 1 / self._reserve.least  # each repair that comes in time meets 1/least
        costs = _late_costs(self.plan.gamma, others, crossed, np.zeros(at.size))
        late, repaired = LateRound(at, others, crossed, costs, window), others > 0
        ledgers.charge(at[~repaired], costs[~repaired])
        if repaired.any():
            ledgers.late.append(late.only(repaired))

    def reserved(self, ledgers: LedgerTable, waits: Open | None, *, ahead: bool, lies: bool = False) -> LedgerTable:
        """Copies with all that late repairs may still add, and the other rounds and lies at their worst (W5)."""
        after, riding, awake = ledgers.copied(), np.zeros(ledgers.clients), np.zeros(ledgers.clients)
        after.late = [replace(each, costs=self._late_costs(each, all_late=True)) for each in ledgers.late]
        for each in ledgers.late:
            riding[each.at] += self._riders(each) / each.honest
            # under grace another round comes before the next one, after which no window is quiet
            awake[each.at] += self._riders(each, awake=True) / each.honest
        if waits is not None:
            on_time, late = (each.flags[self._clients] for each in waits)
            used, too_late = self._reserve.opens(riding, lies=ahead or lies)
            self._add(after, np.where(on_time, used, too_late), on_time | late)
        if ahead:
            self._add(after, self._reserve.rounds(awake), np.ones(ledgers.clients, np.bool_))
        elif lies and self._reserve.lies > 0:
            after.charge(np.arange(ledgers.clients), np.full(ledgers.clients, self._reserve.lies))
        return after

    def _add(self, ledgers: LedgerTable, costs: NDArray[np.float64], seen: NDArray[np.bool_]) -> None:
        """Add a round of the clients that are `seen`; costs above the usual one are kept apart, since few repeat."""
        at, usual = np.flatnonzero(seen & (costs > self.usual)), seen & (costs <= self.usual)
        ledgers.charge(at, costs[at])
        for cost in np.unique(costs[usual]).tolist():
            ledgers.count(cost, usual & (costs == cost))

    def _count(self, flags: NDArray[np.bool_], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many neighbours of each client `at` these places are among `flags`, to which none of `at` belongs."""
        if self._peers is None:
            return np.array([np.count_nonzero(flags)])
        return self._peers.members_near(flags, self._clients[at])

    def _riders(
        self, late: LateRound, carriers: NDArray[np.bool_] | None = None, *, awake: bool = False
    ) -> NDArray[np.int64]:
        """As `Window.riders`, of each client of a late round. (late,)"""
        if late.window.quiet > 0 and not awake:
            return np.zeros_like(late.at)
        left = late.window.waiting if carriers is None else late.window.waiting & carriers
        return np.minimum(self._count(left, late.at), late.honest)

    def _late_costs(self, late: LateRound, *, all_late: bool = False) -> NDArray[np.float64]:
        """As `Window.cost`, of each client of a late round. (late,)"""
        window, retries = late.window, np.zeros_like(late.at)
        for k in range(RETRIES):
            some = window.retries > k
            retries += np.minimum(self._count(some | window.waiting if all_late else some, late.at), late.honest)
        everyone = self.plan.honest if self._random is None else 1 / self._random.void
        crossed = late.crossed + retries / (late.honest * everyone)
        return _late_costs(self.plan.gamma, late.honest, crossed, retries)


class Neighbours:
    """Counts members of sets among the neighbours of clients, on a graph that is not complete.

    Args:
        graph: who shares noise with whom.
    """

    def __init__(self, graph: Graph) -> None:
        rows = graph.rows(range(graph.clients))
        self._ends = np.cumsum([len(row) for row in rows])
        self._flat = np.empty(int(self._ends[-1]), np.int32)
        for row, end in zip(rows, self._ends.tolist(), strict=True):
            self._flat[end - len(row) : end] = row

    def members(self, some: ClientSet) -> NDArray[np.int64]:
        """How many neighbours of each client are members; best if few clients are. (N,)"""
        flat, _ = self._rows(np.flatnonzero(some.flags))
        return np.bincount(flat, minlength=some.clients)

    def members_near(self, flags: NDArray[np.bool_], clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many neighbours of each of `clients`, at least one of them, have a flag. (clients,)"""
        flat, starts = self._rows(clients)
        return np.add.reduceat(flags[flat], starts, dtype=np.int64)

    def _rows(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The neighbours of `clients`, one after the other, and where those of each begin."""
        ends = self._ends[clients]
        sizes = ends - np.where(clients > 0, self._ends[clients - 1], 0)
        starts = np.cumsum(sizes) - sizes
        places = np.repeat(ends - sizes - starts, sizes) + np.arange(int(sizes.sum()))
        return self._flat[places], starts


def _late_costs(
    gamma: float, peers: NDArray[np.int64], crossed: NDArray[np.float64], retries: NDArray[np.int64]
) -> NDArray[np.float64]:
    """As `late_cost`, an entry each: 1 without peers, without pairwise noise, or with cross terms of 2 or more."""
    costs = np.ones(peers.size)
    some = np.flatnonzero((peers > 0) & (crossed < 2)) if gamma > 0 else np.empty(0, np.int64)
    costs[some] = late_costs(gamma, peers[some], crossed[some], retries[some]) if some.size > 0 else 1.0
    return costs

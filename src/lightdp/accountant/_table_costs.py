"""What each round costs many clients at once: the rules of `_costs`, an array operation for all clients each.

All that late rounds have in common, which peers still repair them and how often they tried, is the same for all
clients that were late in the same round. It is kept once for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from lightdp.random_graph import COVERED
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
        at = np.flatnonzero(seen & (crossed == 0))
        ledgers.tally(at, costs[at])
        at = np.flatnonzero(seen & (crossed > 0))
        ledgers.charge(at, np.minimum(1.0, costs[at] + crossed[at]))
        at = np.flatnonzero(too_late)
        if self._random is not None and self._random.late is not None and at.size > 0:
            ledgers.count(self._random.late, too_late)
        elif at.size > 0:
            self._add_late(ledgers, at, peers[at], crossed[at], used)

    def _measured(
        self, used: ClientSet, whole: Whole
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Honest used peers of each client, the cost of a round that is not late, and how much it moves each n_j."""
        plan = self.plan
        if self._random is not None:
            peers, costs = self._random.measured(used, whole)
            return peers, costs, costs
        absent = plan.graph.degree - plan.graph.degrees(used.flags)[self._clients]
        honest = np.maximum(plan.honest - absent, 1) if used else np.full(absent.size, plan.honest)
        return plan.honest - 1 - absent, plan.used_cost(honest), plan.gamma / (honest * plan.gamma + 1)

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
            waiting = np.broadcast_to(after.count(window.waiting) > 0, after.at.shape)
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
        costs = self._covered(_late_costs(self.plan.gamma, others, crossed, np.zeros_like(at)))
        near, repaired = _rows(self.plan.graph, self._clients[at]), others > 0
        late = LateRound(at, others, crossed, costs, window, near)
        ledgers.charge(at[~repaired], costs[~repaired])
        if repaired.any():
            ledgers.late.append(late.only(repaired))

    def reserved(self, ledgers: LedgerTable, waits: Open | None, *, ahead: bool, lies: bool = False) -> LedgerTable:
        """Copies with all that late repairs may still add, and the other rounds and lies at their worst (W5)."""
        after, riding, awake = ledgers.copied(), np.zeros(ledgers.clients), np.zeros(ledgers.clients)
        after.late = [replace(each, costs=self._late_costs(each, all_late=True)) for each in ledgers.late]
        for each in ledgers.late:
            # under grace another round comes before the next one, after which no window is quiet
            riders = self._riders(each, awake=True) / each.honest
            awake[each.at] += riders
            riding[each.at] += 0.0 if each.window.quiet > 0 else riders
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
        at = np.flatnonzero(seen & (costs > self.usual))
        ledgers.charge(at, costs[at])
        at = np.flatnonzero(seen & (costs <= self.usual))
        ledgers.tally(at, costs[at])

    def _riders(
        self, late: LateRound, carriers: NDArray[np.bool_] | None = None, *, awake: bool = False
    ) -> NDArray[np.int64]:
        """As `Window.riders`, of each client of a late round. (late,)"""
        if late.window.quiet > 0 and not awake:
            return np.zeros_like(late.at)
        left = late.window.waiting if carriers is None else late.window.waiting & carriers
        return np.minimum(late.count(left), late.honest)

    def _late_costs(self, late: LateRound, *, all_late: bool = False) -> NDArray[np.float64]:
        """As `Window.cost`, of each client of a late round. (late,)"""
        window, retries = late.window, np.zeros_like(late.at)
        for k in range(RETRIES):
            some = window.retries > k
            retries += np.minimum(late.count(some | window.waiting if all_late else some), late.honest)
        everyone = self.plan.honest if self._random is None else 1 / self._random.void
        crossed = late.crossed + retries / (late.honest * everyone)
        return self._covered(_late_costs(self.plan.gamma, late.honest, crossed, retries))

    def _covered(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `RepairCosts`."""
        return costs if self._random is None else np.minimum(costs * COVERED, 1.0)


def _rows(graph: Graph, clients: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The neighbours of some clients, filled up with N; None on the complete graph. (clients, most neighbours)"""
    if graph.complete:
        return None
    rows = graph.rows(clients.tolist())
    result = np.full((len(rows), max(len(row) for row in rows)), graph.clients, np.int64)
    for at, row in enumerate(rows):
        result[at, : len(row)] = row
    return result


def _late_costs(
    gamma: float, peers: NDArray[np.int64], crossed: NDArray[np.float64], retries: NDArray[np.int64]
) -> NDArray[np.float64]:
    """As `late_cost`, an entry each: 1 without peers, without pairwise noise, or with cross terms of 2 or more."""
    costs = np.ones(peers.size)
    some = np.flatnonzero((peers > 0) & (crossed < 2)) if gamma > 0 else np.empty(0, np.int64)
    costs[some] = late_costs(gamma, peers[some], crossed[some], retries[some]) if some.size > 0 else 1.0
    return costs

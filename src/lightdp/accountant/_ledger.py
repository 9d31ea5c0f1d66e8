"""What each round cost one client: (R1) for plans that repair, a constant for the others."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from lightdp.client_set import ClientSet
from lightdp.repair import Window, late_cost, worst_cost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from lightdp.planning import Plan


@dataclass
class Ledger:
    """Costs of the rounds of one client.

    Attributes:
        usual: how many rounds had each cost that follows from the number of used clients alone.
        rare: costs of other rounds.
        windows: late rounds that peers may still repair, by their places in `rare`.
    """

    usual: Counter[float] = field(default_factory=Counter)
    rare: list[float] = field(default_factory=list)
    windows: dict[int, Window] = field(default_factory=dict)

    def costs(self) -> NDArray[np.float64]:
        """The cost of every round, the largest first. (rounds,)"""
        kinds = sorted((self.usual + Counter(self.rare)).items(), reverse=True)
        return np.repeat([cost for cost, _ in kinds], [count for _, count in kinds])

    def total(self) -> float:
        """The sum of all costs, correctly rounded."""
        return math.fsum([*(count * cost for cost, count in self.usual.items()), *self.rare])

    def copied(self) -> Ledger:
        """A ledger that goes on by itself."""
        windows = {at: replace(window) for at, window in self.windows.items()}
        return Ledger(self.usual.copy(), self.rare.copy(), windows)


class ConstantCosts:
    """Plans without repair: each seen round costs the same, whoever straggles."""

    def __init__(self, plan: Plan) -> None:
        self.usual = plan.used_cost(plan.honest)

    def record(self, client: int, ledger: Ledger, used: ClientSet, late: ClientSet) -> None:
        """Add a round to the ledger of `client`."""
        if client in used or client in late:
            ledger.usual[self.usual] += 1

    def reserved(self, ledger: Ledger) -> Ledger:
        """A copy of `ledger` with all that may still be added to its past rounds: nothing."""
        return ledger.copied()

    def worst(self, ledger: Ledger) -> float:  # noqa: ARG002  as RepairCosts
        """The most that one more round can cost."""
        return self.usual


class RepairCosts:
    """(R1): costs depend on who was used, on late uploads, and on who repaired them when.

    Args:
        plan: the noise.
        clients: those whose ledgers are kept.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    def __init__(self, plan: Plan, clients: Iterable[int]) -> None:
        self.plan = plan
        self._least = max(plan.honest - plan.stragglers, 1)
        self._cost = [math.inf, *(plan.used_cost(a) for a in range(1, plan.honest + 1))]
        self.usual = self._cost[self._least]
        rows = None if plan.graph.complete else plan.graph.neighbours()
        self._peers = None if rows is None else {c: ClientSet.of(plan.clients, rows[c].tolist()) for c in clients}

    def record(self, client: int, ledger: Ledger, used: ClientSet, late: ClientSet) -> None:
        """Add a round to the ledger of `client`, and to its late rounds what they may cost after it."""
        plan, void = self.plan, not used
        missing = self._missing(client, used)
        honest = plan.honest if void else max(plan.honest - missing, 1)
        was_late = client in late and not void
        # how much this round moves each peer's n_j for its own sake: q in the cross terms 2pq <= pq + pq
        own = 1 / max(honest - 1, 1) if was_late else plan.gamma / (honest * plan.gamma + 1)
        crossed = 0.0
        for at, window in list(ledger.windows.items()):
            crossed += window.riders(late if void else used) * own / window.honest
            window.close(used, late)
            ledger.rare[at] = window.cost(plan.honest)
            if not window.waiting.any():
                del ledger.windows[at]
        if was_late:
            others = plan.honest - 1 - missing  # honest peers that were used, at least
            cost = min(1.0, late_cost(plan.gamma, others, self._least) + crossed)
            if others > 0:
                waiting, none = self._used_peers(client, used), np.zeros(plan.clients, dtype=np.int64)
                ledger.windows[len(ledger.rare)] = Window(others, waiting.flags, cost, none)
            ledger.rare.append(cost)
        elif client in used or client in late:
            if crossed > 0:
                ledger.rare.append(min(1.0, self._cost[honest] + crossed))
            else:
                ledger.usual[self._cost[honest]] += 1

    def reserved(self, ledger: Ledger) -> Ledger:
        """A copy of `ledger` with all that repairs which may still come late can add to its past rounds."""
        after = ledger.copied()
        for at, window in ledger.windows.items():
            after.rare[at] = window.cost(self.plan.honest, all_late=True)
        return after

    def worst(self, ledger: Ledger) -> float:
        """The most that one more round can cost, with all that may follow from it and from lies (W5)."""
        plan, riding = self.plan, sum(window.riders() / window.honest for window in ledger.windows.values())
        return worst_cost(plan.gamma, plan.honest, plan.stragglers, plan.late, riding / self._least)

    def _missing(self, client: int, used: ClientSet) -> int:
        """How many peers of `client` were not used."""
        if self._peers is None:
            return used.clients - len(used) - (client not in used)
        return len(self._peers[client] - used)

    def _used_peers(self, client: int, used: ClientSet) -> ClientSet:
        if self._peers is None:
            return used - ClientSet.of(used.clients, [client])
        return self._peers[client] & used

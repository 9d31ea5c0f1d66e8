"""What each round costs a client: (R1) for plans that repair, a constant for the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp.accountant._composers import Ledger
from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.repair import Window, late_cost, lie_cost, worst_cost


class Costs(Protocol):
    """How rounds enter the ledgers of clients.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    usual: float

    def record(self, clients: Sequence[int], ledgers: Sequence[Ledger], used: ClientSet, late: ClientSet) -> None:
        """Add a round to the ledger of each client."""

    def reserved(self, ledgers: Sequence[Ledger], *, ahead: bool, lies: bool = False) -> list[Ledger]:
        """Copies with all that may still be added to past rounds.

        Args:
            ledgers: what to copy.
            ahead: add one more round at its worst, and what all lies may add.
            lies: add what all lies may add, also if not `ahead`.
        """


class ConstantCosts:
    """Plans without repair: each seen round costs the same, and nothing is added to it later."""

    def __init__(self, plan: Plan) -> None:
        self.usual = float(plan.used_cost(plan.honest))

    def record(self, clients: Sequence[int], ledgers: Sequence[Ledger], used: ClientSet, late: ClientSet) -> None:
        """Add a round to the ledger of each client."""
        seen = (used.flags | late.flags).tolist()
        for client, ledger in zip(clients, ledgers, strict=True):
            ledger.usual[self.usual] += seen[client]

    def reserved(self, ledgers: Sequence[Ledger], *, ahead: bool, lies: bool = False) -> list[Ledger]:  # noqa: ARG002
        """Copies with, if `ahead`, one more round. Lies add nothing: nobody repeats noise."""
        copies = [Ledger(ledger.usual.copy()) for ledger in ledgers]
        for each in copies:
            each.usual[self.usual] += ahead
        return copies


class RepairCosts:
    """(R1): costs depend on who was used, on late uploads, and on who repaired them when.

    Args:
        plan: the noise.
        clients: those whose ledgers are kept.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    def __init__(self, plan: Plan, clients: Sequence[int]) -> None:
        self.plan = plan
        self._least = max(plan.honest - plan.stragglers, 1)
        self._cost: list[float] = [math.inf, *plan.used_cost(np.arange(1, plan.honest + 1)).tolist()]
        self.usual = self._cost[self._least]
        self._worst = self._worst_round(0.0)
        seen = plan.late == "seen"
        self._lies = (plan.honest - 1) * lie_cost(plan.gamma, plan.honest, plan.stragglers) if seen else 0.0
        rows = None if plan.graph.complete else plan.graph.rows(clients)
        self._peers = None if rows is None else dict(zip(clients, rows, strict=True))

    def record(self, clients: Sequence[int], ledgers: Sequence[Ledger], used: ClientSet, late: ClientSet) -> None:
        """Add a round to the ledger of each client, and to its late rounds what they may cost after it."""
        plan, void = self.plan, not used
        was_used, was_late, missing = used.flags.tolist(), late.flags.tolist(), ~used.flags
        count = int(missing.sum())
        for client, ledger in zip(clients, ledgers, strict=True):
            mine, too_late = was_used[client], was_late[client] and not void
            absent = count - (not mine) if self._peers is None else int(missing[self._peers[client]].sum())
            honest = plan.honest if void else max(plan.honest - absent, 1)
            crossed = 0.0
            if ledger.windows:
                # how much this round moves each peer's n_j for its own sake: q in the cross terms 2pq <= pq + pq
                own = 1 / max(honest - 1, 1) if too_late else plan.gamma / (honest * plan.gamma + 1)
                crossed = own * self._repaired(ledger, used, late)
            if too_late:
                self._add_late(ledger, plan.honest - 1 - absent, self._used_peers(client, used), crossed)
            elif not mine and not was_late[client]:
                continue
            elif crossed > 0:
                ledger.rare.append(min(1.0, self._cost[honest] + crossed))
            else:
                ledger.usual[self._cost[honest]] += 1

    def _repaired(self, ledger: Ledger, used: ClientSet, late: ClientSet) -> float:
        """Update the open windows with a round; returns the sum of p over late rounds' repairs that it carries."""
        riding = 0.0
        for at, window in list(ledger.windows.items()):
            riding += window.riders(used or late) / window.honest
            window.close(used, late)
            ledger.rare[at] = window.cost(self.plan.honest)
            if not window.waiting.any():
                del ledger.windows[at]
        return riding

    def _add_late(self, ledger: Ledger, others: int, waiting: NDArray[np.bool_], crossed: float) -> None:
        """Add a round that came too late, with at least `others` honest peers used and a window while they repair."""
        gamma, crossed = self.plan.gamma, crossed + 1 / self._least  # each repair that comes in time meets 1/least
        if others > 0:
            none = np.zeros(waiting.size, dtype=np.int64)
            ledger.windows[len(ledger.rare)] = Window(gamma, others, waiting, crossed, none)
        ledger.rare.append(late_cost(gamma, others, crossed))

    def _used_peers(self, client: int, used: ClientSet) -> NDArray[np.bool_]:
        """Which peers of a client that was not used itself were used. (N,)"""
        if self._peers is None:
            return used.flags
        flags = np.zeros_like(used.flags)
        flags[self._peers[client]] = used.flags[self._peers[client]]
        return flags

    def reserved(self, ledgers: Sequence[Ledger], *, ahead: bool, lies: bool = False) -> list[Ledger]:
        """Copies with all that late repairs may still add, and one more round or lies at their worst (W5)."""
        copies = []
        for ledger in ledgers:
            after = Ledger(ledger.usual.copy(), ledger.rare.copy(), ledger.windows)
            worst = self._worst
            if ledger.windows:
                worst = self._worst_round(sum(w.riders() / w.honest for w in ledger.windows.values()))
                for at, window in ledger.windows.items():
                    after.rare[at] = window.cost(self.plan.honest, all_late=True)
            if ahead and worst > self.usual:
                after.rare.append(worst)
            elif ahead:
                after.usual[worst] += 1
            elif lies and self._lies > 0:
                after.rare.append(self._lies)
            copies.append(after)
        return copies

    def _worst_round(self, riding: float) -> float:
        """The most that one more round and all lies can cost (W5), with repairs of late rounds `riding` in it."""
        plan = self.plan
        return worst_cost(plan.gamma, plan.honest, plan.stragglers, plan.late, riding / self._least)

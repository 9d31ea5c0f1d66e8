"""What each round costs a client: (R1) for plans that repair, a constant for the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp.accountant._composers import Ledger
from lightdp.client_set import ClientSet
from lightdp.neighbourhood import Neighbourhood
from lightdp.noise_graph import Graph
from lightdp.planning import Plan
from lightdp.repair import RETRIES, Window, late_at_worst, late_cost, lies_cost, used_at_worst, worst_cost


class Open(NamedTuple):
    """A round whose set is not final yet (R5).

    Attributes:
        on_time: clients whose uploads came in time: they count as used.
        late: others who may have sent, and so may come to be used, or too late.
    """

    on_time: ClientSet
    late: ClientSet


class Costs(Protocol):
    """How rounds enter the ledgers of clients.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    usual: float

    def record(
        self, clients: Sequence[int], ledgers: Sequence[Ledger], used: ClientSet, late: ClientSet, *, void: bool
    ) -> None:
        """Add a round to the ledger of each client."""

    def reserved(
        self, clients: Sequence[int], ledgers: Sequence[Ledger], waits: Open | None, *, ahead: bool, lies: bool = False
    ) -> list[Ledger]:
        """Copies with all that may still be added to past rounds, and the round that waits for its set at its worst.

        Args:
            clients: whose ledgers they are.
            ledgers: what to copy.
            waits: the round whose set is not final yet, if there is one.
            ahead: add one more round at its worst, and what all lies may add.
            lies: add what all lies may add, also if not `ahead`.
        """


class ConstantCosts:
    """Plans without repair: each seen round costs the same, and nothing is added to it later."""

    def __init__(self, plan: Plan) -> None:
        self.usual = float(plan.used_cost(plan.honest))

    def record(
        self,
        clients: Sequence[int],
        ledgers: Sequence[Ledger],
        used: ClientSet,
        late: ClientSet,
        *,
        void: bool,  # noqa: ARG002
    ) -> None:
        """Add a round to the ledger of each client."""
        for seen, ledger in zip((used | late).holds(clients), ledgers, strict=True):
            ledger.usual[self.usual] += seen

    def reserved(
        self,
        clients: Sequence[int],
        ledgers: Sequence[Ledger],
        waits: Open | None,
        *,
        ahead: bool,
        lies: bool = False,  # noqa: ARG002
    ) -> list[Ledger]:
        """Copies with the round that waits and, if `ahead`, one more. Lies add nothing: nobody repeats noise."""
        copies = [Ledger(ledger.usual.copy()) for ledger in ledgers]
        for on_time, late, each in zip(*_holds(waits, clients), copies, strict=True):
            each.usual[self.usual] += ahead + (on_time or late)
        return copies


def _holds(waits: Open | None, clients: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Whether each client was on time in the round that waits, and whether it may be late; neither if none waits."""
    if waits is None:
        return [False] * len(clients), [False] * len(clients)
    return waits.on_time.holds(clients), waits.late.holds(clients)


class RepairCosts:
    """(R1): costs depend on who was used, on late uploads, and on who repaired them when.

    Args:
        plan: the noise.
        clients: those whose ledgers are kept.
        graph: who shares noise with whom.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    def __init__(self, plan: Plan, clients: Sequence[int], graph: Graph | Neighbourhood) -> None:
        self.plan = plan
        self._least = max(plan.honest - plan.stragglers, 1)
        self._cost: list[float] = [math.inf, *plan.used_cost(np.arange(1, plan.honest + 1)).tolist()]
        self.usual = self._cost[self._least]
        self._grace, self._seen = plan.request.grace, plan.request.late_is_seen
        self._bounds = plan.gamma, plan.honest, plan.stragglers
        self._lies = lies_cost(*self._bounds, self._grace) if self._seen else 0.0
        self._worst = self._worst_round(0.0)
        self._open = {lies: self._worst_open(0.0, lies=lies) for lies in (False, True)}
        rows = None if graph.complete else graph.rows(clients)
        self._peers = None if rows is None else dict(zip(clients, rows, strict=True))

    def record(
        self, clients: Sequence[int], ledgers: Sequence[Ledger], used: ClientSet, late: ClientSet, *, void: bool
    ) -> None:
        """Add a round to the ledger of each client, and to its late rounds what they may cost after it."""
        plan = self.plan
        count = plan.clients - len(used)
        for client, ledger, mine, sent in zip(clients, ledgers, used.holds(clients), late.holds(clients), strict=True):
            too_late = sent and not void
            absent = count - (not mine) if self._peers is None else _absent(self._peers[client], used)
            honest = plan.honest if void else max(plan.honest - absent, 1)
            crossed = 0.0
            if ledger.windows:
                # how much this round moves each peer's n_j for its own sake: q in the cross terms 2pq <= pq + pq
                own = 1 / max(honest - 1, 1) if too_late else plan.gamma / (honest * plan.gamma + 1)
                crossed = own * self._repaired(ledger, used, late, void=void)
            if too_late:
                self._add_late(ledger, plan.honest - 1 - absent, self._used_peers(client, used), crossed)
            elif not mine and not sent:
                continue
            elif crossed > 0:
                ledger.rare.append(min(1.0, self._cost[honest] + crossed))
            else:
                ledger.usual[self._cost[honest]] += 1

    def _repaired(self, ledger: Ledger, used: ClientSet, late: ClientSet, *, void: bool) -> float:
        """Update the open windows with a round; returns the sum of p over late rounds' repairs that it carries."""
        riding = 0.0
        for at, window in list(ledger.windows.items()):
            riding += window.riders(late if void else used) / window.honest
            window.close(used, late)
            ledger.rare[at] = window.cost(self.plan.honest)
            if not window.waiting.any():
                del ledger.windows[at]
        return riding

    def _add_late(self, ledger: Ledger, others: int, waiting: NDArray[np.bool_], crossed: float) -> None:
        """Add a round that came too late, with at least `others` honest peers used and a window while they repair."""
        gamma, crossed = self.plan.gamma, crossed + 1 / self._least  # each repair that comes in time meets 1/least
        if others > 0:
            ledger.windows[len(ledger.rare)] = Window.after(gamma, others, waiting, crossed, self._grace)
        ledger.rare.append(late_cost(gamma, others, crossed))

    def _used_peers(self, client: int, used: ClientSet) -> NDArray[np.bool_]:
        """Which peers of a client that was not used itself were used. (N,)"""
        if self._peers is None:
            return used.flags
        flags = np.zeros_like(used.flags)
        flags[self._peers[client]] = used.flags[self._peers[client]]
        return flags

    def reserved(
        self, clients: Sequence[int], ledgers: Sequence[Ledger], waits: Open | None, *, ahead: bool, lies: bool = False
    ) -> list[Ledger]:
        """Copies with all that late repairs may still add, and the other rounds and lies at their worst (W5)."""
        copies = []
        for ledger, on_time, may_be_late in zip(ledgers, *_holds(waits, clients), strict=True):
            after = Ledger(ledger.usual.copy(), ledger.rare.copy(), ledger.windows)
            worst, (used, late) = self._worst, self._open[ahead or lies]
            if ledger.windows:
                riding = sum(window.riders() / window.honest for window in ledger.windows.values())
                # under grace another round comes before the next one, after which no window is quiet
                awake = sum(window.riders(awake=True) / window.honest for window in ledger.windows.values())
                worst, (used, late) = self._worst_round(awake), self._worst_open(riding, lies=ahead or lies)
                for at, window in ledger.windows.items():
                    after.rare[at] = window.cost(self.plan.honest, all_late=True)
            if on_time:
                _add(after, used, self.usual)
            elif may_be_late:
                _add(after, late, self.usual)
            if ahead:
                _add(after, worst, self.usual)
            elif lies and self._lies > 0:
                after.rare.append(self._lies)
            copies.append(after)
        return copies

    def _worst_round(self, riding: float) -> float:
        """The most that one more round and all lies can cost (W5), with repairs of late rounds `riding` in it."""
        return worst_cost(*self._bounds, seen=self._seen, crossed=riding / self._least, grace=self._grace)

    def _worst_open(self, riding: float, *, lies: bool) -> tuple[float, float]:
        """The most that the round which waits costs a client that was on time, and one that was not.

        Args:
            riding: repairs of late rounds that ride in it.
            lies: whether all lies are counted beside it, whose place retries of its own repairs take (W5).
        """
        crossed = riding / self._least
        used = used_at_worst(*self._bounds, crossed)
        if not self._seen:
            return used, used
        if lies:
            return used, max(used, late_at_worst(*self._bounds, crossed))
        gamma, honest, stragglers = self._bounds
        peers = honest - stragglers
        return used, max(used, late_cost(gamma, peers, crossed + 1 / self._least + RETRIES / honest, RETRIES * peers))


def _absent(peers: NDArray[np.int64], used: ClientSet) -> int:
    """How many of these clients were not used."""
    return int(peers.size - np.count_nonzero(used.flags[peers]))


def _add(ledger: Ledger, cost: float, usual: float) -> None:
    """Add a round; costs above the usual one are kept apart, since few repeat."""
    if cost > usual:
        ledger.rare.append(cost)
    else:
        ledger.usual[cost] += 1

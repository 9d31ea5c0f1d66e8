"""What each round costs a client: (R1) for plans that repair, a constant for the others.

Here clients are counted one by one, which is fast for one of them, at each of its messages. `_table_costs` counts many
by the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp.accountant._at_random import RandomRounds
from lightdp.accountant._ledger import Ledger, LedgerList
from lightdp.accountant._reserve import Reserve
from lightdp.client_set import ClientSet
from lightdp.neighbourhood import Neighbourhood, Whole
from lightdp.planning import Plan, used_at_random
from lightdp.random_graph import COVERED
from lightdp.repair import Window, late_cost


class Open(NamedTuple):
    """A round whose set is not final yet (R5).

    Attributes:
        on_time: clients whose uploads came in time: they count as used.
        late: others who may have sent, and so may come to be used, or too late.
    """

    on_time: ClientSet
    late: ClientSet


class Costs(Protocol):
    """How rounds enter the ledgers of clients, a `LedgerList` or a `LedgerTable` each.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    usual: float

    def record(self, ledgers: Any, used: ClientSet, late: ClientSet, whole: Whole) -> None:  # noqa: ANN401  of both kinds
        """Add a round to the ledger of each client.

        Args:
            ledgers: to which it is added.
            used: clients whose uploads were used.
            late: others whose uploads may have been seen.
            whole: what the used clients are in all; an odometer of a neighbourhood sees a part of them.
        """

    def reserved(self, ledgers: Any, waits: Open | None, *, ahead: bool, lies: bool = False) -> Any:  # noqa: ANN401
        """Copies with all that may still be added to past rounds, and the round that waits for its set at its worst.

        Args:
            ledgers: what to copy.
            waits: the round whose set is not final yet, if there is one.
            ahead: add one more round at its worst, and what all lies may add.
            lies: add what all lies may add, also if not `ahead`.
        """


class ConstantCosts:
    """Plans without repair: each seen round costs the same, and nothing is added to it later.

    Args:
        plan: the noise.
        clients: those whose ledgers are kept.

    Attributes:
        usual: cost of a used round.
    """

    def __init__(self, plan: Plan, clients: Sequence[int]) -> None:
        self._clients = clients
        self.usual = plan.seen_cost

    def record(self, ledgers: LedgerList, used: ClientSet, late: ClientSet, whole: Whole) -> None:  # noqa: ARG002
        """Add a round to the ledger of each client."""
        for seen, ledger in zip((used | late).holds(self._clients), ledgers, strict=True):
            ledger.usual[self.usual] += seen

    def reserved(
        self,
        ledgers: LedgerList,
        waits: Open | None,
        *,
        ahead: bool,
        lies: bool = False,  # noqa: ARG002
    ) -> LedgerList:
        """Copies with the round that waits and, if `ahead`, one more. Lies add nothing: nobody repeats noise."""
        copies = [Ledger(ledger.usual.copy()) for ledger in ledgers]
        for on_time, late, each in zip(*_holds(waits, self._clients), copies, strict=True):
            each.usual[self.usual] += ahead + (on_time or late)
        return LedgerList(copies)


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
        near: the neighbourhood to which they and all sets belong, where that is not the whole graph.

    Attributes:
        usual: cost of a used round with S̄ stragglers.
    """

    def __init__(self, plan: Plan, clients: Sequence[int], near: Neighbourhood | None = None) -> None:
        self.plan, self._near = plan, near
        self._clients, self._reserve, self._grace = clients, Reserve(plan), plan.request.grace
        self._random = RandomRounds(plan, clients, near) if plan.request.random else None
        if self._random is not None:
            self.usual = used_at_random(plan.request, plan.gamma)
            return
        self._cost: list[float] = [math.inf, *plan.used_cost(np.arange(1, plan.honest + 1)).tolist()]
        self.usual = self._cost[self._reserve.least]

    @cached_property
    def _peers(self) -> dict[int, NDArray[np.int64]] | None:
        """The neighbours of each client, if they are not all others of the sets; a random graph must be placed."""
        if self.plan.graph.complete or self._near is not None:
            return None
        return dict(zip(self._clients, self.plan.graph.rows(self._clients), strict=True))

    def record(self, ledgers: LedgerList, used: ClientSet, late: ClientSet, whole: Whole) -> None:
        """Add a round to the ledger of each client, and to its late rounds what they may cost after it."""
        void, hidden = whole.members == 0, None if self._random is None else self._random.late
        mine, sent = used.holds(self._clients), late.holds(self._clients)
        measured = self._measured(used, whole, mine)
        for client, ledger, each, in_time, other in zip(self._clients, ledgers, measured, mine, sent, strict=True):
            (peers, cost, moved), too_late, crossed = each, other and not void, 0.0
            if ledger.windows:
                # how much this round moves each peer's n_j for its own sake: q in the cross terms 2pq <= pq + pq
                own = 1 / max(peers, 1) if too_late else moved
                crossed = own * self._repaired(ledger, used, late, void=void)
            if too_late and hidden is not None:
                ledger.usual[hidden] += 1
            elif too_late:
                self._add_late(ledger, peers, self._used_peers(client, used), crossed)
            elif not in_time and not other:
                continue
            elif crossed > 0:
                ledger.rare.append(min(1.0, cost + crossed))
            else:
                ledger.usual[cost] += 1

    def _measured(self, used: ClientSet, whole: Whole, mine: Sequence[bool]) -> Iterable[tuple[int, float, float]]:
        """Honest used peers of each client, the cost of a round that is not late, and how much it moves each n_j."""
        if self._random is not None:
            found = self._random.measured(used, whole)
            costs = found.costs.tolist()
            return zip(found.peers.tolist(), costs, costs, strict=True)
        honest, gamma, result = self.plan.honest, self.plan.gamma, []
        count = used.clients - len(used)
        for client, came in zip(self._clients, mine, strict=True):
            absent = count - (not came) if self._peers is None else _absent(self._peers[client], used)
            near = honest if whole.members == 0 else max(honest - absent, 1)
            result.append((honest - 1 - absent, self._cost[near], gamma / (near * gamma + 1)))
        return result

    def _repaired(self, ledger: Ledger, used: ClientSet, late: ClientSet, *, void: bool) -> float:
        """Update the open windows with a round; returns the sum of p over late rounds' repairs that it carries."""
        riding = 0.0
        for at, window in list(ledger.windows.items()):
            riding += window.riders(late if void else used) / window.honest
            window.close(used, late)
            ledger.rare[at] = self._covered(window.cost(self._everyone))
            if not window.waiting.any():
                del ledger.windows[at]
        return riding

    @property
    def _everyone(self) -> float:
        """1/q of a void round, which moves the individual noise of each peer by q for its own sake at most."""
        return self.plan.honest if self._random is None else 1 / self._random.void

    def _add_late(self, ledger: Ledger, others: int, waiting: NDArray[np.bool_], crossed: float) -> None:
        """Add a round that came too late, with at least `others` honest peers used and a window while they repair."""
        gamma, crossed = self.plan.gamma, crossed + 1 / self._reserve.least  # a repair that comes in time meets 1/least
        if others > 0:
            ledger.windows[len(ledger.rare)] = Window.after(gamma, others, waiting, crossed, self._grace)
        ledger.rare.append(self._covered(late_cost(gamma, others, crossed)))

    def _covered(self, cost: float) -> float:
        """With room for draws that a random graph must not have (S1)."""
        return cost if self._random is None else min(1.0, cost * COVERED)

    def _used_peers(self, client: int, used: ClientSet) -> NDArray[np.bool_]:
        """Which peers of a client that was not used itself were used. (N,)"""
        if self._peers is None:
            return used.flags
        flags = np.zeros_like(used.flags)
        flags[self._peers[client]] = used.flags[self._peers[client]]
        return flags

    def reserved(self, ledgers: LedgerList, waits: Open | None, *, ahead: bool, lies: bool = False) -> LedgerList:
        """Copies with all that late repairs may still add, and the other rounds and lies at their worst (W5)."""
        copies = []
        for ledger, on_time, may_be_late in zip(ledgers, *_holds(waits, self._clients), strict=True):
            after = Ledger(ledger.usual.copy(), ledger.rare.copy(), ledger.windows)
            worst, riding = self._reserve.plain, 0.0
            if ledger.windows:
                riding = sum(window.riders() / window.honest for window in ledger.windows.values())
                # under grace another round comes before the next one, after which no window is quiet
                worst = self._reserve.round(sum(w.riders(awake=True) / w.honest for w in ledger.windows.values()))
                for at, window in ledger.windows.items():
                    after.rare[at] = self._covered(window.cost(self._everyone, all_late=True))
            if on_time or may_be_late:
                used, late = self._reserve.open(riding, lies=ahead or lies)
                _add(after, used if on_time else late, self.usual)
            if ahead:
                _add(after, worst, self.usual)
            elif lies and self._reserve.lies > 0:
                after.rare.append(self._reserve.lies)
            copies.append(after)
        return LedgerList(copies)


def _absent(peers: NDArray[np.int64], used: ClientSet) -> int:
    """How many of these clients were not used."""
    return int(peers.size - np.count_nonzero(used.flags[peers]))


def _add(ledger: Ledger, cost: float, usual: float) -> None:
    """Add a round; costs above the usual one are kept apart, since few repeat."""
    if cost > usual:
        ledger.rare.append(cost)
    else:
        ledger.usual[cost] += 1

"""What a training has really cost each client: the odometer of (R1)-(R2).

A round of a client costs k, its squared μ in units of (Δ/σ_U)². (R1) bounds a client's rounds by independent
Gaussian mechanisms with these costs, so they add up, or compose as sampled ones where batches are sampled (R2).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lightdp import gaussian, sampling
from lightdp._validate import integer
from lightdp.errors import ArgumentError, BudgetError
from lightdp.planning import on_grid
from lightdp.repair import RETRIES, late_cost, worst_cost

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from lightdp.planning import Plan

    Mask = NDArray[np.bool_]

_CLEARLY = 0.999  # a share of the budget that is below it by more than all roundings
_AHEAD = 1000  # the most rounds that are looked ahead at once, each of them a number in a list


@dataclass
class _Window:
    """A round of one client that came too late, while its peers may still repair it.

    A peer that is not used may have sent its repair or not, so it stays until it is used, however long that takes.
    """

    honest: int  # a_t: peers used in that round that are honest for sure
    waiting: Mask  # (N,) peers that may still repair it
    retries: NDArray[np.int64]  # (N,) repairs by each peer that may have come too late, at most `RETRIES`
    entry: int  # where the round's cost stands in the client's `special`
    prompt: float  # what the round costs if all repairs come in time

    def cost(self, everyone: int, *, all_late: bool = False) -> float:
        """Of the round, with its retries or all that may still come, each perhaps in a void round of `everyone`."""
        retries = np.where(self.waiting, RETRIES, self.retries) if all_late else self.retries
        dearest = int(np.sort(retries)[-self.honest :].sum())  # whoever colludes
        return min(1.0, self.prompt + dearest / self.honest * (1 / self.honest + 1 / everyone))


@dataclass
class _Ledger:
    """What one client's rounds have cost."""

    ordinary: Counter[int] = field(default_factory=Counter)  # rounds by a, the honest used clients
    special: list[float] = field(default_factory=list)  # costs of other rounds
    windows: list[_Window] = field(default_factory=list)

    def costs(self, cost_of: Sequence[float]) -> list[float]:
        """The cost of every round."""
        return [cost_of[a] for a, count in self.ordinary.items() for _ in range(count)] + self.special

    def total(self, cost_of: Sequence[float]) -> float:
        """Of all rounds."""
        return math.fsum([*(count * cost_of[a] for a, count in self.ordinary.items()), *self.special])

    def reserved(self, everyone: int) -> _Ledger:
        """The same with all that open windows may still cost."""
        special = list(self.special)
        for window in self.windows:
            special[window.entry] = window.cost(everyone, all_late=True)
        return _Ledger(self.ordinary.copy(), special, self.windows)


class Odometer:
    """What each tracked client has spent, from the straggler sets that happened (R1)-(R2).

    Formal guarantee: if a client uploads only after `admit` let it, and `record` is told every round, the
    adversary's view of its data is (`epsilon`, plan.delta)-DP and `epsilon` never exceeds plan.budget, whoever
    straggled and whether or not the server saw the uploads that came too late. If plan.late is "unseen", then as long
    as they are: one that was seen after all is counted, but no room was kept for it. Straggler sets may depend on
    earlier rounds where whole batches are used (a privacy filter); with sampled batches they must not.

    | round of a client | its cost k under repair | otherwise |
    | --- | --- | --- |
    | used | (1 + γ)/(aγ + 1), more while peers repair a late round of it | (σ_U/σ_eff)² |
    | too late, perhaps seen | about (3 + 1/γ)/a, more for repairs that come late too, at most 1 | as used |
    | too late, unseen as the plan says | 0 | 0 |
    | in a void round, perhaps seen | as used, with a = n | as used |
    | never sent | 0 | 0 |
    """

    def __init__(self, plan: Plan, clients: Sequence[int] | None = None) -> None:
        """Track `clients` of the plan, by default all of them."""
        self.plan = plan
        self.rounds = 0
        tracked = range(plan.clients) if clients is None else clients
        self.clients = [integer("clients", c, 0, plan.clients - 1) for c in tracked]
        self._ledgers = [_Ledger() for _ in self.clients]
        rows = None if plan.graph.complete else plan.graph.neighbours()
        self._neighbours = None if rows is None else {c: self._mask("peers", rows[c]) for c in self.clients}
        self._known: dict[tuple[frozenset[tuple[float, int]], float], float] = {}  # of sampled ledgers
        self._fits: list[float] = []  # costs of sampled rounds, the dearest first, that are within the budget together
        self._ahead = min(plan.rounds // 2, _AHEAD)  # more rounds than these did not fit on top, or were not tried
        self._repair = plan.repairs
        self._least = max(plan.honest - plan.stragglers, 1) if self._repair else plan.honest
        self._unit = plan.scale
        self._cost = [math.inf, *(plan.used_cost(a) for a in range(1, plan.honest + 1))]

    def admit(self) -> None:
        """Let the next round begin for every tracked client, whatever its stragglers will be.

        Raises:
            BudgetError: it could take a tracked client over the budget; nothing was spent.
        """
        over = self._over()
        if over:
            client = max(over, key=lambda each: over[each])
            raise BudgetError(
                f"round {self.rounds + 1} could take client {client} to epsilon={over[client]:.6g}, "
                f"over the budget of {self.plan.budget:g} at delta={self.plan.delta:g}"
            )

    def exhausted(self) -> frozenset[int]:
        """(R8): tracked clients that the next round could take over the budget. They stay away; others go on."""
        return frozenset(self._over())

    def _over(self) -> dict[int, float]:
        """The ε of each tracked client that one more round could take over the budget."""
        after = [self._after_worst_round(ledger) for ledger in self._ledgers]
        if self.plan.sampling_rate == 1:  # far from the budget, one δ tells as much as each client's ε
            mu = max(self._mu(ledger) for ledger in after)
            if gaussian.delta(_CLEARLY * self.plan.budget, mu) <= self.plan.delta:
                return {}
        dominating = _dominating(after, self._cost)
        if self.plan.sampling_rate < 1 and self._fits_for_sure(dominating.special):
            return {}
        if self._epsilon(dominating) <= self.plan.budget:
            return {}  # one composition for all; where it is too coarse, one for each
        spent = {client: self._epsilon(ledger) for client, ledger in zip(self.clients, after, strict=True)}
        return {client: epsilon for client, epsilon in spent.items() if epsilon > self.plan.budget}

    def record(self, used: Collection[int], late: Collection[int] | None = None) -> None:
        """Count a round that happened.

        Args:
            used: clients whose uploads the server added. Empty: the round was void, with fewer than the minimum.
            late: other clients whose uploads the adversary may have seen. By default every other client: one cannot
                know whether what was sent was seen. If the plan says that late uploads are unseen, then nobody, but
                still everybody of a void round, whose uploads came in time.
        """
        used_mask = self._mask("used", used)
        if late is None:
            unseen = self.plan.late == "unseen" and used_mask.any()
            late = () if unseen else np.flatnonzero(~used_mask)
        late_mask = self._mask("late", late)
        if np.any(used_mask & late_mask):
            both = np.flatnonzero(used_mask & late_mask).tolist()
            raise ArgumentError(f"late must not name used clients, got {both} in both")
        count = int(used_mask.sum())
        if count and self.plan.clients - count > self.plan.stragglers:
            least = self.plan.clients - self.plan.stragglers
            raise ArgumentError(f"used must name at least {least} clients or, for a void round, none; got {count}")
        for client, ledger in zip(self.clients, self._ledgers, strict=True):
            if self._repair:
                self._record_repair(client, ledger, used_mask, late_mask)
            elif used_mask[client] or late_mask[client]:
                ledger.ordinary[self.plan.honest] += 1
        self.rounds += 1

    def epsilon(self, delta: float | None = None, *, ahead: bool = False) -> NDArray[np.float64]:
        """What each tracked client has spent, rounded up; if `ahead`, with one more round at its dearest. (clients,)"""
        ledgers = [self._after_worst_round(ledger) for ledger in self._ledgers] if ahead else self._ledgers
        return np.array([self._epsilon(ledger, delta) for ledger in ledgers])

    def largest(self) -> float:
        """The ε of the client that has spent most; with sampled batches a bound on it, by one composition.

        Where that bound is above the budget, and so too coarse to tell anything, every client's ε is computed.
        """
        if self.plan.sampling_rate < 1:
            bound = self._epsilon(_dominating(self._ledgers, self._cost))
            return bound if bound <= self.plan.budget else float(self.epsilon().max())
        return self._epsilon(max(self._ledgers, key=lambda ledger: ledger.total(self._cost)))

    def remaining(self, rounds: int = 0) -> float:
        """The ε left to the client that has spent most, after `rounds` more used rounds with S̄ stragglers each.

        Negative when the budget does not last that long.
        """
        more = Counter({self._least: integer("rounds", rounds, 0)})
        after = [ledger.reserved(self.plan.honest) for ledger in self._ledgers]
        return self.plan.budget - max(
            self._epsilon(_Ledger(ledger.ordinary + more, ledger.special)) for ledger in after
        )

    def _record_repair(self, client: int, ledger: _Ledger, used: Mask, late: Mask) -> None:
        """(R1): cost of this round, and what it adds to earlier rounds of the client that came too late."""
        void, peers = not used.any(), self._peers(client)
        missing = int(np.sum(peers & ~used))
        honest = self.plan.honest if void else max(self.plan.honest - missing, 1)
        seen, was_late = bool(used[client] or late[client]), bool(late[client]) and not void
        # how much this round moves each peer's n_j for its own sake: q in the cross terms 2pq <= pq + pq
        own = 0.0
        if seen:
            own = 1 / max(honest - 1, 1) if was_late else self.plan.gamma / (honest * self.plan.gamma + 1)
        crossed = 0.0
        for window in ledger.windows:
            riding = window.waiting & (late if void else used)
            crossed += min(int(riding.sum()), window.honest) * own / window.honest
            window.retries = np.minimum(window.retries + (window.waiting & late), RETRIES)
            window.waiting = window.waiting & ~used
            ledger.special[window.entry] = window.cost(self.plan.honest)
        ledger.windows = [window for window in ledger.windows if window.waiting.any()]
        if not seen:
            return
        if was_late:
            others = self.plan.honest - 1 - missing  # honest peers that were used, at least
            cost = min(1.0, late_cost(self.plan.gamma, others, self._least) + crossed)
            if others > 0:
                none = np.zeros(self.plan.clients, dtype=np.int64)
                ledger.windows.append(_Window(others, used & peers, none, len(ledger.special), cost))
            ledger.special.append(cost)
        elif crossed > 0:
            ledger.special.append(min(1.0, self._cost[honest] + crossed))
        else:
            ledger.ordinary[honest] += 1

    def _after_worst_round(self, ledger: _Ledger) -> _Ledger:
        """`ledger` after one more round at its dearest, with all that may follow from it and from lies (W5)."""
        after = ledger.reserved(self.plan.honest)
        used = self._cost[self._least]
        if not self._repair:
            after.ordinary[self._least] += 1
            return after
        riding = sum(min(int(window.waiting.sum()) / window.honest, 1.0) for window in ledger.windows)
        plan = self.plan
        worst = worst_cost(plan.gamma, plan.honest, plan.stragglers, plan.late, riding / self._least)
        if worst > used:
            after.special.append(worst)
        else:
            after.ordinary[self._least] += 1
        return after

    def _fits_for_sure(self, costs: list[float]) -> bool:
        """Whether sampled rounds with these `costs`, the dearest first, are clearly within the budget.

        A composition takes long, so it is made for many rounds at once: these and half of those that the plan has left,
        each as dear as a used round can be. Whatever costs no more than that, round by round, fits too. So a dearer
        round that nobody reckoned with only ends this knowledge. What did not fit once is not tried again.
        """
        if len(costs) <= len(self._fits) and all(k <= bound for k, bound in zip(costs, self._fits, strict=False)):
            return True
        left = self.plan.rounds - self.rounds
        ahead = min(self._ahead, left // 2) if left > 0 else self._ahead
        while ahead > 0:
            more = sorted([*costs, *[self._cost[self._least]] * ahead], reverse=True)
            if self._epsilon(_Ledger(special=more)) <= _CLEARLY * self.plan.budget:
                self._fits = more
                return True
            self._ahead = ahead = ahead // 2
        return False

    def _epsilon(self, ledger: _Ledger, delta: float | None = None) -> float:
        delta = self.plan.delta if delta is None else delta
        if self.plan.sampling_rate == 1:
            return gaussian.epsilon(self._mu(ledger), delta)
        usual = Counter({self._cost[a]: count for a, count in ledger.ordinary.items()})
        rare = Counter(on_grid(k) for k in ledger.special)
        rounds = frozenset((usual + rare).items())
        if (rounds, delta) not in self._known:
            multipliers = {self._unit / self.plan.clip / math.sqrt(k): count for k, count in rounds}
            self._known[rounds, delta] = sampling.epsilon(
                multipliers, rate=self.plan.sampling_rate, delta=delta, adjacency=self.plan.adjacency
            )
        return self._known[rounds, delta]

    def _mu(self, ledger: _Ledger) -> float:
        return math.sqrt(ledger.total(self._cost)) * self.plan.sensitivity / self._unit

    def _peers(self, client: int) -> Mask:
        if self._neighbours is not None:
            return self._neighbours[client]
        mask = np.ones(self.plan.clients, dtype=bool)
        mask[client] = False
        return mask

    def _mask(self, name: str, clients: Collection[int]) -> Mask:
        mask = np.zeros(self.plan.clients, dtype=bool)
        mask[[integer(name, client, 0, self.plan.clients - 1) for client in clients]] = True
        return mask


def _dominating(ledgers: Sequence[_Ledger], cost_of: Sequence[float]) -> _Ledger:
    """One ledger that costs at least as much as each of `ledgers`: its r-th dearest round is their dearest r-th."""
    columns = [sorted(ledger.costs(cost_of), reverse=True) for ledger in ledgers]
    matrix = np.zeros((len(columns), max(len(column) for column in columns)))
    for row, column in zip(matrix, columns, strict=True):
        row[: len(column)] = column
    return _Ledger(special=matrix.max(axis=0).tolist())

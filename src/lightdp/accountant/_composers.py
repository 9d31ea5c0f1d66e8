"""How the costs of rounds compose to ε: for whole batches, or for sampled ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp import gaussian, sampling
from lightdp.accountant._ledger import CLOSE, Ledger, Ledgers
from lightdp.planning import Plan, on_grid

_CLEARLY = 0.999  # a share of the budget that is below it by more than all roundings
_AHEAD = 1000  # the most rounds that are looked ahead at once, each of them a number in a list


class Composer(Protocol):
    """What turns ledgers into ε."""

    def epsilon(self, ledger: Ledger, delta: float | None = None) -> float:
        """The ε of all rounds in `ledger`, rounded up, at `delta` or the plan's δ."""

    def fit(self, ledgers: Ledgers, *, left: int, usual: float) -> bool:
        """Whether every ledger is within the budget, by one bound for all; False means undecided.

        Args:
            ledgers: what to compose.
            left: rounds that the plan has left.
            usual: what one of these costs as the plan expects it.
        """

    def max_epsilon(self, ledgers: Ledgers) -> float:
        """The largest ε of `ledgers`, or an upper bound on it."""

    def over(self, ledgers: Ledgers) -> list[int]:
        """Which of `ledgers` are over the budget."""


class GaussianComposer:
    """Whole batches: squared μ add up exactly (E5), also where straggler sets depend on earlier rounds.

    Args:
        plan: its Δ, budget and δ; a round of cost k has μ = sqrt(k) Δ/`plan.scale`, and the first one that costs
            something `plan.masks.cost` beside it (B2).
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def epsilon(self, ledger: Ledger, delta: float | None = None) -> float:
        """The ε of all rounds in `ledger`, rounded up, at `delta` or the plan's δ."""
        return self._epsilon(ledger.total(), self._plan.delta if delta is None else delta)

    def fit(self, ledgers: Ledgers, *, left: int, usual: float) -> bool:  # noqa: ARG002  as Composer
        """Whether every ledger is within the budget."""
        largest = ledgers.largest()
        if gaussian.delta(_CLEARLY * self._plan.budget, self._mu(largest.total())) <= self._plan.delta:
            return True  # far from the budget, one δ says as much as ε and takes less time
        return self.epsilon(largest) <= self._plan.budget

    def max_epsilon(self, ledgers: Ledgers) -> float:
        """The largest ε of `ledgers`."""
        return self.epsilon(ledgers.largest())

    def over(self, ledgers: Ledgers) -> list[int]:
        """Which of `ledgers` are over the budget: with one that is within it, all that cost no more."""
        about = ledgers.about()
        within, beyond = self._edge(about)
        near = np.flatnonzero((about >= within * (1 - 4 * CLOSE)) & (about <= beyond * (1 + 4 * CLOSE)))
        over, totals = about > beyond, ledgers.totals(near)
        over[near] = totals >= self._edge(totals)[1]
        return np.flatnonzero(over).tolist()

    def _edge(self, totals: NDArray[np.float64]) -> tuple[float, float]:
        """The largest of these totals that is within the budget, or 0, and the least that is not, or infinity."""
        prices, delta = [0.0, *np.unique(totals).tolist(), math.inf], self._plan.delta
        first = bisect_left(prices, True, key=lambda price: self._epsilon(price, delta) > self._plan.budget)
        return prices[first - 1], prices[first]

    def _epsilon(self, total: float, delta: float) -> float:
        if (left := self._plan.masks.left(delta)) == 0:
            return math.inf if total > 0 else 0.0
        return gaussian.epsilon(self._mu(total), left)

    def _mu(self, total: float) -> float:
        once = self._plan.masks.cost if total > 0 else 0.0
        return math.sqrt(total + once) * self._plan.sensitivity / self._plan.scale


class SampledComposer:
    """Poisson-sampled batches: every round is amplified by itself (R2), and their privacy loss distributions composed.

    A composition takes long, so results are kept, rare costs are rounded up to a grid, and `fit` looks ahead.

    Args:
        plan: its clip, sampling rate, adjacency, budget and δ; a round of cost k is a sampled Gaussian with noise
            multiplier `plan.scale`/(clip sqrt(k)).
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[tuple[frozenset[tuple[float, int]], float], float] = {}
        self._fits = np.empty(0)  # costs, the largest first, that are within the budget together
        self._ahead = min(plan.turns // 2, _AHEAD)  # more rounds than these did not fit on top, or were not tried

    def epsilon(self, ledger: Ledger, delta: float | None = None) -> float:
        """The ε of all rounds in `ledger`, rounded up, at `delta` or the plan's δ."""
        delta = self._plan.delta if delta is None else delta
        rounds = frozenset((ledger.usual + Counter(on_grid(cost) for cost in ledger.rare)).items())
        if (rounds, delta) not in self._known:
            multipliers = {self._plan.scale / self._plan.clip / math.sqrt(cost): count for cost, count in rounds}
            self._known[rounds, delta] = sampling.epsilon(
                multipliers, rate=self._plan.sampling_rate, delta=delta, adjacency=self._plan.adjacency
            )
        return self._known[rounds, delta]

    def fit(self, ledgers: Ledgers, *, left: int, usual: float) -> bool:
        """Whether a bound on all ledgers is within the budget.

        One composition serves many calls: it is made with half of the rounds that are left on top, each at the usual
        cost. Rounds that cost no more than these, one by one, fit too; a larger cost only ends this knowledge. What
        did not fit once is not tried again.
        """
        costs = ledgers.dominating()
        if costs.size <= self._fits.size and np.all(costs <= self._fits[: costs.size]):
            return True
        ahead = min(self._ahead, left // 2) if left > 0 else self._ahead
        while ahead > 0:
            more = np.sort([*costs, *[usual] * ahead])[::-1]
            if self.epsilon(Ledger(rare=more.tolist())) <= _CLEARLY * self._plan.budget:
                self._fits = more
                return True
            self._ahead = ahead = ahead // 2
        return self.epsilon(Ledger(rare=costs.tolist())) <= self._plan.budget

    def max_epsilon(self, ledgers: Ledgers) -> float:
        """An upper bound on the largest ε by one composition; above the budget it is too coarse, and all are made."""
        bound = self.epsilon(Ledger(rare=ledgers.dominating().tolist()))
        return bound if bound <= self._plan.budget else max(self.epsilon(ledger) for ledger in ledgers)

    def over(self, ledgers: Ledgers) -> list[int]:
        """Which of `ledgers` are over the budget."""
        return [at for at, ledger in enumerate(ledgers) if self.epsilon(ledger) > self._plan.budget]

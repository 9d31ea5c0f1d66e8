"""What rounds cost one client, and how that composes to ε: for whole batches, or for sampled ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp import gaussian, sampling
from lightdp.planning import Plan, on_grid
from lightdp.repair import Window

_CLEARLY = 0.999  # a share of the budget that is below it by more than all roundings
_AHEAD = 1000  # the most rounds that are looked ahead at once, each of them a number in a list


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


class Composer(Protocol):
    """What turns ledgers into ε."""

    def epsilon(self, ledger: Ledger, delta: float | None = None) -> float:
        """The ε of all rounds in `ledger`, rounded up, at `delta` or the plan's δ."""

    def fit(self, ledgers: Sequence[Ledger], *, left: int, usual: float) -> bool:
        """Whether every ledger is within the budget, by one bound for all; False means undecided.

        Args:
            ledgers: what to compose.
            left: rounds that the plan has left.
            usual: what one of these costs as the plan expects it.
        """

    def max_epsilon(self, ledgers: Sequence[Ledger]) -> float:
        """The largest ε of `ledgers`, or an upper bound on it."""


class GaussianComposer:
    """Whole batches: squared μ add up exactly (E5), also where straggler sets depend on earlier rounds.

    Args:
        plan: its Δ, budget and δ; a round of cost k has μ = sqrt(k) Δ/`plan.scale`.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def epsilon(self, ledger: Ledger, delta: float | None = None) -> float:
        """The ε of all rounds in `ledger`, rounded up, at `delta` or the plan's δ."""
        return gaussian.epsilon(self._mu(ledger), self._plan.delta if delta is None else delta)

    def fit(self, ledgers: Sequence[Ledger], *, left: int, usual: float) -> bool:  # noqa: ARG002  as Composer
        """Whether every ledger is within the budget."""
        largest = max(ledgers, key=Ledger.total)
        if gaussian.delta(_CLEARLY * self._plan.budget, self._mu(largest)) <= self._plan.delta:
            return True  # far from the budget, one δ says as much as ε and takes less time
        return self.epsilon(largest) <= self._plan.budget

    def max_epsilon(self, ledgers: Sequence[Ledger]) -> float:
        """The largest ε of `ledgers`."""
        return self.epsilon(max(ledgers, key=Ledger.total))

    def _mu(self, ledger: Ledger) -> float:
        return math.sqrt(ledger.total()) * self._plan.sensitivity / self._plan.scale


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

    def fit(self, ledgers: Sequence[Ledger], *, left: int, usual: float) -> bool:
        """Whether a bound on all ledgers is within the budget.

        One composition serves many calls: it is made with half of the rounds that are left on top, each at the usual
        cost. Rounds that cost no more than these, one by one, fit too; a larger cost only ends this knowledge. What
        did not fit once is not tried again.
        """
        costs = _dominating(ledgers)
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

    def max_epsilon(self, ledgers: Sequence[Ledger]) -> float:
        """An upper bound on the largest ε by one composition; above the budget it is too coarse, and all are made."""
        bound = self.epsilon(Ledger(rare=_dominating(ledgers).tolist()))
        return bound if bound <= self._plan.budget else max(self.epsilon(ledger) for ledger in ledgers)


def _dominating(ledgers: Sequence[Ledger]) -> NDArray[np.float64]:
    """Bounds all ledgers: its r-th largest cost is the maximum of their r-th largest costs."""
    columns = [ledger.costs() for ledger in ledgers]
    result = np.zeros(max(column.size for column in columns))
    for column in columns:
        np.maximum(result[: column.size], column, out=result[: column.size])
    return result

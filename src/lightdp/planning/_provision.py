"""(D6): how much of a budget a plan with repair provides for the rounds of a client.

What a round costs a client depends on how many of its neighbours straggle, and a round that it misses costs nothing.
So what it spends is random, and other clients spend more or less. A plan provides for so much that it lasts: that with
probability 99 % no client of the training runs out before the last round, if stragglers are as the plan's law says.

No guarantee hangs on it. The odometer charges what happens, and stops before the budget is exceeded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightdp.noise_graph import gain
from lightdp.planning._request import Request
from lightdp.stragglers import StragglerLaw, uniform

LASTS = 0.99
"""The probability with which a budget lasts for every client, if stragglers are as expected."""
_STEPS = 40  # Newton's; more than enough, and each gives a bound


@dataclass(frozen=True)
class Provision:
    """The rounds that a plan with repair provides for: all but the last, which the odometer admits at its worst.

    Attributes:
        rounds: how many.
        honest: n.
        clients: N.
        used: the probability that a client is used in a round.
        absent: how many of its neighbours straggle in a round in which it is used.
    """

    rounds: int
    honest: int
    clients: int
    used: float
    absent: StragglerLaw

    @classmethod
    def of(cls, asked: Request) -> Provision:
        """As the request says.

        | reserve | stragglers |
        | --- | --- |
        | expected | any clients, each as often as the others |
        | steady | any clients but one, which is used in every round |
        | worst | S̄ clients in every round, all of them neighbours of one that is always used |
        """
        clients, degree, used, law = asked.clients, asked.graph.degree, 1.0, asked.law
        if asked.reserve == "worst":
            absent = uniform(min(law.bound, degree)).worst()
        elif asked.reserve == "steady":
            absent = law.among(clients, degree)
        else:
            used, absent = law.mean(lambda s: 1 - s / clients), law.of_used(clients).among(clients, degree)
        return cls(asked.rounds - 1, asked.honest, clients, used, absent)

    def cost(self, gamma: float) -> float:
        """The sum of k over these rounds that no client exceeds, with probability `LASTS` (R1).

        By Chernoff's bound for each client, and a union bound over all.
        """
        costs, chances = self.law(gamma)
        return self.rounds * float(costs[0]) if len(costs) == 1 else self._chernoff(costs, chances)

    def law(self, gamma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Costs of a round to a client and their probabilities."""
        missing, chances = self._support
        costs = 1 / gain(np.maximum(self.honest - missing, 1), gamma)
        if self.used == 1:
            return costs, chances
        return np.append(costs, 0.0), np.append(self.used * chances, 1 - self.used)

    @cached_property
    def _support(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Numbers of absent neighbours that occur, and their probabilities: a rounded law has many that do not."""
        missing = np.flatnonzero(self.absent.pmf)
        return missing, self.absent.pmf[missing]

    def levels(self, gamma: float, blocks: int) -> list[tuple[float, int]]:
        """Costs, and numbers of rounds that have them, which add up to at least `cost`.

        Args:
            gamma: γ.
            blocks: how many costs at most; they are quantiles, rounded to more stragglers.
        """
        found = self._quantiles(gamma, self.rounds, blocks)
        if (total := sum(cost * count for cost, count in found)) > 0:
            needed = math.ceil(self.rounds * self.cost(gamma) / total * (1 - 1e-12))
            found = self._quantiles(gamma, needed, blocks)
        return found

    def _quantiles(self, gamma: float, rounds: int, blocks: int) -> list[tuple[float, int]]:
        counts = self.absent.quantiles(rounds, blocks)
        return [(1 / float(gain(max(self.honest - s, 1), gamma)), count) for s, count in counts.items()]

    def _chernoff(self, costs: NDArray[np.float64], chances: NDArray[np.float64]) -> float:
        """The least (T log E e^{θk} + log(N/0.01))/θ over θ > 0, at most T times the largest k.

        The least is where T (θ K' − K) = log(N/0.01), with K(θ) = log E e^{θk}; Newton's method finds it from the left
        in the square roots of both sides, which are nearly linear in θ.
        """
        most, target = float(costs.max()), math.log(self.clients / (1 - LASTS))
        excess = costs - most  # <= 0, so that nothing overflows
        best, spread = self.rounds * most, float(chances @ costs**2 - (chances @ costs) ** 2)
        theta = math.sqrt(2 * target / (self.rounds * spread)) if self.rounds * spread > 0 else math.inf
        for _ in range(_STEPS):
            if not theta * most < 1e6:  # no bound below T times the largest cost
                break
            weights = chances * np.exp(theta * excess)
            total = float(weights.sum())
            mean = float(weights @ excess) / total  # of k − `most` under the tilted law
            variance = max(float(weights @ excess**2) / total - mean**2, 0.0)
            reached = self.rounds * (theta * mean - math.log(total))
            best = min(best, self.rounds * most + (self.rounds * math.log(total) + target) / theta)
            if not reached > 0 or variance == 0 or abs(reached - target) < 1e-9 * target:
                break
            step = (math.sqrt(2 * target) - math.sqrt(2 * reached)) * math.sqrt(2 * reached)
            theta = max(theta + step / (self.rounds * theta * variance), theta / 4)
        return best

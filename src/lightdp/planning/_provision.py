"""(D6), (R6): how much of a budget a plan with repair provides for the rounds of a client.

What a round costs a client depends on how many of its neighbours straggle. A round that it misses costs nothing, or
more than a used one if its upload is seen too late. So what a client spends is random. A plan provides for so much
that it lasts: with probability 99 % no client runs out before the last round, if stragglers are as the plan says.

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
from lightdp.repair import RETRIES, late_at_worst, late_cost, used_at_worst, worst_cost
from lightdp.stragglers import StragglerLaw, uniform

LASTS = 0.99
"""The probability with which a budget lasts for every client, if stragglers are as expected."""
_STEPS = 40  # Newton's; more than enough, and each gives a bound


@dataclass(frozen=True)
class Provision:
    """What a plan with repair provides for.

    Attributes:
        asked: what is asked of the plan.
        rounds: rounds that are counted as they happen: without the last one, which begins only if its worst case fits,
            and under grace without the one before it, whose set is not final then.
        used: the probability that a client is used in a round.
        absent: how many of its neighbours straggle in a round in which it is used.
        late: the share of a client's missed rounds whose uploads are seen too late.
        others: how many of its neighbours straggle in a round in which it does.
    """

    asked: Request
    rounds: int
    used: float
    absent: StragglerLaw
    late: float
    others: StragglerLaw

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
        late = 0.0 if asked.late == "unseen" else asked.late
        others = law.of_straggler().among(clients, degree) if late > 0 else uniform(0)
        return cls(asked, max(asked.rounds - 1 - asked.grace, 0), used, absent, late, others)

    @property
    def least(self) -> int:
        """The fewest honest clients in a client's neighbourhood in a round that is used, itself included."""
        return max(self.asked.honest - self.asked.stragglers, 1)

    def cost(self, gamma: float) -> float:
        """The sum of k over these rounds that no client exceeds, with probability `LASTS` (R1).

        By Chernoff's bound for each client, and a union bound over all.
        """
        costs, chances = self.law(gamma)
        return self.rounds * float(costs[0]) if len(costs) == 1 else self._chernoff(costs, chances)

    def law(self, gamma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Costs of a round to a client and their probabilities."""
        missing, chances = self._absent
        costs = 1 / gain(np.maximum(self.asked.honest - missing, 1), gamma)
        if self.used == 1:
            return costs, chances
        away, parts, shares = 1 - self.used, [costs, np.zeros(1)], [self.used * chances]
        shares.append(np.array([away * (1 - self.late)]))
        if self.late > 0:
            missing, chances = self._others
            parts.append(np.array([self.late_cost(gamma, absent) for absent in missing.tolist()]))
            shares.append(away * self.late * chances)
        return np.concatenate(parts), np.concatenate(shares)

    def late_cost(self, gamma: float, absent: int) -> float:
        """(R6): what a late round costs, with the later rounds in which peers repair it, about as the odometer counts.

        Each peer that was used in it repairs in the next round in which it is used, and may be late with it.

        Args:
            gamma: γ.
            absent: neighbours that straggled too.
        """
        honest, peers = self.asked.honest - 1 - absent, self.asked.graph.degree - absent
        if honest < 1:
            return 1.0
        again = peers * (1 - self.used) / self.used  # rounds that peers miss before they have repaired
        retries = self.late * again
        crossed = 1 / self.least + retries / (honest * self.asked.honest)
        riding = 1 + again / honest
        return late_cost(gamma, honest, crossed, retries) + riding * gamma / ((honest + 1) * gamma + 1)

    def last(self, gamma: float) -> list[float]:
        """What the budget must have left for the last round to begin, beside `cost`.

        Its worst case with all lies (W5); under grace the worst case of the round that waits for its set (R5); where
        uploads are late, all repairs of a late round that may still be late themselves (R6).
        """
        asked, bounds = self.asked, (gamma, self.asked.honest, self.asked.stragglers)
        seen, late = asked.late_is_seen, self.late > 0 and self.used < 1
        crossed = 1 / self.least if late else 0.0  # repairs of one late round ride in it
        found = [worst_cost(*bounds, seen=seen, crossed=crossed, grace=asked.grace)]
        if self.rounds < asked.rounds - 1:
            used, too_late = used_at_worst(*bounds, crossed), late_at_worst(*bounds, crossed)
            found.append(max(used, too_late) if seen else used)
        honest = asked.honest - 1 - self.others.bound
        if late and honest >= 1:
            most = RETRIES * honest
            retried = late_cost(gamma, honest, 1 / self.least + most / (honest * asked.honest), most)
            found.append(retried - late_cost(gamma, honest, 1 / self.least))
        return found

    @cached_property
    def _absent(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return _support(self.absent)

    @cached_property
    def _others(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return _support(self.others)

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
        return [(1 / float(gain(max(self.asked.honest - s, 1), gamma)), count) for s, count in counts.items()]

    def _chernoff(self, costs: NDArray[np.float64], chances: NDArray[np.float64]) -> float:
        """The least (T log E e^{θk} + log(N/0.01))/θ over θ > 0, at most T times the largest k.

        The least is where T (θ K' − K) = log(N/0.01), with K(θ) = log E e^{θk}; Newton's method finds it from the left
        in the square roots of both sides, which are nearly linear in θ.
        """
        most, target = float(costs.max()), math.log(self.asked.clients / (1 - LASTS))
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


def _support(law: StragglerLaw) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts that occur and their probabilities: a law that was rounded has many that do not."""
    counts = np.flatnonzero(law.pmf)
    return counts, law.pmf[counts]

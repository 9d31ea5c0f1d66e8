"""What narrow and lost masks can cost a client in a whole training (B2)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lightdp.drawn._law import LOST, PARTS, SIGMA
from lightdp.random_graph import COVERED

_FAILS = 1e-7  # the share of δ that more losses than these may have; `COVERED` makes room for 80 rosters
_STEPS = 48  # of the grid, in what one lost mask costs
_ENTRIES = 3000  # of the grid, at most
_MOST_LOST = 12  # in one coordinate of one round; more count as the largest cost
_ROUND_UP = 1 + 1e-9

__all__ = ["COVERED", "cost"]


@lru_cache(maxsize=256)
def cost(gamma: float, honest: int, stragglers: int, most: int, delta: float, *, grace: int = 0) -> float:
    """α of (B2): what drawn masks add to the costs of a client in its whole training in a roster, at most.

    Args:
        gamma: γ.
        honest: n.
        stragglers: S̄.
        most: rounds with data that a client can have, at most.
        delta: δ of the plan.
        grace: rounds for which uploads may be late and are used all the same.

    Returns:
        The cost in units of (Δ/σ_U)²; infinity where so many masks may be lost that it has no bound here.
    """
    if gamma <= 0 or honest < 2:
        return math.inf
    lost, peers, chance = _lost(gamma, honest, stragglers, grace), honest - 1, _FAILS * delta
    narrow = [
        (((SIGMA / part.sigma) ** 2 - 1) / (gamma * max(honest - stragglers, 1) ** 2), part.weight) for part in PARTS
    ]
    few = [each for each in narrow if each[0] * _STEPS > lost[1]]
    many = [each for each in narrow if 0 < each[0] * _STEPS <= lost[1]]
    mean = most * peers * (LOST + math.fsum(cost / lost[1] * weight for cost, weight in few))
    size = math.ceil(32 + 4 * mean)  # of the grid, in lost masks; more counts as the largest cost
    steps = max(min(_STEPS, _ENTRIES // size), 1)
    step = lost[1] / steps
    once, mask = np.zeros((2, size * steps + 1))  # what a round and a mask add, rounded up; the last entry is more
    for f, cost_of in enumerate(lost[: peers + 1].tolist()):
        once[_place(cost_of, step, once.size)] += math.comb(peers, f) * LOST**f * (1 - LOST) ** (peers - f)
    once[-1] += math.comb(peers, lost.size) * LOST**lost.size  # some set of so many
    for cost_of, weight in few:
        mask[_place(cost_of, step, mask.size)] += weight
    mask[0] += 1 - math.fsum(weight for _, weight in few)
    total = _sum(_power(once, most), _power(mask, most * peers))
    largest = most * (1 + peers * max(cost_of for cost_of, _ in narrow)) / step
    found = _quantile(total[:-1], 0.9 * chance, float(total[-1]) * largest) * step
    return float(found + _chernoff(many, most * peers, chance / 10)) * _ROUND_UP


def _place(cost_of: float, step: float, size: int) -> int:
    return min(math.ceil(cost_of / step * _ROUND_UP), size - 1)


def _chernoff(costs: list[tuple[float, float]], count: int, chance: float) -> float:
    """What so many independent costs add up to, but for this chance: the best of a grid of rates.

    Args:
        costs: each with its probability.
        count: how many are drawn.
        chance: of more.
    """
    found, largest = math.inf, max((cost for cost, _ in costs), default=1.0)
    for k in range(-40, 25) if costs else ():
        rate = 2 ** (k / 4) / largest
        growth = math.fsum(weight * math.expm1(rate * cost) for cost, weight in costs)
        found = min(found, (count * growth - math.log(chance)) / rate)  # ln(1 + growth) <= growth
    return found if costs else 0.0


def _lost(gamma: float, honest: int, stragglers: int, grace: int) -> NDArray[np.float64]:
    """I(f): how much more any round can cost in a coordinate in which f masks are lost, for f = 0, 1, ..."""
    least, f = max(honest - stragglers, 1), np.arange(_MOST_LOST + 1.0)
    stays, leaves = gamma / (1 + gamma), gamma / (1 + 4 * gamma)
    moved = stays / (1 + (least - 1) * stays)
    used = 2 * moved * f / (1 + (least - 1) * leaves) + (moved * f) ** 2
    spread = (4 + 1 / gamma) / least
    crossed = 1 / least + 2 / honest + (1 + grace) * (honest - 1) / least**2
    own = min((spread + crossed / 2) / (1 + spread), 0.5)
    late = 2 * own * (1 - own) * f / least + np.maximum(f * f - f * (1 + 1 / gamma), 0) / least**2
    return np.minimum(np.maximum(used, late), 1.0)


def _sum(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """The law of a sum; whatever is beyond the grid stays there."""
    both = np.convolve(one, other)
    both[one.size - 1] = both[one.size - 1 :].sum()
    return both[: one.size]


def _power(law: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The law of the sum of so many."""
    result = np.zeros_like(law)
    result[0] = 1.0
    while count > 0:
        if count & 1:
            result = _sum(result, law)
        count >>= 1
        law = _sum(law, law) if count else law
    return result


def _quantile(law: NDArray[np.float64], chance: float, more: float) -> float:
    """The least x that a mean of such sums exceeds with at most this probability: E(S − u)₊/(x − u), with the best u.

    By Jensen's inequality E(S − u)₊ is largest where a change of the data lies in one coordinate.

    Args:
        law: of S = 0, 1, ..., without what is beyond.
        chance: the probability.
        more: the mean of what is beyond, at most.
    """
    beyond = np.cumsum(law[::-1])[::-1]  # P(S >= s)
    above = np.append(np.cumsum(beyond[:0:-1])[::-1], 0.0)  # E(S − u)₊ for u = 0, 1, ...
    x = float(np.min(np.arange(law.size) + (above + more) / chance))
    return x if x < law.size else math.inf

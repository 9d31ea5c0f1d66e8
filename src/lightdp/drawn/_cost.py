"""What narrow and lost masks can cost a client in a whole training (B2)."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from lightdp.drawn._law import LOST, PARTS, SIGMA

COVERED = 1 + 1e-4
"""How many times every cost counts, which makes room for what may fail (`room`)."""

VALUES_MAX = 2**32
"""Values of an upload, at most, for which `cost` counts clusters of lost masks."""

_CLUSTER = 1e-8  # the share of δ for more lost masks in a coordinate of a round than are told apart
_LARGEST = 600.0  # exponent that a float holds with room to spare
_RATES = np.arange(-20, 200) / 4.0  # of Chernoff's bound: powers of 2, in what one lost mask costs
_ROUND_UP = 1 + 1e-9


def room(steepness: float) -> float:
    """The share of δ for which `COVERED` makes room, where ε/μ − μ/2 is at least so much (B2).

    >>> round(room(3.0) * 1e4, 6)
    4.5
    """
    return 0.9 * (COVERED - 1) * (1 + steepness**2) / 2


@lru_cache(maxsize=256)
def cost(gamma: float, honest: int, stragglers: int, most: int, delta: float, *, fails: float, grace: int = 0) -> float:
    """α of (B2): what drawn masks add to the costs of a client in its whole training in a roster, at most.

    Args:
        gamma: γ.
        honest: n.
        stragglers: S̄.
        most: rounds with data that a client can have, at most.
        delta: δ of the plan.
        fails: the share of δ with which they may add more.
        grace: rounds for which uploads may be late and are used all the same.

    Returns:
        The cost in units of (Δ/σ_U)²; infinity where so many masks may be lost that it has no bound here.
    """
    if gamma <= 0 or honest < 2 or fails <= _CLUSTER:
        return math.inf
    draws, others = 2 * most * (honest - 1), 2 * (honest - 1) - 1  # masks of the training, and others of a round
    together = _together(draws, others, delta)
    lost = np.append(found := lost_costs(gamma, honest, stragglers, grace, together), found[-1])
    costs = np.array([((SIGMA / part.sigma) ** 2 - 1) / (gamma * max(honest - stragglers, 1) ** 2) for part in PARTS])
    weights = np.array([part.weight for part in PARTS])
    first = np.array([LOST * _falls(others, k) for k in range(together + 1)])  # lost, and k more in the same round
    chance, alpha = (fails - _CLUSTER) * delta, math.inf
    for rate in 2.0**_RATES / max(lost[0], 1e-300):
        if rate * max(lost[-1], costs.max()) > _LARGEST:
            break
        narrow, loses = weights @ np.expm1(rate * costs), first @ np.expm1(rate * lost)
        alpha = min(alpha, (draws * (math.log1p(narrow) + math.log1p(loses)) - math.log(chance)) / rate)
    return float(alpha) * _ROUND_UP


def lost_costs(gamma: float, honest: int, stragglers: int, grace: int, most: int) -> NDArray[np.float64]:
    """I(f): how much more any round can cost in a coordinate in which f masks are lost, for f = 1, ..., `most`."""
    least, f = max(honest - stragglers, 1), np.arange(1.0, most + 1)
    stays, leaves, saved = gamma / (1 + gamma), gamma / (1 + 4 * gamma), f * f - f * (1 + 1 / gamma)
    moved = stays / (1 + (least - 1) * stays)
    used = 2 * moved * f / (1 + (least - 1) * leaves) + moved**2 * saved
    spread = (4 + 1 / gamma) / least
    crossed = 1 / least + 2 / honest + (1 + grace) * (honest - 1) / least**2
    shared = max((1 - crossed / 2) / (1 + spread), 0.0)  # the least share w of a late round that its peers carry
    bend = 2 * f / least - saved / least**2
    best = np.where(bend > 0, np.clip(f / least / np.where(bend > 0, bend, 1), shared, 1), 1.0)
    late = 2 * f / least * best - bend * best**2
    return np.clip(np.maximum(used, late), 0.0, 1.0)


def _falls(others: int, lost: int) -> float:
    """A bound on the probability that at least so many of the others are lost, by the number of ways to choose them."""
    return math.prod((others - k) * LOST / (k + 1) for k in range(lost)) if lost <= others else 0.0


def _together(draws: int, others: int, delta: float) -> int:
    """So many masks at least that no more are lost in one coordinate of a round, in any of all coordinates."""
    return next(k for k in count(1) if VALUES_MAX * draws * LOST * _falls(others, k) <= _CLUSTER * delta)

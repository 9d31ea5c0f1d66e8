"""How bad a draw of seats may be (S1): tails of the hypergeometric law, and what they may add to δ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

DRAWS = 2.0**40
"""How many rosters a server may try before it takes one; the chance of a bad draw counts so many times."""

BAD_DRAW = 1e-6
"""The share of δ that bad draws of all these rosters may have together."""

DELTA_MAX = 0.01
"""The largest δ for which `COVERED` is proven to be enough."""

_LOGARITHMS = 1.01  # more than differences of logarithms of factorials up to 2^31 are rounded


@lru_cache(maxsize=64)
def largest(seats: int, marked: int, drawn: int, chance: float) -> int:
    """The least x with P(X > x) <= `chance`, X how many of `drawn` seats beside one's own are `marked`."""
    total, x = 0.0, min(drawn, marked)
    for x, weight in _downwards(seats - 1, marked, drawn):
        total += weight
        if total * _LOGARITHMS > chance:
            return x
    return x


def _downwards(population: int, marked: int, drawn: int) -> Iterator[tuple[int, float]]:
    """P(X = x) of the hypergeometric law, from the largest x down."""
    for x in range(min(drawn, marked), max(drawn + marked - population, 0) - 1, -1):
        log = _choose(marked, x) + _choose(population - marked, drawn - x) - _choose(population, drawn)
        yield x, math.exp(log) if log > -740 else 0.0


def _choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

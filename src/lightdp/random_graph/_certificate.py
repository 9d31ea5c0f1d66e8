"""What a round on a random graph gives each client (S1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

COVERED = 1 + 1e-4
"""By this factor on μ², the Gaussian's share of δ leaves room for `BAD_DRAW` in each of 40 rosters (S1)."""

_BITS = 11  # of a cost


class Certificate(NamedTuple):
    """(S1): what a round of a random graph gives each of its clients.

    Attributes:
        others: honest clients that were surely used, beside the client itself.
        spread: Λ, the least eigenvalue above zero of their Laplacian, at least.
    """

    others: int
    spread: float

    def cost(self, gamma: float, neighbours: ArrayLike) -> NDArray[np.float64]:
        """k of a used round for clients with so many honest used neighbours, an entry each; at most 1.

        >>> Certificate(others=7999, spread=10.0).cost(50.0, [40]).round(6)
        array([0.000675])
        """
        h = np.maximum(np.asarray(neighbours, dtype=float), 0.0)
        if gamma == 0 or self.others < 1:
            return np.ones(h.shape)
        beyond = 1 / (1 + gamma * self.spread) if self.spread > 0 else 1.0  # each behind its own noise alone (E4)
        mean = 1 / self.others if self.spread > 0 else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            resistance = (1 / gamma + beyond) / h + mean
            core = np.where(h > 0, resistance / (1 + resistance), 1.0)
            star = (1 + gamma) / (1 + gamma + h * gamma)
        return np.minimum(np.minimum(core, star) * COVERED, 1.0)

    def load(self, gamma: float, neighbours: int) -> float:
        """What it costs that a unit is spread evenly over so many honest used neighbours of a client, at most 1.

        >>> round(Certificate(others=7999, spread=10.0).load(50.0, 40), 6)
        0.000175
        """
        if self.spread <= 0 or self.others < 1 or neighbours < 1:
            return 1.0
        return min(1.0, (1 / self.others + 1 / (neighbours * (1 + gamma * self.spread))) * COVERED)


def rounded_up(costs: ArrayLike) -> NDArray[np.float64]:
    """To 11 bits, by at most a thousandth: a training then has few different costs, the same on every machine."""
    mantissas, exponents = np.frexp(costs)
    return np.asarray(np.minimum(np.ldexp(np.ceil(mantissas * 2**_BITS), exponents - _BITS), 1.0))

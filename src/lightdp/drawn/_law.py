"""The law of drawn masks, and the discrete Gaussians in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lightdp import gaussian
from lightdp._native.tables import TABLES
from lightdp._validate import positive
from lightdp.drawn._parts import FOUND, SCALE
from lightdp.errors import InfeasibleError

BITS = 24
"""Bits of keystream that a value takes."""

LOOKS = 5
"""Uploads that may hold one mask: those of its two clients, and three repairs by one of them (R1)."""

MORE_LOOKS = 8
"""The same where both repair it, as they do if they were told different sets of its round, once for each peer (W5)."""

_BEYOND, _SEEN = 2e-6, 2e-6  # shares of δ for masks beyond the reach of their Gaussian, and for the lattice
_ROUNDED = 0.99  # how much coarser whole units may make the lattice
_FINE = 1.9  # steps²: the least variance, given all looks, that makes the lattice of masks invisible


@dataclass(frozen=True)
class Part:
    """Discrete Gaussians of one width that a drawn value is, plus a place that is independent.

    Attributes:
        sigma: their width, in steps: the probability of x is in proportion to exp(−x²/2σ²).
        reach: the largest |x|.
        places: the probability of each place e >= 0, which is that of −e, too.
    """

    sigma: float
    reach: int
    places: dict[int, float]

    @property
    def weight(self) -> float:
        """The probability that a drawn value is one of these."""
        return math.fsum(chance * (2 if place else 1) for place, chance in self.places.items())

    @property
    def beyond(self) -> float:
        """A bound on the probability that such a Gaussian without bounds exceeds the reach."""
        tail = self.reach + 1
        return 2 * math.exp(-(tail**2) / (2 * self.sigma**2)) / (1 - math.exp(-tail / self.sigma**2)) / self.sigma

    def ripple(self, gamma: float, looks: int = LOOKS) -> float:
        """ω: how much the lattice changes the probability of anything that is seen, at most, relative to it."""
        variance = 1 / (1 / self.sigma**2 + looks / _least(gamma) ** 2)
        return 2.1 * math.exp(-2 * math.pi**2 * variance)


PARTS = tuple(
    Part(sigma, reach, {place: chance / SCALE for place, chance in places.items()}) for sigma, reach, places in FOUND
)
"""What drawn values are: the widest first. `python -m lightdp_lab.drawn` finds them, and the tests check them."""

SIGMA = PARTS[0].sigma
"""The width that nearly all values have, and that counts for γ."""

LOST = max(1 - math.fsum(part.weight for part in PARTS), 0.0)
"""The probability that a value is none of the parts; it then counts as known to everybody."""

KAPPA = math.sqrt(LOOKS / (1 / _FINE - 1 / PARTS[-1].sigma ** 2))
"""How many steps of the lattice σ_U must have, so that nobody sees them."""

GAMMA_MAX = (SIGMA / KAPPA) ** 2
"""The largest γ that drawn masks can have."""


@cache
def counts() -> NDArray[np.int64]:
    """Of the 2^24 keystreams of a value, how many give −128, ..., 127; exact. (256,)"""
    bytes_of = []
    for low, high in zip(TABLES[::2], TABLES[1::2], strict=True):
        values = np.add.outer(high, low).ravel()  # by byte, lower bits last
        bytes_of.append(np.bincount(values + 128, minlength=256))
    total = np.convolve(np.convolve(bytes_of[0], bytes_of[1]), bytes_of[2])[256:512]
    first = sum(table[15] for table in TABLES[:4])  # of the bytes 255 and 255, which give the third byte itself
    return np.asarray(total - np.roll(bytes_of[2], first) + 1)


_VALUES = np.arange(-128, 128)
VARIANCE = float(counts() @ (_VALUES**2)) / 2**BITS
"""Mean square of a value, in steps²."""


def log_moment(t: float) -> float:
    """ln E exp(t x value), of either sign: the larger, exact up to rounding.

    >>> round(log_moment(0.01) / (0.01**2 / 2 * VARIANCE), 3)
    1.0
    """
    with np.errstate(over="ignore"):
        found = max(float(counts() @ np.exp(sign * t * _VALUES)) for sign in (1, -1))
    return math.log(found) - BITS * math.log(2) if math.isfinite(found) else abs(t) * 128


def _least(gamma: float) -> float:
    """The fewest steps of the lattice that σ_U may have: about as many as γ leaves, but at most twice `KAPPA`."""
    return max(KAPPA, min(_ROUNDED * SIGMA / math.sqrt(gamma), 2 * KAPPA))


def unit(sigma: float, gamma: float) -> int:
    """How many steps of a fine grid a value counts for, so that masks have at least γ times the variance of σ_U.

    Args:
        sigma: σ_U in steps of the grid.
        gamma: γ.

    >>> unit(1024.0, 7.6), 1024 / unit(1024.0, 7.6) >= KAPPA
    (246, True)

    Raises:
        InfeasibleError: the grid is too coarse for so large a γ.
    """
    found = max(math.ceil(positive("sigma", sigma) * math.sqrt(gamma) / SIGMA + 1e-6), 1)
    if sigma < _least(gamma) * found:
        raise InfeasibleError(
            f'masks="drawn" need gamma <= {GAMMA_MAX:.3g} and a finer grid than sigma={sigma:g} steps, got '
            f'gamma={gamma:g}: take masks="gaussian"'
        )
    return found


def beyond(values: float, rosters: int = 1) -> float:
    """τ: a bound on the probability that one of so many masks is beyond the reach of its Gaussian (B2).

    It covers that more masks of one width are drawn than `fits` reckons with, too.

    Args:
        values: masks in all rosters.
        rosters: how many there are.

    >>> 0 < beyond(1e12) < 1e-12
    True
    """
    return values * math.fsum(part.weight * part.beyond for part in PARTS) + rosters * 1e-26


def fits(gamma: float, epsilon: float, delta: float, values: float, *, repeated: float, begun: float = 1.0) -> bool:
    """Whether masks beyond all reaches, and the lattice, stay within their share of δ (B2), at any time.

    Args:
        gamma: γ.
        epsilon: ε of the whole training.
        delta: its δ.
        values: masks of a client in the whole training: parameters times rounds times honest peers.
        repeated: those of them that both clients may repair: parameters times honest peers, twice that with grace.
        begun: the share of μ² that a client has spent as soon as it has spent anything.
    """
    if not 0 < gamma <= GAMMA_MAX or epsilon > 100:
        return False
    values, repeated = 2 * values, 2 * repeated  # rounds count that the client itself was not asked in
    if (1 + math.exp(epsilon)) * beyond(values) > _BEYOND * delta:
        return False
    seen = 200 * max(part.ripple(gamma, MORE_LOOKS) for part in PARTS)
    for count, looks in ((values, LOOKS), (repeated, MORE_LOOKS)):
        seen += math.fsum(4 * count * part.weight * part.ripple(gamma, looks) for part in PARTS)
    mu = gaussian.mu(epsilon, delta)
    for one in (mu, mu * math.sqrt(begun)):
        at = epsilon if one == mu else gaussian.epsilon(one, delta)
        if 2 * seen >= at or gaussian.delta(at - 2 * seen, one) * math.exp(seen) > delta * (1 + _SEEN):
            return False
    return True

"""What is seen of one client among two to four whose masks are drawn, by exact sums over all masks (B2).

One coordinate; σ_U is 1. A direction of the uploads that holds no mask is Gaussian and taken in by its formula, all
others are summed up. Nothing here knows which Gaussians are found in drawn masks, nor what ledgers count.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from lightdp import drawn
from lightdp._native.tables import TABLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

VALUES = np.arange(-128, 128)
EPSILONS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
ROUNDING = 1e-13  # of sums and Fourier transforms
MORE = 1.44  # a γ so many times too large is that of units 20 % too small


def law() -> Floats:
    """The probability of each value, by going through its three bytes as `lightdp.stream` says it."""
    low, middle, high = (
        [low[b % 16] + high[b // 16] for b in range(256)] for low, high in zip(TABLES[::2], TABLES[1::2], strict=True)
    )
    first = np.zeros(512)
    for one, other in itertools.product(range(256), repeat=2):
        if (one, other) != (255, 255):
            first[low[one] + middle[other] + 256] += 1
    ways = np.sum([np.roll(first, last)[128:384] for last in high], axis=0)
    return (ways + 1) / 2.0**24  # after 255 and 255 every signed byte comes once


ODDS = law()


def gaussian(epsilon: Any, mu: float) -> Floats:
    """δ of the Gaussian mechanism."""
    epsilon = np.asarray(epsilon, float)
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def deltas(one: Floats, other: Floats, mu: float) -> Floats:
    """δ at `EPSILONS` of telling two laws apart, beside a Gaussian mechanism of this μ. The larger of both ways."""
    found = []
    for p, q in ((one, other), (other, one)):
        sure = (p > 1e-15 * p.max()) & (q > 1e-15 * q.max())
        loss, beyond = np.log(p[sure] / q[sure]), p[~sure].clip(0).sum()
        found.append([p[sure] @ gaussian(epsilon - loss, mu) + beyond for epsilon in EPSILONS])
    return np.max(found, axis=0)


def of_one_mask(unit: float, looks: int, shift: float) -> Floats:
    """Of an upload with one mask, which a peer's upload and its repairs show `looks` times as often, with own noise.

    Their mean is the mask with noise of variance 1/looks. Upload minus mean has no mask in it, upload plus so many
    means has independent noise.
    """
    spread, step = math.sqrt(1 + looks), (1 + looks) * unit
    reach = 128 * step + 10 * spread
    at = np.arange(-reach, reach + shift, 0.2 * spread)

    def density(where: Floats) -> Floats:
        found = np.zeros_like(where)
        for value, odds in zip(VALUES, ODDS, strict=True):
            found += odds * np.exp(-((where - step * value) ** 2) / (2 * spread**2))
        return found * 0.2 / math.sqrt(2 * math.pi)

    return deltas(density(at), density(at - shift), shift / math.sqrt(1 + 1 / looks))


def of_everybody(clients: int, unit: float, shift: float, *, reach: float, step: float) -> Floats:
    """Of the uploads of some clients, each two of which share a mask, by Fourier transforms.

    The mean has no mask in it. Left are the differences of all uploads but the last from it.
    """
    size, rest = 2 * round(reach / step), clients - 1
    each = 2 * math.pi / (size * step)
    mask = np.array([ODDS @ np.exp(1j * unit * each * k * VALUES) for k in range(-size, size + 1)])
    at = np.meshgrid(*[np.rint(np.fft.fftfreq(size) * size).astype(int)] * rest, indexing="ij")
    total = sum(at[1:], at[0])
    law = np.exp(-(each**2) * (sum(k * k for k in at) - total**2 / clients) / 2).astype(complex)
    for one, other in itertools.combinations([*at, np.zeros_like(total)], 2):
        law *= mask[one - other + size]
    moved = law * np.exp(1j * each * shift * (at[0] - total / clients))
    p, q = (np.fft.fftn(found).real.ravel() / size**rest for found in (law, moved))
    return deltas(p, q, shift / math.sqrt(clients))


def unit(gamma: float) -> float:
    """Of σ_U, as `drawn.unit` has it on a fine grid."""
    return math.sqrt(gamma) / drawn.SIGMA


@pytest.mark.parametrize("shift", [0.5, 2.0])
@pytest.mark.parametrize("looks", [1, 2, 4])
@pytest.mark.parametrize("gamma", [0.3, 2.0, 7.6, drawn.GAMMA_MAX])
def test_a_mask_that_is_looked_at_again_hides_as_much_as_its_gamma_says(gamma: float, looks: int, shift: float) -> None:
    """A peer, and the three uploads at most in which it repairs (R1)."""
    found = of_one_mask(unit(gamma), looks, shift)

    def claimed(gamma: float) -> Floats:
        return gaussian(EPSILONS, shift / math.sqrt(1 + 1 / (1 / gamma + looks)))

    assert np.all(found <= claimed(gamma) + ROUNDING)
    assert np.all((found > claimed(MORE * gamma))[claimed(gamma) > 100 * ROUNDING])


@pytest.mark.parametrize(
    ("clients", "gamma", "reach"),
    [(2, 7.6, 75.0), (2, drawn.GAMMA_MAX, 85.0), (3, 7.6, 70.0), (3, 0.5, 25.0), (4, 1.0, 20.0)],
)
@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_a_sum_hides_as_much_as_its_gamma_says(clients: int, gamma: float, reach: float, shift: float) -> None:
    found = of_everybody(clients, unit(gamma), shift, reach=reach, step=0.35 if clients > 2 else 0.2)

    def claimed(gamma: float) -> Floats:
        return gaussian(EPSILONS, shift * math.sqrt((1 + gamma) / (clients * gamma + 1)))

    assert np.all(found <= claimed(gamma) + ROUNDING)
    assert np.all((found > claimed(MORE * gamma))[claimed(gamma) > 100 * ROUNDING])


def test_both_ways_to_sum_up_agree_where_they_see_the_same() -> None:
    one, other = of_one_mask(unit(5.0), 1, 1.0), of_everybody(2, unit(5.0), 1.0, reach=65.0, step=0.2)
    assert one == pytest.approx(other, rel=1e-6, abs=ROUNDING)


def test_a_unit_so_large_that_its_lattice_shows_is_told_by_these_sums() -> None:
    """σ_U of one step in place of `drawn.KAPPA`: γ is large, and protects less than it says."""
    gamma = drawn.SIGMA**2
    assert np.all(of_one_mask(1.0, 4, 0.5) > gaussian(EPSILONS, 0.5 / math.sqrt(1 + 1 / (1 / gamma + 4))))


def test_the_law_is_that_of_the_package() -> None:
    assert np.array_equal(ODDS * 2.0**24, drawn.counts())

"""Samples are Gaussian and independent. Keys are fixed; each test also rejects what is slightly wrong."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from lightdp.stream import SIGMA_MAX
from support.streams import KEY, OTHER, samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SIGMA = 1000.0


@cache
def long() -> NDArray[np.float64]:
    """2^21 samples in units of their theoretical standard deviation."""
    return np.asarray(samples(KEY, SIGMA, 1 << 21) / np.sqrt(SIGMA**2 + 1 / 12))


def ks(z: NDArray[np.float64]) -> float:
    return float(stats.kstest(z, "norm").pvalue)


def moments(z: NDArray[np.float64]) -> float:
    n = len(z)
    scores = [z.mean() * np.sqrt(n), (z.var() - 1) * np.sqrt(n / 2), ((z**4).mean() - 3) * np.sqrt(n / 96)]
    return float(2 * stats.norm.sf(np.abs(scores).max()) * len(scores))


def tails(z: NDArray[np.float64]) -> float:
    edges = np.array([0, 2, 2.5, 3, 3.5, 4, np.inf])
    seen = np.concatenate([np.histogram(side, edges)[0] for side in (z[z > 0], -z[z < 0])])
    chance = np.tile(np.diff(stats.norm.cdf(edges)), 2)
    expected = chance / chance.sum() * seen.sum()
    return float(stats.chisquare(seen, expected).pvalue)


@pytest.mark.parametrize("test", [ks, moments, tails], ids=["ks", "moments", "tails"])
def test_samples_are_gaussian_and_a_two_percent_wrong_scale_is_not(test: Callable[..., float]) -> None:
    assert test(long()) > 1e-3
    assert test(long() * 1.02) < 1e-9
    assert test(long() / 1.02) < 1e-9


def test_neighbours_and_the_two_halves_of_a_pair_are_uncorrelated() -> None:
    z = long()
    for values in (z, z**2 - 1):
        spread = values.var()
        for lag in (1, 2, 3, 511, 512, 513, 1023, 1024, 2048):
            assert abs(np.mean(values[lag:] * values[:-lag])) / spread * np.sqrt(len(z)) < 4
    assert abs(np.mean((z[1:] + 0.01 * z[:-1]) * z[:-1])) * np.sqrt(len(z)) > 4


def test_keys_that_differ_in_one_bit_give_independent_samples() -> None:
    other = samples(bytes([KEY[0] ^ 1]) + KEY[1:], SIGMA, 1 << 21) / SIGMA
    for power in (1, 2):
        x, y = long() ** power, other**power
        assert abs(np.corrcoef(x, y)[0, 1]) * np.sqrt(len(x)) < 4
        assert abs(np.corrcoef(x, y + 0.01 * x)[0, 1]) * np.sqrt(len(x)) > 4


@pytest.mark.parametrize("sigma", [1.5, 100.0, SIGMA_MAX])
def test_low_bits_of_the_integers_are_unbiased(sigma: float) -> None:
    values = samples(OTHER, sigma, 1 << 22)
    for bit in (0, 1) if sigma > 2 else (0,):
        ones = values >> bit & 1
        assert abs(ones.mean() - 0.5) * 2 * np.sqrt(len(values)) < 4
        assert abs((ones | (np.arange(len(values)) % 256 == 0)).mean() - 0.5) * 2 * np.sqrt(len(values)) > 4


@pytest.mark.parametrize("sigma", [1.0, 3.0, 100.0])
def test_the_variance_is_sigma_squared_plus_a_twelfth(sigma: float) -> None:
    values = samples(OTHER, sigma, 1 << 22).astype(float)
    expected = sigma**2 + 1 / 12
    assert abs(values.var() / expected - 1) * np.sqrt(len(values) / 2) < 4
    assert abs(values.mean()) / np.sqrt(expected) * np.sqrt(len(values)) < 4
    if sigma <= 3:
        assert abs(values.var() / sigma**2 - 1) * np.sqrt(len(values) / 2) > 4

"""The three measurements and the test of the covariance, on Gaussian uploads that the test draws itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import lightdp
from lightdp import stream
from lightdp.auditing._measure import _EDGES, Sample
from lightdp.auditing._schedule import random_rounds, told
from lightdp.auditing._stage import made, widened
from lightdp.auditing._view import View
from lightdp.masks import Grid, mask, pairwise_terms
from lightdp.wire import Accumulator

PLAN = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=6, epsilon=8, delta=1e-5, calibration="repair")
VIEW = View(PLAN, told(random_rounds(PLAN, 3, 1)))
OWN, SHARED = PLAN.sigma_individual**2, PLAN.sigma_pairwise**2


def sampled(
    values: int, *, seed: int = 0, scale: float = 1.0, runs: int = 2, mean: float = 0.0, heavy: bool = False
) -> Sample:
    """`scale` times the noise that is expected; `heavy` has tails that no Gaussian has, with the same covariance."""
    rng = np.random.default_rng(seed)
    sample = Sample(VIEW, OWN, SHARED, PLAN.delta, np.ones(len(VIEW.uploads), dtype=bool))
    root = np.linalg.cholesky(VIEW.covariance(OWN, SHARED)) * scale
    for _ in range(runs):
        size, secret = values // runs, rng.random(values // runs) < 0.5
        noise = root @ rng.standard_normal((len(root), size)) + mean
        if heavy:
            noise *= rng.choice([0.1, math.sqrt(1.99)], size=size)
        sample.add(noise + np.outer(sample.shift, secret), secret)
    return sample


def test_every_interval_holds_the_exact_mu() -> None:
    sample = sampled(400_000)
    for each in (sample.linear(1e-9), sample.covariance(1e-9)):
        assert each.high is not None
        assert each.low < VIEW.mu < each.high < 1.05 * each.low
    assert 0.93 * VIEW.mu < sample.assumption_free(1e-9).low <= VIEW.mu
    assert sample.mu == pytest.approx(VIEW.mu)


@pytest.mark.parametrize("scale", [0.97, 1.03])
def test_noise_of_another_scale_is_outside_of_every_interval(scale: float) -> None:
    sample = sampled(400_000, scale=scale)
    for each in (sample.linear(1e-3), sample.covariance(1e-3)):
        assert each.high is not None
        assert each.low > VIEW.mu if scale < 1 else each.high < VIEW.mu
        assert each.low < VIEW.mu / scale < each.high
    found = {each.group: each.chance for each in sample.deviations()}
    assert max(found[group] for group in ("uploads", "own noise", "model")) < 1e-9
    assert found["fresh keys"] > 1e-6


@pytest.mark.parametrize("method", ["linear", "covariance"])
def test_intervals_miss_as_often_as_they_say(method: str) -> None:
    """With 200 coordinates and 10 uploads; 400 samples at level 0.2, so that 80 ± 8 miss."""
    missed = 0
    for seed in range(400):
        found = getattr(sampled(200, seed=seed), method)(0.2)
        missed += not found.low < VIEW.mu < found.high
    assert abs(missed - 80) < 5 * 8


def test_the_assumption_free_bound_is_that_of_clopper_and_pearson() -> None:
    sample = sampled(4000)
    true, false = sample._rates(1, 0.01)
    (negative, positive), at = sample.counts[1].sum(axis=1), 250
    above = sample.counts[1, :, at + 1 :].sum(axis=1)
    oracle = [stats.binomtest(int(hits), int(of)).proportion_ci(0.98, "exact") for hits, of in
              zip(above, (negative, positive), strict=True)]  # fmt: skip
    assert false[at] == pytest.approx(oracle[0].high, rel=1e-9)
    assert true[at] == pytest.approx(oracle[1].low, rel=1e-9)
    mu, epsilon = sample._bounds(true, false)
    assert mu[at] == pytest.approx(stats.norm.ppf(true[at]) - stats.norm.ppf(false[at]))
    assert epsilon[at] == pytest.approx(math.log((1 - PLAN.delta - (1 - true[at])) / false[at]))


def test_the_assumption_free_bounds_never_exceed_the_truth() -> None:
    """At level 0.05 in all four bounds together: of 200 samples, 10 may; the threshold is chosen on other ones."""
    epsilon = lightdp.gaussian.epsilon(VIEW.mu, PLAN.delta)
    found = [sampled(2000, seed=seed).assumption_free(0.05) for seed in range(200)]
    assert sum(each.low > VIEW.mu for each in found) <= 10
    assert sum((each.epsilon_low or 0.0) > epsilon for each in found) <= 10
    assert np.median([each.low for each in found]) > 0.65 * VIEW.mu


def test_noise_that_is_not_gaussian_shows_in_the_assumption_free_bound() -> None:
    assert sampled(200_000, heavy=True).assumption_free(1e-3).low > 1.5 * VIEW.mu


def test_sound_noise_deviates_nowhere_and_p_values_are_not_too_small() -> None:
    chances = [min(each.chance for each in sampled(400, seed=seed).deviations()) for seed in range(200)]
    assert sum(chance < 0.1 for chance in chances) <= 20 + 5 * math.sqrt(18)
    assert sum(chance < 0.9 for chance in chances) >= 20  # Bonferroni is not that wasteful: the test can fail


def test_noise_that_comes_again_with_other_keys_is_found() -> None:
    rng = np.random.default_rng(1)
    sample = Sample(VIEW, OWN, SHARED, PLAN.delta, None)
    root = np.linalg.cholesky(VIEW.covariance(OWN, SHARED))
    again = rng.standard_normal((len(root), 5000)) * 0.5
    for _ in range(2):
        noise = root @ (again + math.sqrt(0.75) * rng.standard_normal(again.shape))
        sample.add(noise, np.arange(5000) % 2 < 0)
    found = {each.group: each for each in sample.deviations()}
    assert found["fresh keys"].chance < 1e-12
    assert found["uploads"].chance > 1e-6


def test_the_histogram_has_every_score_that_is_not_far_out() -> None:
    sample = sampled(10_000)
    drawn = sample.histogram()
    assert sum(drawn["secret_0"]) + sum(drawn["secret_1"]) == 10_000
    assert len(drawn["edges"]) == len(drawn["secret_0"]) + 1
    middles = (np.array(drawn["edges"])[1:] + np.array(drawn["edges"])[:-1]) / 2
    assert np.average(middles, weights=drawn["secret_0"]) == pytest.approx(0, abs=0.1)
    assert np.average(middles, weights=drawn["secret_1"]) == pytest.approx(VIEW.mu, abs=0.1)


@pytest.mark.parametrize("changed", [{}, {"stragglers": 0}, {"gamma": 0.0}, {"epsilon": 0.5, "clip": 1e-3}])
def test_the_variances_as_made_are_those_of_the_plan_with_a_little_rounding(changed: dict[str, Any]) -> None:
    asked = {"clients": 4, "colluders": 1, "stragglers": 1, "rounds": 6, "epsilon": 8, "delta": 1e-5}
    plan = widened(lightdp.plan(**(asked | {"calibration": "repair"} | changed)), "record")
    individual, pairwise = made(Grid.of(plan, 1000))
    rounded = plan.sigma_individual**2 + plan.wire_grid**2 / 12
    assert rounded * (1 - 1e-5) < individual < 1.001 * rounded
    assert plan.sigma_pairwise**2 <= pairwise <= 1.001 * plan.sigma_pairwise**2


def filled(**fields: Any) -> Sample:
    """A sample whose sums are given, as if coordinates had been added."""
    sample = Sample(VIEW, OWN, SHARED, PLAN.delta, None)
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


def test_the_threshold_of_one_half_is_tested_on_the_other() -> None:
    """The first half looks best at one threshold, the other half at another: the bound is that at the first one."""
    here, there = 200, 400
    counts = np.zeros((2, 2, _EDGES + 1), np.int64)
    counts[0, :, here], counts[0, :, here + 1] = (900, 100), (100, 900)
    counts[1, :, here], counts[1, :, here + 1] = (700, 300), (290, 680)
    counts[1, :, there + 1] = (10, 20)  # in the other half alone, and not many
    counts[1, 0, there], counts[1, 1, there + 1] = 0, 600
    sample = filled(counts=counts)
    found = sample.assumption_free(0.04)
    bound = {name: stats.binomtest(hits, of).proportion_ci(0.98, "exact")
             for name, hits, of in (("false", 300, 1000), ("true", 1280, 1580))}  # fmt: skip
    mu = stats.norm.ppf(bound["true"].low) - stats.norm.ppf(bound["false"].high)
    assert found.low == pytest.approx(mu, rel=1e-9)
    assert found.epsilon_low == pytest.approx(
        math.log((bound["true"].low - PLAN.delta) / bound["false"].high), rel=1e-9
    )


@pytest.mark.parametrize("mu", [0.1, 1.5, 6.0])
def test_the_linear_interval_is_as_wide_as_the_difference_of_means_scatters(mu: float) -> None:
    """d √(n₀n₁/n) follows the noncentral t distribution with n − 2 degrees of freedom."""
    number = np.array([400.0, 600.0])
    moments = np.array([[400, 0, 399.2], [600, 600 * mu, 600 * mu**2 + 598.8]])  # variance 1, means 0 and μ
    found = filled(_moments=moments).linear(0.01)
    assert found.high is not None
    root = math.sqrt(1 / (1 / number).sum())
    scatter = stats.nct.std(998, mu * root) / root
    low, high = mu - 2.5758 * scatter, mu + 2.5758 * scatter
    assert found.low == pytest.approx(max(low, 0), rel=0.01)
    assert found.high == pytest.approx(high, rel=0.01)


def test_the_covariance_interval_misses_as_often_as_it_says_with_few_coordinates() -> None:
    """20 coordinates of 10 uploads: with 20 degrees of freedom and not 11 most intervals would miss."""
    rng, root, missed = np.random.default_rng(5), np.linalg.cholesky(VIEW.covariance(OWN, SHARED)), 0
    for _ in range(400):
        uploads = root @ rng.standard_normal((len(root), 20))
        found = filled(_products=uploads @ uploads.T, _moments=np.array([[10.0, 0, 0], [10.0, 0, 0]])).covariance(0.2)
        assert found.high is not None
        missed += not found.low < VIEW.mu < found.high
    assert abs(missed - 80) < 5 * 8


def test_the_variances_as_made_are_those_of_bytes_that_are_rounded_coarsely() -> None:
    """Steps so coarse that every rounding shows: each term is ten standard errors of the variance or more."""
    grid, values = Grid(step=0.5, shift=1, bits=24, sigma_individual=2.0, sigma_pairwise=1.0), 4_000_000
    individual, pairwise = made(grid)
    total = Accumulator(values, grid.bits)
    total.add(mask(np.zeros(values), grid, [], threads=None))
    error = 6 * math.sqrt(2 / values)
    assert np.var(total.total() * grid.wire_step) == pytest.approx(individual, rel=error)
    noise = np.zeros(values, np.int32)
    stream.accumulate(noise, pairwise_terms({1: bytes(32)}, 0, grid), threads=None)
    assert np.var(noise * grid.step) == pytest.approx(pairwise, rel=error)
    assert 1 / 12 * grid.step**2 > 1.6 * error * individual  # the least of the terms

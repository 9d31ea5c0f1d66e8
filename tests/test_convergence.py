from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

import lightdp
from lightdp import convergence
from lightdp.errors import ArgumentError

PLAN = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=7, epsilon=3, delta=1e-5)
REPAIR = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=7, epsilon=3, delta=1e-5, calibration="repair")
SETTINGS = {"initial_gap": 2.0, "smoothness": 0.3, "lipschitz": 0.7, "polyak": 0.4, "dissimilarity": 1.2}


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 1000, 11_200_000])
def test_gaussian_norm_agrees_with_mpmath(dimension: int) -> None:
    with mpmath.workdps(50):
        d = mpmath.mpf(dimension)
        exact = 1.7 * mpmath.sqrt(2) * mpmath.exp(mpmath.loggamma((d + 1) / 2) - mpmath.loggamma(d / 2))
    assert convergence.gaussian_norm(dimension, 1.7) == pytest.approx(float(exact), rel=1e-8)


def test_gaussian_norm_agrees_with_simulation_and_is_not_the_square_root_of_d() -> None:
    norms = np.linalg.norm(np.random.default_rng(0).standard_normal((400_000, 3)), axis=1)
    assert convergence.gaussian_norm(3, 1.0) == pytest.approx(norms.mean(), rel=0.005)
    assert math.sqrt(3) != pytest.approx(norms.mean(), rel=0.05)


@pytest.mark.parametrize("plan", [PLAN, REPAIR])
def test_bound_unrolls_the_one_round_recursion_and_the_printed_one_does_not(plan: lightdp.Plan) -> None:
    d, s = 5, SETTINGS
    rho, b, beta = s["smoothness"], s["dissimilarity"], s["lipschitz"]
    variance = plan.noise_in_mean() + (2 * plan.transient_in_mean() if plan.repairs else 0)
    noise = (1 + rho * b) * beta * convergence.gaussian_norm(d, math.sqrt(variance)) + rho / 2 * d * variance
    rate = 1 + 2 * s["polyak"] * (-1 + rho * b + rho * b * b / 2)
    gap, printed = s["initial_gap"], s["initial_gap"] * rate**7
    for t in range(1, 8):
        gap = rate * gap + noise
        printed += noise**t * rate ** (7 - t)
    found = convergence.bound(plan, dimension=d, **s)
    assert found.corrected == pytest.approx(gap, rel=1e-12)
    assert found.printed == pytest.approx(printed, rel=1e-12)
    assert found.printed != pytest.approx(found.corrected, rel=0.1)


def test_with_repair_a_residual_is_in_the_noise_of_two_steps() -> None:
    """What a round adds to the sum, from pairwise noise drawn, missed and repaired."""
    plan = lightdp.plan(clients=8, colluders=2, stragglers=4, rounds=9, epsilon=3, delta=1e-5, calibration="repair")
    rng = np.random.default_rng(0)
    owed = np.zeros(8)  # what each client takes out of the sum when it is used next
    steps, stays, residuals = [], [], []
    for _ in range(20_000):
        used = rng.permutation(8) >= rng.integers(0, 5)
        shared = np.triu(rng.normal(scale=plan.sigma_pairwise, size=(8, 8)), 1)
        shared -= shared.T
        own = rng.normal(scale=plan.sigma_individual, size=8)
        steps.append(float((own + shared.sum(1) - owed)[used].sum()))
        owed[used] = shared[:, ~used].sum(1)[used]
        stays.append(used.sum() * plan.sigma_individual**2)
        residuals.append(plan.residual_in_sum(int(used.sum())))
    assert np.var(steps) == pytest.approx(np.mean(stays) + 2 * np.mean(residuals), rel=0.04)
    assert np.var(steps) > 1.2 * (np.mean(stays) + np.mean(residuals))


def test_a_printed_bound_that_explodes_is_infinite_not_an_error() -> None:
    assert convergence.bound(PLAN, dimension=10**60, **SETTINGS).printed == math.inf


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="dimension must be >= 1, got dimension=0"):
        convergence.gaussian_norm(0, 1.0)
    with pytest.raises(ArgumentError, match="polyak must be > 0, got polyak=0"):
        convergence.bound(PLAN, dimension=1, **(SETTINGS | {"polyak": 0.0}))

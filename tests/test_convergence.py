from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

import lightdp
from lightdp import convergence
from lightdp.errors import ArgumentError

ASKED: dict[str, Any] = {"colluders": 2, "epsilon": 3, "delta": 1e-5}
PLAN, REPAIR = (
    lightdp.plan(clients=50, stragglers=10, rounds=7, calibration=name, **ASKED) for name in ("exact", "repair")
)
GRACE = lightdp.plan(clients=50, stragglers=10, rounds=7, calibration="repair", grace=1, **ASKED)
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


@pytest.mark.parametrize("plan", [PLAN, REPAIR, GRACE])
def test_bound_unrolls_the_one_round_recursion_and_the_printed_one_does_not(plan: lightdp.Plan) -> None:
    d, s = 5, SETTINGS
    rho, b, beta = s["smoothness"], s["dissimilarity"], s["lipschitz"]
    noise = []
    for residuals in (1, 1 if plan.grace else 2, 2, 2, 2, 2, 2):  # that a round leaves or takes out
        variance = plan.noise_in_mean() + (residuals * plan.transient_in_mean() if plan.repairs else 0)
        norm = convergence.gaussian_norm(d, math.sqrt(variance))
        noise.append((1 + rho * b) * beta * norm + rho / 2 * d * variance)
    rate = 1 + 2 * s["polyak"] * (-1 + rho * b + rho * b * b / 2)
    gap, printed = s["initial_gap"], s["initial_gap"] * rate**7
    for t in range(1, 8):
        gap = rate * gap + noise[t - 1]
        printed += noise[t - 1] ** t * rate ** (7 - t)
    found = convergence.bound(plan, dimension=d, **s)
    assert found.corrected == pytest.approx(gap, rel=1e-12)
    assert found.printed == pytest.approx(printed, rel=1e-12)
    assert found.printed != pytest.approx(found.corrected, rel=0.1)


class Trainings:
    """Many trainings of 8 clients at once: pairwise noise drawn, missed and repaired, of one coordinate of the sum.

    Attributes:
        steps: noise that each round adds to the sum. (rounds, trainings)
        stays: the part of it that stays. (rounds, trainings)
        closing: noise in the sum of a closing round. (trainings,)
    """

    def __init__(self, plan: lightdp.Plan, trainings: int = 10_000, seed: int = 0) -> None:
        rng, n = np.random.default_rng(seed), plan.clients
        none = np.zeros((trainings, n))
        owed, waits = none, none  # what each client takes out of the sum when it is used next, and (R5) a round later
        steps, stays = [], []
        for _ in range(plan.rounds):
            used = rng.random((trainings, n)).argsort(1) >= rng.integers(0, plan.stragglers + 1, trainings)[:, None]
            shared = np.triu(rng.normal(scale=plan.sigma_pairwise, size=(trainings, n, n)), 1)
            shared -= shared.transpose(0, 2, 1)
            own = rng.normal(scale=plan.sigma_individual, size=(trainings, n)) * used
            steps.append(own.sum(1) + ((shared.sum(2) - owed) * used).sum(1))
            stays.append(own.sum(1))
            new = np.where(used, np.einsum("tij,tj->ti", shared, ~used), 0.0)
            owed = np.where(used, 0.0, owed) + (waits if plan.grace else new)
            waits = new
        self.steps, self.stays = np.array(steps), np.array(stays)
        self.closing = -(owed + (waits if plan.grace else none)).sum(1)


def test_with_repair_a_residual_is_in_the_noise_of_two_steps() -> None:
    plan = lightdp.plan(clients=8, stragglers=4, rounds=5, calibration="repair", **ASKED)
    played = Trainings(plan)
    variances, residual = played.steps.var(axis=1), np.mean([plan.residual_in_sum(u) for u in range(4, 9)])
    stays = plan.individual_in_sum(6)
    assert variances[0] == pytest.approx(stays + residual, rel=0.06)
    assert variances[3:] == pytest.approx(stays + 2 * residual, rel=0.12)  # less a few that still wait for repair
    assert np.all(variances <= (stays + np.array([1, 2, 2, 2, 2]) * residual) * 1.04)


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_noise_of_the_trained_model_is_that_of_trainings_with_momentum(momentum: float, grace: int) -> None:
    """(R4): what lasts and what residuals leave, before and after a closing round, by playing it."""
    plan = lightdp.plan(clients=8, stragglers=3, rounds=12, calibration="repair", grace=grace, **ASKED)
    played = Trainings(plan)
    weights, velocity = np.zeros((2, played.steps.shape[1])), np.zeros((2, played.steps.shape[1]))
    for noise in zip(played.stays, played.steps - played.stays, strict=True):
        velocity = momentum * velocity + np.array(noise)
        weights += velocity
    residual = np.mean([plan.residual_in_sum(u) for u in range(5, 9)])
    opened, closed = (convergence.model_noise(plan, momentum, closed=closed) for closed in (False, True))
    in_sum = 6.5 * plan.sigma_individual**2
    assert weights[0].var() == pytest.approx(opened.lasting / plan.noise_in_mean() * in_sum, rel=0.05)
    assert weights[1].var() == pytest.approx(opened.residual / plan.transient_in_mean() * residual, rel=0.08)
    after = (weights[1] + played.closing).var()
    assert after == pytest.approx(closed.residual / plan.transient_in_mean() * residual, rel=0.1, abs=1e-9)
    assert closed.lasting - opened.lasting == pytest.approx((1 + grace) * plan.noise_in_mean())
    if momentum == 0.9:  # closing takes out little of what velocity holds
        assert 0.5 < closed.residual / opened.residual < 0.95


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_of_a_model_of_cohorts_is_that_of_rosters_that_take_turns(momentum: float, grace: int) -> None:
    """(C1): three rosters, a round each in turn; a roster repairs in its own rounds, and closes by itself."""
    asked: dict[str, Any] = ASKED | {"clients": 8, "stragglers": 3, "calibration": "repair", "grace": grace}
    plan = lightdp.plan(**asked, population=24, rounds=15)
    alone = lightdp.plan(**asked, rounds=5, gamma=plan.gamma)
    assert alone.noise == plan.noise
    rosters = [Trainings(alone, seed=seed) for seed in range(3)]
    weights, velocity = np.zeros(10_000), np.zeros(10_000)
    for t in range(15):
        roster = rosters[t % 3]
        velocity = momentum * velocity + (roster.steps - roster.stays)[t // 3]
        weights += velocity
    residual = np.mean([plan.residual_in_sum(u) for u in range(5, 9)])
    opened, closed = (convergence.model_noise(plan, momentum, closed=closed) for closed in (False, True))
    unit = plan.transient_in_mean() / residual
    assert weights.var() * unit == pytest.approx(opened.residual, rel=0.1)
    after = (weights + sum(roster.closing for roster in rosters)).var()
    assert after * unit == pytest.approx(closed.residual, rel=0.12, abs=1e-9)
    assert closed.lasting - opened.lasting == pytest.approx(3 * (1 + grace) * plan.noise_in_mean())
    one = convergence.model_noise(lightdp.plan(**asked, rounds=15, gamma=plan.gamma), momentum, closed=False)
    assert opened.residual / opened.lasting > 1.5 * one.residual / one.lasting  # they stay three times as long


def test_the_bound_is_not_for_cohorts() -> None:
    plan = lightdp.plan(clients=50, population=100, stragglers=10, rounds=7, **ASKED)
    with pytest.raises(ArgumentError, match="same clients in every round, got 2 cohorts"):
        convergence.bound(plan, dimension=5, **SETTINGS)


def test_a_plan_without_repair_has_no_residual_to_take_out() -> None:
    found = convergence.model_noise(PLAN, 0.5)
    assert found.residual == 0
    assert found == convergence.model_noise(PLAN, 0.5, closed=False)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_momentum_is_checked(momentum: float) -> None:
    with pytest.raises(ArgumentError, match="momentum must be"):
        convergence.model_noise(PLAN, momentum)


def test_a_printed_bound_that_explodes_is_infinite_not_an_error() -> None:
    assert convergence.bound(PLAN, dimension=10**60, **SETTINGS).printed == math.inf


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="dimension must be >= 1, got dimension=0"):
        convergence.gaussian_norm(0, 1.0)
    with pytest.raises(ArgumentError, match="polyak must be > 0, got polyak=0"):
        convergence.bound(PLAN, dimension=1, **(SETTINGS | {"polyak": 0.0}))

"""(D6): plans with repair last as long as they say, for what the odometer itself charges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lightdp
from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.planning._provision import LASTS, Provision
from lightdp.repair import worst_cost


def planned(clients: int, bound: int, rounds: int, **more: Any) -> Plan:
    asked = {"epsilon": 3.0, "delta": 1e-5, "calibration": "repair"} | more
    return lightdp.plan(clients=clients, colluders=bound, stragglers=bound, rounds=rounds, **asked)


def played(plan: Plan, trainings: int, *, steady: bool = False) -> NDArray[np.float64]:
    """What clients spend before the last round of trainings as the law says, in units of (Δ/σ_U)². (trainings, N)"""
    rng, adjacent = np.random.default_rng(0), plan.graph.adjacency().astype(float)
    spent = np.zeros((trainings, plan.clients))
    for _ in range(plan.rounds - 1):
        count = rng.choice(len(plan.law.pmf), p=plan.law.pmf, size=trainings)
        lots = rng.random(spent.shape)
        lots[:, :1] += steady  # client 0 never straggles
        missing = lots.argsort(axis=1).argsort(axis=1) < count[:, None]
        honest = np.maximum(plan.honest - missing @ adjacent, 1)
        spent += np.where(missing, 0.0, plan.used_cost(honest))
    return spent


def room(plan: Plan) -> float:
    """What the plan has for all rounds but the last, by its own noise."""
    whole = plan.rounds * (plan.sigma_individual / plan.sigma_effective) ** 2
    return whole - worst_cost(plan.gamma, plan.honest, plan.stragglers, seen=plan.late_is_seen, grace=plan.grace)


@pytest.mark.parametrize("degree", [None, 10])
@pytest.mark.parametrize("rounds", [5, 20, 100])
def test_no_client_runs_out_before_the_last_round_in_99_of_100_trainings(rounds: int, degree: int | None) -> None:
    plan = planned(20, 4, rounds, degree=degree)
    spent = played(plan, 1000)
    assert np.mean(spent.max(axis=1) <= room(plan)) >= LASTS
    assert np.mean(spent.max(axis=1) <= 0.9 * room(plan)) < LASTS  # and no plan with a tenth less would do


def test_rounds_at_their_mean_cost_would_not_last() -> None:
    plan = planned(20, 4, 20, degree=10)
    costs, chances = Provision.of(plan.request).law(plan.gamma)
    spent = played(plan, 500)
    assert spent.mean() == pytest.approx(19 * float(costs @ chances), rel=0.01)
    assert np.mean(spent.max(axis=1) <= 19 * float(costs @ chances)) < 0.01


def test_a_client_that_is_always_there_lasts_with_a_steady_reserve() -> None:
    expected, steady = (planned(20, 8, 200, reserve=reserve, gamma=5.0) for reserve in ("expected", "steady"))
    assert np.mean(played(steady, 300, steady=True)[:, 0] <= room(steady)) >= LASTS
    assert np.mean(played(expected, 300, steady=True)[:, 0] <= room(expected)) < 0.01
    worst = planned(20, 8, 200, reserve="worst", gamma=5.0)
    assert expected.sigma_individual < steady.sigma_individual < worst.sigma_individual


def test_the_odometer_charges_what_the_provision_counts() -> None:
    plan, rng = planned(20, 4, 30, degree=10, late="unseen"), np.random.default_rng(1)
    odometer, spent = lightdp.Odometer(plan), np.zeros(20)
    adjacent = plan.graph.adjacency().astype(int)
    for _ in range(plan.rounds):
        odometer.admit()  # lasts to the end
        missing = rng.permutation(20) < rng.integers(0, 5)
        odometer.record(used=np.flatnonzero(~missing))
        spent += np.where(missing, 0.0, plan.used_cost(np.maximum(plan.honest - adjacent @ missing, 1)))
    assert odometer.mu() == pytest.approx(np.sqrt(spent) * plan.sensitivity / plan.sigma_individual)


def finished(plan: Plan, seed: int, *, too_late: float = 0.0, joins: float = 0.0) -> bool:
    """Whether a training plays all its rounds and none is void, by the odometer; `joins` are late and used (R5)."""
    rng, n, waits = np.random.default_rng(seed), plan.clients, None
    odometer = lightdp.Odometer(plan)
    for _ in range(plan.rounds):
        away = odometer.exhausted()
        missing = rng.permutation(n) < rng.choice(len(plan.law.pmf), p=plan.law.pmf)
        used = ClientSet(~missing) - away
        if len(used) < n - plan.stragglers:
            return False
        final = used, ClientSet(missing & (rng.random(n) < too_late)) - away
        if plan.grace == 0:
            odometer.record(*final)
            continue
        if waits is not None:
            odometer.record(*waits)
        on_time = ClientSet(used.flags & (rng.random(n) >= joins))
        odometer.open(on_time, ~on_time - away)
        waits = final
    return True


@pytest.mark.parametrize(
    ("rounds", "late", "grace"), [(10, 0.5, 0), (20, 1.0, 0), (40, 0.25, 0), (10, 0.0, 1), (20, 0.5, 1)]
)
def test_plans_last_with_uploads_that_are_late_or_join_later(rounds: int, late: float, grace: int) -> None:
    """(R5), (R6): by the odometer's own count."""
    plan = planned(10, 2, rounds, late=late, grace=grace)
    assert np.mean([finished(plan, seed, too_late=late, joins=0.2) for seed in range(100)]) >= LASTS


def test_a_plan_for_no_late_uploads_does_not_last_with_them() -> None:
    plan = planned(10, 2, 20)
    assert np.mean([finished(plan, seed, too_late=0.5) for seed in range(20)]) < 0.5
    assert plan.sigma_individual < planned(10, 2, 20, late=0.5).sigma_individual


@pytest.mark.parametrize("rounds", [1, 2, 4, 30, 10**6])
@pytest.mark.parametrize("degree", [None, 6])
def test_the_sum_is_chernoffs_bound_minimised_by_brute_force(rounds: int, degree: int | None) -> None:
    provision = Provision.of(planned(10, 2, rounds, degree=degree).request)
    costs, chances = provision.law(3.0)
    bounds = [(rounds - 1) * costs.max()]
    for theta in np.geomspace(1e-6, 1e3, 8_000):
        log_mean = math.log(float(chances @ np.exp(theta * (costs - costs.max())))) + theta * costs.max()
        bounds.append(((rounds - 1) * log_mean + math.log(10 / 0.01)) / theta)
    assert provision.cost(3.0) == pytest.approx(min(bounds), rel=1e-5)


def test_without_stragglers_or_for_the_worst_ones_nothing_is_random() -> None:
    none = Provision.of(planned(10, 0, 9).request)
    assert none.cost(2.0) == pytest.approx(8 * 3 / 21)
    worst = Provision.of(planned(10, 2, 9, reserve="worst", degree=5).request)
    assert worst.cost(2.0) == pytest.approx(8 * 3 / (2 * 2 + 1))  # 5 neighbours, 2 collude, 2 are missing


@pytest.mark.parametrize("reserve", ["expected", "steady", "worst"])
def test_levels_of_sampled_rounds_add_up_to_the_provision(reserve: str) -> None:
    provision = Provision.of(planned(20, 4, 40, degree=10, reserve=reserve).request)
    total = sum(cost * count for cost, count in provision.levels(4.0, 8))
    assert provision.cost(4.0) <= total * (1 + 1e-9) <= 1.1 * provision.cost(4.0)


def test_sparse_plans_need_less_noise_than_if_every_straggler_were_a_neighbour() -> None:
    """The figures of (D6), for 50 clients, 10 colluders, 10 stragglers, 150 rounds and ε = 3."""
    found = [planned(50, 10, 150, degree=degree).noise_in_mean() for degree in (22, 30, 40)]
    assert found == pytest.approx([0.795, 0.438, 0.292], abs=0.001)


def test_a_request_with_many_stragglers_on_a_sparse_graph_is_planned_in_bounded_time() -> None:
    found = planned(200_001, 50_000, 100, degree=60_000)
    assert 0 < found.gamma < 1024

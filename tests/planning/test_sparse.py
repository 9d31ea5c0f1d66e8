"""(D6): plans with repair on sparse graphs provide for the stragglers among a client's neighbours, and last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import hypergeom

import lightdp
from lightdp import gaussian
from lightdp.planning import Plan
from lightdp.planning._provision import absent_neighbours, provision
from lightdp.repair import worst_cost


def planned(clients: int, bound: int, rounds: int, **more: Any) -> Plan:
    asked: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "calibration": "repair"} | more
    return lightdp.plan(clients=clients, colluders=bound, stragglers=bound, rounds=rounds, **asked)


def played(plan: Plan, trainings: int) -> NDArray[np.float64]:
    """What clients spend before the last round of trainings as the law says, in units of (Δ/σ_U)². (trainings, N)"""
    rng, adjacent = np.random.default_rng(0), plan.graph.adjacency().astype(float)
    spent = np.zeros((trainings, plan.clients))
    for _ in range(plan.rounds - 1):
        count = rng.choice(len(plan.law.pmf), p=plan.law.pmf, size=trainings)
        missing = rng.random(spent.shape).argsort(axis=1).argsort(axis=1) < count[:, None]
        spent += np.where(missing, 0.0, plan.used_cost(np.maximum(plan.honest - missing @ adjacent, 1)))
    return spent


@pytest.mark.parametrize("degree", [6, 10])
@pytest.mark.parametrize("rounds", [5, 20, 100])
def test_budgets_on_sparse_graphs_last_in_99_of_100_trainings(rounds: int, degree: int) -> None:
    """More than S̄ clients without budget end a training; none is so far off that another law would do."""
    plan = planned(20, 4, rounds, degree=degree)
    room = rounds * (plan.sigma_individual / plan.sigma_effective) ** 2
    room -= worst_cost(plan.gamma, plan.honest, plan.stragglers)
    spent = played(plan, 1000)
    assert np.mean((spent > room).sum(axis=1) <= plan.stragglers) >= 0.99
    assert np.mean((spent > 0.8 * room).sum(axis=1) <= plan.stragglers) < 0.99


def test_the_odometer_charges_what_the_provision_counts() -> None:
    plan, rng = planned(20, 4, 30, degree=10, late="unseen"), np.random.default_rng(1)
    odometer, spent, adjacent = lightdp.Odometer(plan), np.zeros(20), plan.graph.adjacency().astype(int)
    for _ in range(plan.rounds):
        odometer.admit()  # lasts to the end
        missing = rng.permutation(20) < rng.integers(0, 5)
        odometer.record(used=np.flatnonzero(~missing))
        spent += np.where(missing, 0.0, plan.used_cost(np.maximum(plan.honest - adjacent @ missing, 1)))
    assert odometer.mu() == pytest.approx(np.sqrt(spent) * plan.sensitivity / plan.sigma_individual)


def test_the_worst_reserve_counts_every_straggler_as_a_neighbour() -> None:
    plan = planned(10, 2, 9, reserve="worst", degree=5)
    assert absent_neighbours(plan.request).pmf.tolist() == [0, 0, 1]
    assert provision(plan.request, 2.0, 8) == pytest.approx(8 * 3 / (2 * 2 + 1))
    assert (
        len(absent_neighbours(planned(20, 12, 9, degree=4, reserve="worst").request).pmf) == 5
    )  # no more than neighbours


def test_levels_of_sampled_rounds_are_those_of_absent_neighbours() -> None:
    """Fewer neighbours straggle than clients do, so that rounds have more noise of others on a sparse graph."""
    plan = planned(20, 4, 40, degree=10, late="unseen")
    levels = plan.calibration.levels(plan.request, 4.0)
    mean = sum(count / level**2 for level, count in levels.items()) / 40
    absent = absent_neighbours(plan.request)
    expected = float(absent.pmf @ (1 / ((plan.honest - absent.counts) * 4.0 + 1))) * 5
    everyone = float(plan.law.pmf @ (1 / ((plan.honest - plan.law.counts) * 4.0 + 1))) * 5
    assert expected < mean < everyone


@pytest.mark.parametrize("degree", [22, 30, 40])
def test_noise_of_a_sparse_plan_is_that_of_hypergeometric_neighbours(degree: int) -> None:
    """In a long training the individual variance is that of the mean cost, here by scipy's own law."""
    plan, absent = planned(50, 10, 10**6, degree=degree, gamma=6.0, late="unseen"), np.arange(11)
    cost = 7.0 / (np.maximum(degree - 10 - absent, 0) * 6.0 + 7.0)
    mean = np.mean([hypergeom.pmf(absent, 49, s, degree) @ cost for s in range(11)])
    assert plan.sigma_individual**2 == pytest.approx(10**6 / gaussian.mu(3, 1e-5) ** 2 * mean, rel=1e-4)


def test_a_request_with_many_stragglers_on_a_sparse_graph_is_planned_in_bounded_time() -> None:
    assert 0 < planned(200_001, 50_000, 100, degree=60_000).gamma < 1024

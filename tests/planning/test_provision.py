"""(D6), (R6): plans with repair last as long as they say, for what the odometer itself charges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lightdp
from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.planning._provision import absent_neighbours, provision
from lightdp.repair import late_cost, late_costs
from lightdp.stragglers import StragglerLaw


def planned(size: tuple[int, int, int, int], **more: Any) -> Plan:
    asked: dict[str, Any] = dict(zip(("clients", "colluders", "stragglers", "rounds"), size, strict=True))
    return lightdp.plan(**(asked | {"epsilon": 3.0, "delta": 1e-5, "calibration": "repair"} | more))


def spent(plan: Plan, trainings: int, late: float) -> NDArray[np.float64]:
    """What clients spend in trainings as the law says, in units of (Δ/σ_U)². (trainings, N)"""
    rng, result = np.random.default_rng(0), []
    for _ in range(trainings):
        odometer = lightdp.Odometer(plan)
        for _ in range(plan.rounds):
            missing = rng.permutation(plan.clients) < rng.choice(plan.law.counts, p=plan.law.pmf)
            odometer.record(ClientSet(~missing), ClientSet(missing & (rng.random(plan.clients) < late)))
        result.append((odometer.mu() * plan.sigma_individual / plan.sensitivity) ** 2)
    return np.array(result)


def lasts(plan: Plan, late: float, seed: int) -> bool:
    """Whether a training with stragglers as planned plays all its rounds (R8)."""
    rng, odometer = np.random.default_rng(seed), lightdp.Odometer(plan)
    waits = None
    for _ in range(plan.rounds):
        away = odometer.exhausted()
        if len(away) > plan.stragglers:
            return False
        missing = rng.permutation(plan.clients) < rng.choice(plan.law.counts, p=plan.law.pmf)
        used = ClientSet(~missing) - away
        seen = ClientSet(missing & (rng.random(plan.clients) < late)) - away
        if len(used) < plan.clients - plan.stragglers:
            used, seen = ClientSet.none(plan.clients), seen | used
        if plan.grace and waits is not None:
            odometer.record(*waits)
        waits = used, seen
        if plan.grace:
            odometer.open(used, seen)
        else:
            odometer.record(*waits)
    return True


@pytest.mark.parametrize("late", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("grace", [0, 1])
def test_a_training_as_planned_plays_all_its_rounds(grace: int, late: float) -> None:
    plan = planned((10, 2, 2, 20), grace=grace, late=late)
    assert sum(lasts(plan, late, seed) for seed in range(100)) >= 97


@pytest.mark.parametrize("grace", [0, 1])
def test_late_stragglers_that_were_not_planned_for_end_a_training_early(grace: int) -> None:
    plan = planned((10, 2, 2, 20), grace=grace, late=0.0)
    assert sum(lasts(plan, 1.0, seed) for seed in range(30)) <= 3


@pytest.mark.parametrize("late", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("degree", [None, 10])
def test_few_clients_cost_more_than_is_provided_and_half_of_them_more_than_the_mean(
    degree: int | None, late: float
) -> None:
    plan = planned((20, 4, 4, 60), late=late, degree=degree, gamma=4.0)
    costs = spent(plan, 60, late)
    provided = provision(plan.request, plan.gamma, plan.rounds)
    assert np.mean(costs > provided) < 1 / 20
    assert np.mean(costs > 0.85 * provided) > 1 / 20  # and no plan with much less would do
    assert np.mean(costs > costs.mean()) > 0.3


@pytest.mark.parametrize("stragglers", [0, 3, 12])
def test_neighbours_that_straggle_are_counted_as_the_graph_has_them(stragglers: int) -> None:
    law = ",".join(["0"] * stragglers + ["1"])
    asked = planned((30, 2, 12, 10), degree=8, straggler_law=f"pmf:{law}").request
    found, rng = absent_neighbours(asked), np.random.default_rng(0)
    adjacent = asked.noise_graph.adjacency().astype(int)
    counts = [adjacent[0] @ (rng.permutation(30) < stragglers) for _ in range(20_000)]
    drawn = np.bincount(counts, minlength=9)[: len(found.pmf)] / 20_000
    # one of the other 29 straggles for sure; client 0 itself is one of them in some draws, which changes little
    assert drawn == pytest.approx(found.pmf, abs=0.03)
    assert found.mean(lambda s: s) == pytest.approx(stragglers * 8 / 29, rel=1e-9)


def test_the_worst_reserve_has_every_straggler_beside_the_client_in_every_round() -> None:
    plan = planned((50, 10, 10, 150), reserve="worst", degree=8, colluders=2)
    assert absent_neighbours(plan.request).mean(lambda s: s) == 8
    assert plan.sigma_individual > planned((50, 10, 10, 150), degree=8, colluders=2).sigma_individual


def test_what_all_clients_share_is_provided_for_beyond_its_mean() -> None:
    # either nobody or twelve of twenty straggle, all rounds of a training alike: all clients pay more together
    plan = planned((20, 2, 12, 30), straggler_law="pmf:" + ",".join(["0.5", *["0"] * 11, "0.5"]), gamma=5.0)
    costs = spent(plan, 200, 0.0)
    provided = provision(plan.request, plan.gamma, plan.rounds)
    assert np.mean(costs.mean(axis=1) > provided) < 0.02
    missed = 0.5 * 12 / 20
    own = plan.rounds**0.5 * np.sqrt((1 - missed) * missed) * float(plan.used_cost(18 - 12))
    assert provided > costs.mean() + own  # more than what a client's own luck asks for


@pytest.mark.parametrize("gamma", [0.01, 1.0, 300.0])
def test_late_costs_of_many_counts_are_those_of_each(gamma: float) -> None:
    peers = np.arange(1.0, 40.0)
    found = late_costs(gamma, peers, 0.3, 2 * peers)
    assert found == pytest.approx([late_cost(gamma, int(a), 0.3, 2 * a) for a in peers])


def test_the_search_for_gamma_reads_the_law_of_many_stragglers_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks for about 70 costs: with 10^6 clients each pass over the law takes milliseconds."""
    passes, mean = [], StragglerLaw.mean

    def counted(self: StragglerLaw, f: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
        passes.append(self)
        return mean(self, f)

    monkeypatch.setattr(StragglerLaw, "mean", counted)
    plan = planned((30, 3, 7, 40), epsilon=2.71, calibration="auto")
    assert plan.noise_carried() > 0
    assert 1 <= len(passes) <= 3

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import gaussian, noise_graph, stragglers
from lightdp.errors import ArgumentError
from lightdp.planning import GAMMA_MAX, PerClientPlan, plan_per_client
from lightdp.planning._per_client import _weights
from support import oracles

UNIT = gaussian.epsilon(1.0, 1e-5)  # the ε of σ_eff = 1


def designed(epsilons: list[float], straggling: list[float], colluders: int, **more: Any) -> PerClientPlan:
    settings = {"rounds": 1, "delta": 1e-5} | more
    return plan_per_client(epsilons=epsilons, straggling=straggling, colluders=colluders, **settings)


def test_the_reference_case_of_reliable_and_flaky_clients() -> None:
    p = designed([UNIT] * 50, [0.02] * 40 + [0.5] * 10, 10, target="sum")
    assert p.noise_equal == pytest.approx(11.949, abs=5e-4)
    assert p.noise == pytest.approx(9.470, abs=5e-4)
    assert p.sigma_individual[[0, 49]] ** 2 == pytest.approx([0.0608, 0.8821], abs=1e-4)
    pairs = [p.sigma_pairwise[0, 1], p.sigma_pairwise[0, 49], p.sigma_pairwise[48, 49]]
    assert np.square(pairs) == pytest.approx([0.0644, 0.0032, 0.0030], abs=5.1e-5)


@pytest.mark.parametrize(("n", "failure", "colluders"), [(50, 0.1, 10), (100, 0.05, 30), (30, 0.02, 0), (20, 0.1, 19)])
def test_equal_clients_get_the_equal_design(n: int, failure: float, colluders: int) -> None:
    p = designed([3.0] * n, [failure] * n, colluders, rounds=150)
    law = stragglers.binomial(n - 2, n, failure)
    q = lightdp.plan(
        clients=n,
        colluders=colluders,
        stragglers=n - 2,
        rounds=150,
        epsilon=3,
        delta=1e-5,
        straggler_law=law,
        calibration="exact",
    )
    assert p.sigma_individual == pytest.approx(np.full(n, q.sigma_individual), rel=1e-4)
    assert p.sigma_pairwise[0, 1] == pytest.approx(q.sigma_pairwise, rel=1e-4)
    assert p.noise == pytest.approx(oracles.before_rounding(q), rel=1e-4)


@given(data=st.data(), n=st.integers(2, 8))
@settings(max_examples=10, deadline=None)
def test_every_client_keeps_its_own_budget_and_the_design_is_never_worse_than_the_equal_one(
    data: st.DataObject, n: int
) -> None:
    epsilons = data.draw(st.lists(st.floats(0.2, 20), min_size=n, max_size=n))
    failures = data.draw(st.lists(st.sampled_from([0.0, 0.01, 0.2, 0.6]), min_size=n, max_size=n))
    colluders = data.draw(st.integers(0, n - 1))
    p = designed(epsilons, failures, colluders, rounds=7)
    assert np.all(p.epsilon() <= np.array(epsilons))
    assert p.noise <= p.noise_equal * (1 + 1e-9)
    for bad in itertools.combinations(range(n), colluders):
        exact = noise_graph.effective_noise(
            noise_graph.covariance(p.sigma_individual**2, p.sigma_pairwise**2, colluders=bad)
        )
        good = [i for i in range(n) if i not in bad]
        assert np.all(p.sigma_effective[good] <= exact * (1 + 1e-9))


def test_looser_budgets_get_less_noise() -> None:
    p = designed([1.0] * 5 + [8.0] * 5, [0.1] * 10, 2)
    assert p.sigma_effective[0] > p.sigma_effective[9]
    assert p.noise < 0.85 * p.noise_equal


def test_sparse_graphs_share_noise_along_their_edges_only() -> None:
    p = designed([1.0, 2.0, 3.0] * 4, [0.1, 0.2, 0.3] * 4, 1, degree=4)
    assert np.array_equal(p.sigma_pairwise > 0, p.graph.adjacency())
    assert np.all(p.epsilon() <= p.epsilons)


def test_clients_that_never_straggle_use_the_largest_gamma() -> None:
    p = designed([3.0] * 5, [0.0] * 5, 1)
    assert (p.sigma_pairwise[0, 1] / p.sigma_individual[0]) ** 2 == pytest.approx(GAMMA_MAX, rel=1e-3)


@pytest.mark.parametrize("target", ["mean", "sum"])
def test_weights_are_expectations_over_all_straggler_sets(target: Any) -> None:
    failures = np.array([0.1, 0.5, 0.3, 0.05])
    individual, pairwise = np.zeros(4), np.zeros((4, 4))
    for used in itertools.product([False, True], repeat=4):
        a = np.array(used)
        chance = np.prod(np.where(a, 1 - failures, failures))
        if a.any():
            share = chance / (a.sum() ** 2 if target == "mean" else 1)
            individual += share * a
            pairwise += share * (a[:, None] != a[None, :])
    got_individual, got_pairwise = _weights(failures, target)
    off = ~np.eye(4, dtype=bool)
    assert got_individual == pytest.approx(individual, rel=1e-9)
    assert got_pairwise[off] == pytest.approx(pairwise[off], rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilons": [3.0, 0.0]}, "epsilons must be > 0, got epsilons=0"),
        ({"straggling": [0.1, 1.0]}, r"straggling must be in \(0, 1\), got straggling=1"),
        ({"straggling": [0.1, math.nan]}, "straggling must be finite, got straggling=nan"),
        ({"straggling": [0.1]}, "must be of one length, got 2 and 1"),
        ({"colluders": 2}, r"colluders must be in 0..1, got colluders=2"),
        ({"target": "max"}, "target must be one of mean, sum, got target='max'"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"epsilons": [3.0, 3.0], "straggling": [0.1, 0.1], "colluders": 0} | changed
    with pytest.raises(ArgumentError, match=message):
        designed(**asked)

"""What guarantees mean for an attacker: bounds that the best attack meets or respects, and their words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import attack, gaussian
from lightdp.errors import ArgumentError


@given(log_mu=st.floats(-3, 1), delta=st.floats(-9, -3), rate=st.floats(0.001, 0.5))
@settings(max_examples=100, deadline=None)
def test_two_points_of_a_gaussian_curve_give_its_power(log_mu: float, delta: float, rate: float) -> None:
    mu = 10**log_mu
    found = attack.power(lambda d: gaussian.epsilon(mu, d), 10**delta, false_positives=rate)
    exact = gaussian.power(mu, rate)
    assert exact <= found * (1 + 1e-11)
    assert found <= 1.02 * exact + 2 * 10**delta


@pytest.mark.parametrize(("epsilon", "delta", "expected"), [
    (0.5, 1e-5, 1e-5 + math.exp(0.5) * 0.01),  # TPR <= δ + e^ε FPR
    (9.0, 1e-5, 1 - math.exp(-9.0) * (0.99 - 1e-5)),  # 1 - FPR <= δ + e^ε (1 - TPR)
    (math.inf, 1e-5, 1.0),
    (800.0, 1e-5, 1.0),
])  # fmt: skip
def test_one_epsilon_at_every_delta_gives_the_bound_of_pure_dp(epsilon: float, delta: float, expected: float) -> None:
    assert attack.power(lambda _: epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_no_attack_on_sampled_batches_exceeds_the_bound_and_the_best_comes_near() -> None:
    """The exact trade-off of 100 rounds at rate 0.05, from all ε of the composed distribution of losses."""
    plan = lightdp.plan(clients=4, colluders=1, stragglers=0, rounds=100, epsilon=4, delta=1e-5, sampling_rate=0.05)
    composed = pld.from_gaussian_mechanism(
        plan.noise_multiplier, sampling_prob=0.05, value_discretization_interval=1e-4
    ).self_compose(100)
    epsilons = np.linspace(0, 8, 801)
    deltas = np.array(composed.get_delta_for_epsilon(epsilons.tolist()))
    best = float((deltas + np.exp(epsilons) * 0.01).min())
    assert 0.999 * best <= plan.power() <= 1.05 * best
    one_point = plan.delta + math.exp(plan.epsilon()) * 0.01
    assert plan.power() < one_point / 3  # which the plan's own ε alone would give


def test_the_mu_of_sampled_batches_is_not_called_gdp_and_has_the_plans_epsilon() -> None:
    plan = lightdp.plan(clients=4, colluders=1, stragglers=0, rounds=10, epsilon=2, delta=1e-5, sampling_rate=0.1)
    assert not plan.gdp
    assert gaussian.epsilon(plan.mu, 1e-5) == pytest.approx(plan.epsilon(), rel=1e-9)
    assert f"(at this δ as with μ = {math.ceil(plan.mu * 1e4) / 1e4:.4f})" in str(plan)
    assert plan.to_dict()["gdp"] is False


def test_a_plan_states_mu_and_the_attack_in_text_and_json() -> None:
    plan = lightdp.plan(clients=9, colluders=2, stragglers=2, rounds=10, epsilon=3, delta=1e-5, unit="client")
    facts, text = plan.to_dict(), " ".join(str(plan).split())
    assert facts["mu"] == plan.mu == pytest.approx(gaussian.mu(3, 1e-5), rel=1e-9)
    assert facts["power"] == plan.power() == gaussian.power(plan.mu, 0.01)
    assert "ε = 3.0000 at δ = 1e-05 (μ = 0.7192)" in text
    assert "wrongly accuses 1 % of the clients not in the data finds at most 5.5 % of those in it." in text


@pytest.mark.parametrize(
    ("power", "unit", "adjacency", "words"),
    [
        (0.010000001, "record", "add-remove", "1 % of the records not in the data finds at most 1.1 % of those in it."),
        (0.5, "client", "replace", "1 % of the clients not replaced finds at most 50.0 % of those replaced."),
        (1.0, "paper", "add-remove", "of the clients not in the data finds at most 100.0 %"),
    ],
)
def test_the_sentence_rounds_up_and_names_the_unit(power: float, unit: str, adjacency: str, words: str) -> None:
    assert words in attack.sentence(power, unit, adjacency)


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"false_positives must be in \(0, 1\), got false_positives=1"):
        attack.power(lambda _: 1.0, 1e-5, false_positives=1)
